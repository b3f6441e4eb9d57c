#!/usr/bin/env bash
# Starts the policy trainer under the real torchrun as two nodes of one rank each on this host, fine-tunes with it, and
# ends it.
#
# usage: check_torchrun.sh TORCHRUN MODEL    (torchrun of torch 2.11.0; a Hugging Face folder of a small model)
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
torchrun="$1"
model="$2"
./bazelw build //policy_trainer //orchestrator/... >/dev/null 2>&1
work="$(mktemp -d)"
trap 'kill $(jobs -p) 2>/dev/null; rm -rf "${work}"' EXIT
port="$(python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')"
store="$(python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')"
for i in 1 2 3 4 5 6 7 8; do echo "{\"prompt\": \"sort dbeac=\", \"response\": \"abcde\"}"; done >"${work}/sft.jsonl"
cat >"${work}/run.textproto" <<TEXT
run_dir: "${work}/run"
data { prompt_max_len: 32 }
rollout { generate_max_len: 16 }
actor { pretrain: "${model}" dtype: "fp32" }
sft { data: "${work}/sft.jsonl" batch_size: 4 max_steps: 4 }
services { policy_trainer { ranks: 2 listen: "127.0.0.1:${port}" } }
TEXT
for node in 0 1; do
  "${torchrun}" --nnodes=2 --nproc-per-node=1 --node-rank="${node}" --master-addr=127.0.0.1 --master-port="${store}" \
    --no-python bazel-bin/policy_trainer/policy_trainer --config="${work}/run.textproto" \
    --address_file="${work}/address" >"${work}/node${node}.log" 2>&1 &
done
for ((i = 0; i < 600; ++i)); do
  [[ -s "${work}/address" ]] && break
  sleep 0.1
done
[[ -s "${work}/address" ]] || { cat "${work}"/node*.log; exit 1; }
bazel-bin/orchestrator/sft --config="${work}/run.textproto"
grep -h "serving on" "${work}"/node*.log
