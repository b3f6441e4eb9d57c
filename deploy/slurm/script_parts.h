// What is the same in every batch script of a run (job_script.h).
#pragma once

namespace quartet {

inline constexpr char kBegin[] = R"sh(set -u
restart=${SLURM_RESTART_COUNT:-0}
say() { echo "$(date '+%F %T') slurm: $*"; }
say "job $SLURM_JOB_ID on $(hostname), start $((restart + 1))"
export CUDA_DEVICE_ORDER=PCI_BUS_ID
# SIGTERM is for the orchestrator, whose step gets it, too, and makes a checkpoint.
trap '' TERM
requests=$run_dir/launch/services
# The cores of the job's nodes, which srun of older versions takes for those of each rank.
unset SLURM_CPUS_PER_TASK
)sh";

// Before it: `on_orchestrator NAME PROGRAM ARGUMENTS...` becomes a step where the orchestrator is to run.
inline constexpr char kEars[] = R"sh(
# Of a job that is preempted or near its time limit, Slurm sends SIGTERM to the steps alone. One that does nothing else
# hears it from here on until the orchestrator's step has started, which hears it for itself.
on_orchestrator ears sleep infinity &>/dev/null &
ears=$!
end_ears() {
  [ -n "$ears" ] || return 0
  kill "$ears" 2>/dev/null  # srun ends its step then
  wait "$ears"
  ears=
} 2>/dev/null
asked_to_end() {
  [ -n "$ears" ] || return 1
  if kill -0 "$ears" 2>/dev/null; then
    [ ! -e "$requests/started" ] || end_ears
    return 1
  fi
  wait "$ears"
  local code=$?
  ears=
  [ $code = 143 ]
}

# What was asked to end by SIGTERM (143), whatever it was at, goes on after its checkpoint, unless the job is cancelled; what
# failed does, while that helps. A wrong configuration stays wrong.
finish() { # CODE
  local code=$1 again= newest failures=0 after=
  case $code in
    0 | 2 | 130 | 143) ;;
    *)  # What a step ends with that gets SIGTERM beside that one, which may take a moment to end.
      for _ in {1..10}; do
        [ -n "$ears" ] && kill -0 "$ears" 2>/dev/null || break
        sleep 0.2
      done
      ! asked_to_end || code=143
      ;;
  esac
  end_ears
  case $code in
    0 | 2 | 130) ;;
    143) again="asked to end" ;;
    *)
      newest=$(readlink "$run_dir/checkpoints/latest" || echo none)
      [ ! -e "$run_dir/launch/failures" ] || read -r failures after <"$run_dir/launch/failures"
      [ "$after" = "$newest" ] || failures=0
      echo "$((failures + 1)) $newest" >"$run_dir/launch/failures"
      if ((failures < max_restarts)); then
        again="failed"
      else
        say "has failed $((failures + 1)) times with $newest as its newest checkpoint, and is left as it is"
      fi
      ;;
  esac
  if [ -n "$again" ] && [ "$(squeue -h -j "$SLURM_JOB_ID" -o %T | sort -u)" = RUNNING ]; then
    say "$again: queued again, to go on after its newest checkpoint, $(readlink "$run_dir/checkpoints/latest" || echo none)"
    scontrol requeue "$SLURM_JOB_ID"
  fi
  say "ends with exit code $code"
  exit $code
}
)sh";

// What an earlier start has left on a node that was lost and is back: Slurm takes it for a part of the job, and it has
// the ports. The brackets keep pkill's callers out of what it finds.
inline constexpr char kClear[] = R"sh(
if ((restart > 0)); then
  # Of this run alone: what pkill looks for is an expression, in which the dot of a folder's name is any letter.
  left=$(sed 's/[][\\.*^$+?(){}|]/\\&/g' <<<"-config=$config --set=services")
  srun $all_nodes --overlap --ntasks-per-node=1 --gres=none bash -c 'pkill -KILL -f -- "$0" || true' "[-]$left"
fi
)sh";

// Certificates of this start alone, for the addresses that its nodes have.
inline constexpr char kTls[] = R"sh(
names=$(srun $all_nodes --overlap --ntasks-per-node=1 --gres=none bash -c '
  echo "DNS:$SLURMD_NODENAME"; for address in $(hostname -I); do echo "IP:$address"; done') || finish 1
(umask 077; rm -rf "$tls"; mkdir -p "$tls")
openssl req -x509 -newkey rsa:2048 -nodes -days 365 -subj /CN=quartet -keyout "$tls/key.pem" -out "$tls/cert.pem" \
  -addext "subjectAltName=$(sort -u <<<"$names" | paste -sd,)" 2>"$tls/openssl.log" ||
  { say "openssl made no certificates: $(tail -n 1 "$tls/openssl.log")"; exit 1; }
)sh";

// orchestrator/launch/requested_services.h
inline constexpr char kRequests[] = R"sh(
# Services may be replaced while the run goes on: each request is a file. A replaced one stays so when the job starts again.
own() { [ -O "$1" ] && [ ! -L "$1" ]; }
mkdir -p "$requests"
for folder in "$run_dir/launch" "$requests"; do
  own "$folder" && chmod 700 "$folder" || {
    say "$folder is no folder of this run's user alone, and whoever may write there decides what it runs; remove it"
    finish 2
  }
