#!/usr/bin/env bash
# Starts the policy trainer under the real torchrun as two nodes of one rank each, fine-tunes with it, and ends it: on this
# host, and as root on two hosts that are network namespaces (tests/cluster/hosts.sh), with TLS.
#
# usage: check_torchrun.sh TORCHRUN MODEL    (torchrun of torch 2.11.0; a Hugging Face folder of a small model)
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
torchrun="$1"
model="$2"
./bazelw build //policy_trainer //orchestrator/... >/dev/null 2>&1
work="$(mktemp -d)"
hosts="${PWD}/tests/cluster/hosts.sh"
end() {
  jobs -p | xargs -r kill 2>/dev/null
  [[ ! -e "${work}/hosts/pids" ]] || "${hosts}" down "${work}/hosts"
  rm -rf "${work}"
}
trap end EXIT
for i in 1 2 3 4 5 6 7 8; do echo "{\"prompt\": \"sort dbeac=\", \"response\": \"abcde\"}"; done >"${work}/sft.jsonl"

# check NAME ADDRESS PORT STORE NODE0... -- NODE1... -- FIELDS: what stands before the commands of each node.
check() {
  local name="$1" address="$2" port="$3" store="$4" folder="${work}/$1" node=0
  shift 4
  local -a on0=() on1=() fields=()
  while [[ "$1" != -- ]]; do on0+=("$1"); shift; done
  shift
  while [[ "$1" != -- ]]; do on1+=("$1"); shift; done
  shift
  fields=("$@")
  mkdir "${folder}"
  cat >"${folder}/run.textproto" <<TEXT
run_dir: "${folder}/run"
actor { pretrain: "${model}" dtype: "fp32" max_len: 48 }
sft { data: "${work}/sft.jsonl" }
train { train_batch_size: 4 max_steps: 4 }
services { policy_trainer { ranks: 2 listen: "${address}:${port}" } }
TEXT
  for node in 0 1; do
    local -n on="on${node}"
    "${on[@]}" "${torchrun}" --nnodes=2 --nproc-per-node=1 --node-rank="${node}" --master-addr="${address}" \
      --master-port="${store}" --no-python "${PWD}/bazel-bin/policy_trainer/policy_trainer" --config="${folder}/run.textproto" \
      "${fields[@]}" --address_file="${folder}/address" >"${folder}/node${node}.log" 2>&1 &
  done
  for ((i = 0; i < 600; ++i)); do
    [[ -s "${folder}/address" ]] && break
    sleep 0.1
  done
  [[ -s "${folder}/address" ]] || { cat "${folder}"/node*.log; exit 1; }
  "${on1[@]}" "${PWD}/bazel-bin/orchestrator/sft" --config="${folder}/run.textproto" "${fields[@]}"
  echo "${name}:"
  grep -h "serving on" "${folder}"/node*.log
  jobs -p | xargs -r kill
  wait || true
}
free_port() { python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])'; }

check "one host" 127.0.0.1 "$(free_port)" "$(free_port)" env -- env --
if [[ "$(id -u)" != 0 ]]; then
  echo "two hosts: not checked, as root alone can make them"
  exit
fi
"${hosts}" up "${work}/hosts" 2 >"${work}/hosts.log" 2>&1 </dev/null
tests/cluster/certificates.sh "${work}" IP:10.77.0.1,IP:10.77.0.2 2>/dev/null
check "two hosts" 10.77.0.1 50052 29500 "${hosts}" run "${work}/hosts" 1 -- "${hosts}" run "${work}/hosts" 2 -- \
  --set=tls.{ca,cert}_file="${work}/cert.pem" --set=tls.key_file="${work}/key.pem"
