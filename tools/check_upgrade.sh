#!/bin/bash
# Replaces every service of a run of the last release by this tree's, and holds the run against one that was left alone.
#   tools/check_upgrade.sh [COMMIT]
# COMMIT: by default the one that made the last release (that changed VERSION last). Both trees are built. Ends with code 0
# where all services were replaced, no step was lost, and the final weights are bit for bit the same, or the two trees round
# otherwise: then their own runs, which nobody upgrades, differ, too.
set -euo pipefail
cd "$(dirname "$0")/.."
commit=${1:-$(git log -1 --format=%H -- VERSION)}
steps=120
work=$(mktemp -d)
trap 'jobs -p | xargs -r kill; (cd "$work/old" && ./bazelw shutdown) || true; git worktree remove --force "$work/old" 2>/dev/null || true; rm -rf "$work"' EXIT

bundle() { # TREE FOLDER: a bundle of a tree, unpacked
  (cd "$1" && ./bazelw build //deploy:bundle && mkdir -p "$2" && tar xzf bazel-bin/deploy/bundle.tar.gz -C "$2")
  "$2/quartet/quartet" --version
}
bundle . "$work/new"
git worktree add --detach "$work/old" "$commit"
bundle "$work/old" "$work/last"
old=$work/last/quartet/quartet

"$old" quickstart --run_dir="$work/start" >"$work/start.log"  # for its configuration and models
run() { # QUARTET FOLDER
  "$1" launch --config="$work/start/run.textproto" --set=run_dir="$2" --set=train.max_steps="$steps" \
    --set=train.save_optimizer=true --set=train.load_checkpoint=false --set=train.eval_steps=0
}
same_weights() { # FOLDER FOLDER
  for model in policy critic; do
    cmp {"$1","$2"}/checkpoints/latest/$model/model.safetensors || return
  done
}
run "$old" "$work/undisturbed" >"$work/undisturbed.log"
run "$old" "$work/upgraded" >"$work/upgraded.log" &
run_pid=$!
until [ -s "$work/upgraded/metrics.jsonl" ]; do kill -0 "$run_pid" || { cat "$work/upgraded.log"; exit 1; }; sleep 0.2; done
"$old" upgrade all --bundle="$work/new" "$work/upgraded"
wait "$run_pid"
made=$(wc -l <"$work/upgraded/metrics.jsonl")
[ "$made" = "$steps" ] || { echo "check_upgrade: $made steps were made instead of $steps"; exit 1; }
weights="the same weights"
if ! same_weights "$work/undisturbed" "$work/upgraded"; then
  run "$work/new/quartet/quartet" "$work/undisturbed_new" >"$work/undisturbed_new.log"
  ! same_weights "$work/undisturbed" "$work/undisturbed_new" || { echo "check_upgrade: the weights differ by the upgrade alone"; exit 1; }
  weights="weights that differ, as those of the two trees' own runs do"
fi
echo "check_upgrade: every service of $("$old" --version) was replaced by $("$work/new/quartet/quartet" --version); $steps steps, $weights"
