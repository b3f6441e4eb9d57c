#!/usr/bin/env bash
# What programs of --config=cuda need beside LibTorch and NVIDIA's driver: the libraries that the wheel of torch names,
# pinned as in WORKSPACE. Installs them once (2.6 GB) into FOLDER, and prints its folders for LD_LIBRARY_PATH:
#
#   export LD_LIBRARY_PATH="$(tools/cuda_libraries.sh)"
#   ./bazelw run --config=cuda //orchestrator -- --launch --config=run.textproto
#
#   tools/cuda_libraries.sh [FOLDER]    (~/.cache/quartet/cuda)
set -euo pipefail
folder="${1:-${HOME:-$(getent passwd "$(id -u)" | cut -d: -f6)}/.cache/quartet/cuda}"
mkdir -p "${folder}"
folder="$(cd "${folder}" && pwd)"
requirements="$(mktemp)"
trap 'rm -f "${requirements}"' EXIT
cat >"${requirements}" <<'LIST'
nvidia-cublas==13.1.0.3 --hash=sha256:ee8722c1f0145ab246bccb9e452153b5e0515fd094c3678df50b2a0888b8b171
nvidia-cuda-nvrtc==13.0.88 --hash=sha256:ad9b6d2ead2435f11cbb6868809d2adeeee302e9bb94bcf0539c7a40d80e8575
nvidia-cudnn-cu13==9.19.0.56 --hash=sha256:d20e1734305e9d68889a96e3f35094d733ff1f83932ebe462753973e53a572bf
nvidia-cufft==12.0.0.61 --hash=sha256:6c44f692dce8fd5ffd3e3df134b6cdb9c2f72d99cf40b62c32dde45eea9ddad3
nvidia-cufile==1.15.1.6 --hash=sha256:08a3ecefae5a01c7f5117351c64f17c7c62efa5fffdbe24fc7d298da19cd0b44
nvidia-curand==10.4.0.35 --hash=sha256:1aee33a5da6e1db083fe2b90082def8915f30f3248d5896bcec36a579d941bfc
nvidia-cusolver==12.0.4.66 --hash=sha256:0a759da5dea5c0ea10fd307de75cdeb59e7ea4fcb8add0924859b944babf1112
nvidia-cusparse==12.6.3.3 --hash=sha256:2b3c89c88d01ee0e477cb7f82ef60a11a4bcd57b6b87c33f789350b59759360b
nvidia-cusparselt-cu13==0.8.0 --hash=sha256:25e30a8a7323935d4ad0340b95a0b69926eee755767e8e0b1cf8dd85b197d3fd
nvidia-nccl-cu13==2.28.9 --hash=sha256:e4553a30f34195f3fa1da02a6da3d6337d28f2003943aa0a3d247bbc25fefc42
nvidia-nvjitlink==13.0.88 --hash=sha256:13a74f429e23b921c1109976abefacc69835f2f433ebd323d3946e11d804e47b
nvidia-nvshmem-cu13==3.4.5 --hash=sha256:290f0a2ee94c9f3687a02502f3b9299a9f9fe826e6d0287ee18482e78d495b80
LIST
if ! cmp -s "${requirements}" "${folder}/requirements.txt"; then
  python3 -m pip install --quiet --no-deps --no-compile --only-binary=:all: --require-hashes --upgrade \
    --requirement "${requirements}" --target "${folder}" >&2
  cp "${requirements}" "${folder}/requirements.txt" # last: what is there is whole
fi
libraries=("${folder}"/nvidia/*/lib)
(IFS=: && echo "${libraries[*]}${LD_LIBRARY_PATH:+:${LD_LIBRARY_PATH}}")
