#!/usr/bin/env bash
# Builds everything in the CUDA configuration; arguments are flags of Bazel. Needs the CUDA toolkit (CUDA_PATH, default /usr/local/cuda); no GPU.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
[[ -x "${CUDA_PATH:-/usr/local/cuda}/bin/nvcc" ]] || {
  echo "check_cuda: no nvcc under ${CUDA_PATH:-/usr/local/cuda}; set CUDA_PATH to the toolkit's folder" >&2
  exit 1
}
exec ./bazelw build --config=cuda "$@" -- //...
