#!/usr/bin/env bash
# Runs clang-tidy (with .clang-tidy) on the C++ files that include no LibTorch header; those cost minutes each and are
# covered by the compiler's warnings. Files given as arguments: only those. Needs a built tree (generated headers).
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
if (($#)); then
  files=("$@")
else
  mapfile -t files < <(git ls-files '*.cc' | xargs grep -LE '#include [<"](ATen|c10|torch)/' | grep -v '_test\.cc$')
fi
bin="$(./bazelw info bazel-bin 2>/dev/null)"
external="$(./bazelw info output_base 2>/dev/null)/external"
# A result is kept by the hash of everything it depends on: the preprocessed file and the configuration.
cache="${HOME}/.cache/quartet/clang-tidy"
mkdir -p "${cache}"
export bin external cache
check() {
  local flags=(-std=c++20 -I. -I"${bin}" -isystem "${external}/libtorch/torch/include" -Wno-unknown-warning-option) key out
  key="$({ clang++ -E -P "${flags[@]}" "$1" 2>&1; cat "$1" .clang-tidy; } | sha256sum | cut -d' ' -f1)"
  [[ -e "${cache}/${key}" ]] && return 0
  if out="$(clang-tidy --quiet "$1" -- "${flags[@]}" 2>/dev/null)"; then
    : >"${cache}/${key}"
  else
    printf '%s\n' "${out}"
    return 1
  fi
}
export -f check
printf '%s\0' "${files[@]}" | xargs -0 -n 1 -P "$(nproc)" bash -c 'check "$0"'
