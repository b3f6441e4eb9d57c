#!/usr/bin/env bash
# Fails where a C++ file is not as clang-format (with .clang-format) would write it. `--fix` writes it so.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
mode=(--dry-run -Werror)
[[ "${1:-}" == --fix ]] && mode=(-i)
git ls-files -z '*.cc' '*.h' '*.cu' '*.cuh' | xargs -0 clang-format "${mode[@]}"
