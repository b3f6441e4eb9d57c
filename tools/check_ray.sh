#!/usr/bin/env bash
# Runs of launch --engine=ray on a Ray cluster of three nodes on this host. Installs Ray (286 MB, Python 3.11) into a folder of its own.
#
# usage: check_ray.sh [FOLDER]     (where Ray is kept; default ~/.cache/quartet/ray)
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
folder="${1:-${HOME}/.cache/quartet/ray}"
if [[ ! -e "${folder}/installed" ]]; then
  python3 -m venv --clear "${folder}"
  "${folder}/bin/pip" install --quiet --disable-pip-version-check --no-deps --only-binary=:all: --require-hashes \
    -r deploy/ray/requirements.txt
  touch "${folder}/installed"
fi
./bazelw build //orchestrator:launch //orchestrator:quickstart //orchestrator:upgrade
exec "${folder}/bin/python" tools/check_ray.py bazel-bin