done
rm -f "$requests"/request "$requests"/*.ended "$requests/started"
programs_of() { own "$requests/$1.programs" && cat "$requests/$1.programs" 2>/dev/null || echo "$programs"; }
jobs=$SLURM_JOB_ID
for id in "${!SLURM_JOB_ID_HET_GROUP_@}"; do jobs+=,${!id}; done
step_of() { squeue --noheader --steps --job="$jobs" --format="%i %j" | sed -n "s/ $1\$//p"; }
stop_services() { # NAMES
  local name step pids=()
  for name; do
    [ -n "${steps[$name]:-}" ] || continue
    pids+=("${steps[$name]}")
    unset "steps[$name]"
    for step in $(step_of "$name"); do scancel --signal=INT "$step" 2>/dev/null; done
  done
  [ ${#pids[@]} -gt 0 ] || return 0
  for _ in {1..100}; do kill -0 "${pids[@]}" 2>/dev/null || break; sleep 0.2; done
  kill "${pids[@]}" 2>/dev/null  # srun ends its step then
  wait "${pids[@]}"
}
take_request() {
  local verb name folder arguments
  own "$requests/request" || { say "$requests/request is of another user, and is dropped"; rm -f "$requests/request"; return; }
  { read -r verb && read -r name && read -r folder; mapfile -t arguments; } <"$requests/request"
  say "$verb $name $folder"
  case $verb in
    stop)
      unset trial
      stop_services "$name"
      ;;
    start)
      trial=$name tried=$folder
      rm -f "$requests/$name.ended"
      "start_$name" "$folder" "${arguments[@]}"
      ;;
    keep)
      unset trial
      echo "$tried" >"$requests/$name.programs"
      ;;
  esac
  rm -f "$requests/request"
}
)sh";

// Before it: `services` has their names, kEars and kRequests.
inline constexpr char kEnd[] = R"sh(
# Hosts and links, by services without models.
check_hosts() {
  local code=1 name left=0
  for name in "${services[@]}"; do "start_$name" "$(programs_of "$name")" --check; done
  on_orchestrator check "$programs/orchestrator/check" --program=$program --config="$config" "${where[@]}" --services_run &
  steps[check]=$!
  # Who waits for a service that has ended waits for nothing: there are 3 s for the check to say it better.
  while kill -0 "${steps[check]}" 2>/dev/null && ((left < 10)); do
    sleep 0.3
    for name in "${services[@]}"; do
      kill -0 "${steps[$name]}" 2>/dev/null || { ((++left)); break; }
    done
  done
  if kill -0 "${steps[check]}" 2>/dev/null; then
    stop_services check
  else
    wait "${steps[check]}"
    code=$?
    unset "steps[check]"
  fi
  for name in "${services[@]}"; do
    kill -0 "${steps[$name]}" 2>/dev/null && continue
    say "the $name did not stay to be checked:"
    tail -n 5 "$run_dir/logs/$name.log"
  done
  stop_services "${services[@]}"
  return $code
}

run() {
  local ended= name
  for name in "${services[@]}"; do "start_$name" "$(programs_of "$name")"; done
  local main=$program
  [ "$main" != ppo ] || main=orchestrator
  on_orchestrator orchestrator bash -c 'echo >"$0"; exec "$@"' "$requests/started" \
    "$programs/orchestrator/$main" --config="$config" "${where[@]}" &
  orchestrator=$!
  # The first to end ends all, but for a service that is tried in place of another.
  while [ -z "$ended" ]; do
    sleep 0.3
    kill -0 "$orchestrator" 2>/dev/null || ended=orchestrator
    for name in "${!steps[@]}"; do
      kill -0 "${steps[$name]}" 2>/dev/null && continue
      [ "$name" = "${trial:-}" ] || { ended=${ended:-$name}; continue; }
      wait "${steps[$name]}"
      echo $? >"$requests/$name.new" && mv "$requests/$name.new" "$requests/$name.ended"
      unset "steps[$name]"
    done
    [ ! -e "$requests/request" ] || take_request
    ! asked_to_end || ended=SIGTERM
  done
  end_ears
  if [ "$ended" = SIGTERM ]; then
    say "SIGTERM has come before the orchestrator's step"
  elif [ "$ended" != orchestrator ]; then
    say "the step of the $ended has ended; the end of $run_dir/logs/$ended.log:"
    tail -n 20 "$run_dir/logs/$ended.log"
    for _ in {1..20}; do kill -0 "$orchestrator" 2>/dev/null || break; sleep 1; done
  fi
  scancel --signal=INT "$SLURM_JOB_ID" 2>/dev/null
  for _ in {1..20}; do [ -n "$(jobs -r)" ] || break; sleep 1; done
  kill "${steps[@]}" "$orchestrator" 2>/dev/null  # srun ends its step then
  wait "$orchestrator"
  local code=$?
  case $ended in
    orchestrator) ;;
    SIGTERM) code=143 ;;
    *)  # By 2 a program says that its configuration is wrong, whoever was the first to end.
      if [ $code != 2 ]; then
        wait "${steps[$ended]}"
        [ $? = 2 ] && code=2 || code=1
      fi
      ;;
  esac
  return $code
}

! asked_to_end || finish 143
code=0
[ "$check" = off ] || check_hosts || code=$?
[ "$check" != only ] || { end_ears; exit $code; }
[ $code != 0 ] || ! asked_to_end || code=143
[ $code != 0 ] || run || code=$?
finish $code
)sh";

}  // namespace quartet
