#!/usr/bin/env bash
# Runs clang-tidy (with .clang-tidy) on the C++ files, their headers included. Left out: tests, benchmarks, and files that reach a
# header of LibTorch, NCCL or Arrow (minutes each; the compiler's warnings cover them). Files given as arguments: only those.
# Fails on findings and on whatever keeps clang-tidy from looking at a file.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

# Headers that the build generates. What Bazel says of it matters only where it fails.
quietly() { "$@" 2>"${log}" || { cat "${log}" >&2; return 1; }; }
log="$(mktemp)"
trap 'rm -f "${log}"' EXIT
generated="$(quietly ./bazelw query 'kind("cc_proto_library|_grpc_codegen|genrule", //...)')"
# shellcheck disable=SC2086  # One argument a label.
quietly ./bazelw build --ui_event_filters=-info ${generated}  # bazel-bin now leads to where they are

if (($#)); then
  files=("$@")
else
  mapfile -t files < <(git ls-files '*.cc' ':!:*_test.cc' ':!:*_benchmark.cc')
fi

# What was found clean is kept by the hash of all it depends on: the file with its headers, the configuration, the tool.
cache="${HOME}/.cache/quartet/clang-tidy"
mkdir -p "${cache}"
flags="-std=c++20 -Wall -Wno-sign-compare -I. -isystem bazel-bin"
tool="$(clang-tidy --version | head -n 1) ${flags} $(cat .clang-tidy)"
export cache flags tool

check() {
  local file="$1" scratch key status=0
  scratch="$(mktemp -d)"
  # shellcheck disable=SC2086,SC2064
  trap "rm -rf '${scratch}'" RETURN
  # shellcheck disable=SC2086
  if ! g++ -E -C -fdirectives-only ${flags} "${file}" >"${scratch}/source" 2>"${scratch}/errors"; then
    # LibTorch's, NCCL's and Arrow's headers are not on the path: a file that needs one ends here.
    grep -qE 'fatal error: (ATen|c10|torch|nccl|arrow|parquet)[/.][^ ]*: No such file' "${scratch}/errors" && return 0
    cat "${scratch}/errors"
    return 1
  fi
  key="$({ printf '%s' "${tool}"; cat "${scratch}/source"; } | sha256sum | cut -d' ' -f1)"
  [[ -e "${cache}/${key}" ]] && return 0
  # shellcheck disable=SC2086
  clang-tidy --quiet "${file}" -- ${flags} >"${scratch}/findings" 2>"${scratch}/errors" || status=$?
  if ((status == 0)) && [[ ! -s "${scratch}/findings" ]]; then
    : >"${cache}/${key}"
    return 0
  fi
  { cat "${scratch}/findings"; grep -vE '^[0-9]+ (warnings?|errors?)( and [0-9]+ errors?)? generated\.$' "${scratch}/errors"; } || true
  return 1
}
export -f check
printf '%s\0' "${files[@]}" | xargs -0 -n 1 -P "$(nproc)" bash -c 'check "$0"'
