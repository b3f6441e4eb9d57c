#!/usr/bin/env bash
# Runs clang-tidy (with .clang-tidy) on the C++ files, their headers included, by unit (bazel/units.bzl); findings name the
# file. Left out: tests, benchmarks, and files that reach a header of LibTorch, NCCL or Arrow (minutes each; the compiler's
# warnings cover them). Files given as arguments: only those, each by itself.
# Fails on findings and on whatever keeps clang-tidy from looking at a file.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

# Files that no rule has, folders in a circle.
tools/check_folders.py

# What the build generates: headers, units. What Bazel says of it matters only where it fails.
quietly() { "$@" 2>"${log}" || { cat "${log}" >&2; return 1; }; }
log="$(mktemp)"
sums="$(mktemp)"
trap 'rm -f "${log}" "${sums}"' EXIT
generated="$(quietly ./bazelw query 'kind("_proto_codegen|genrule", //...) except attr(tags, "\bmanual\b", //...)')"
# shellcheck disable=SC2086  # One argument a label.
quietly ./bazelw build --ui_event_filters=-info ${generated} @clang_tidy//:clang_tidy/data/bin/clang-tidy
# bazel-bin now leads to where they are.
clang_tidy="$(quietly ./bazelw info output_base)/external/clang_tidy/clang_tidy/data/bin/clang-tidy"

# What was found clean is kept by the hash of all it depends on: the file with its headers, the configuration, the tool;
# and under the file's name, which headers those were.
cache="${HOME}/.cache/quartet/clang-tidy"
mkdir -p "${cache}/files"
# Headers of the sanitizers are g++'s. What is deprecated g++ says as well, and not of the standard library.
flags="-std=c++20 -Wall -Wno-sign-compare -Wno-deprecated-declarations -I. -isystem bazel-bin"
flags+=" -idirafter $(g++ -print-file-name=include)"
tool="$("${clang_tidy}" --version) ${flags} $(cat .clang-tidy)"
export cache clang_tidy flags sums tool

# The files of a unit, with the line of the unit that each begins after.
parts() { sed -n 's/^#line 1 "\(.*\)"$/\1/;T;=;p' "$1" | paste - -; }

# Writes the names of all files that one reads. Exit code 2: it asks for a header that is not on the path.
list_files() {
  # shellcheck disable=SC2086
  g++ -M ${flags} "$1" >"$2.rule" 2>"$3" && { tr -s ' \\\n' '\n' <"$2.rule" | tail -n +2 >"$2"; return 0; }
  grep -qE 'fatal error: (ATen|c10|torch|nccl|arrow|parquet)[/.][^ ]*: No such file' "$3" && return 2
  return 1
}

# Of the contents of the files that are named in one.
hash_of() { { printf '%s' "${tool}"; xargs -a "$1" sha256sum 2>&1; } | sha256sum | cut -d' ' -f1; }

# The same by `sums`, where files that are gone make it another.
known_hash_of() {
  local lines='NR == FNR { sum[$2] = $0; next } { print $1 in sum ? sum[$1] : "none of " $1 }'
  { printf '%s' "${tool}"; awk "${lines}" "${sums}" "$1"; } | sha256sum | cut -d' ' -f1
}

check() {
  local file="$1" scratch known clean status=0
  known="${cache}/files/$(printf '%s' "${file}" | sha256sum | cut -d' ' -f1)"
  [[ -e "${known}" && -e "${cache}/$(known_hash_of "${known}")" ]] && return 0
  scratch="$(mktemp -d)"
  # shellcheck disable=SC2064
  trap "rm -rf '${scratch}'" RETURN
  list_files "${file}" "${scratch}/files" "${scratch}/errors" || status=$?
  if ((status == 2)) && [[ "${file}" == *_unit.cc ]]; then
    # Some of its files may do without.
    local part failed=0
    while read -r _ part; do check "${part}" || failed=1; done < <(parts "${file}")
    return "${failed}"
  fi
  ((status == 2)) && return 0
  ((status == 0)) || { cat "${scratch}/errors"; return 1; }
  cp "${scratch}/files" "${known}"
  clean="${cache}/$(hash_of "${known}")"
  [[ -e "${clean}" ]] && return 0
  # shellcheck disable=SC2086
  "${clang_tidy}" --quiet "${file}" -- ${flags} >"${scratch}/findings" 2>"${scratch}/errors" || status=$?
  if ((status == 0)) && [[ ! -s "${scratch}/findings" ]]; then
    : >"${clean}"
    return 0
  fi
  {
    # Lines of the unit as lines of its files.
    parts "${file}" | awk -v unit="${file##*/}" '
      FILENAME == "-" { begin[++n] = $1; name[n] = $2; next }
      match($0, "[^ ]*" unit ":[0-9]+:") {
        place = substr($0, RSTART, RLENGTH - 1); line = place; sub(/.*:/, "", line); line += 0
        for (i = n; i > 0 && begin[i] >= line; --i) {}
        if (i > 0) $0 = substr($0, 1, RSTART - 1) name[i] ":" line - begin[i] substr($0, RSTART + RLENGTH - 1)
      }
      { print }' - "${scratch}/findings"
    grep -vE '^[0-9]+ (warnings?|errors?)( and [0-9]+ errors?)? generated\.$' "${scratch}/errors"
  } || true
  return 1
}
export -f check parts list_files hash_of known_hash_of

if (($#)); then
  files=("$@")
else
  mapfile -t units < <(./bazelw query --noshow_progress --ui_event_filters=-info,-stderr \
    'filter("_unit$", kind(genrule, //...))' | sed 's|^//|bazel-bin/|;s|:|/|;s|$|.cc|')
  # Neither of what protoc wrote nor of tests.
  mapfile -t units < <(grep -LE '^#line 1 "(bazel-out/.*|.*_test\.cc"$)' "${units[@]}")
  ((${#units[@]})) || { echo "check_lint: no unit found" >&2; exit 1; }
  # What stands in no unit: programs, files that are compiled apart.
  mapfile -t files < <(comm -23 <(git ls-files '*.cc' ':!:*_test.cc' ':!:*_benchmark.cc' | sort) \
    <(for unit in "${units[@]}"; do parts "${unit}" | cut -f2; done | sort))
  files+=("${units[@]}")
fi
# Each header once, which many of them read.
find "${cache}/files" -type f -exec cat {} + | sort -u | { xargs sha256sum 2>/dev/null || true; } >"${sums}"
printf '%s\0' "${files[@]}" | xargs -0 -n 1 -P "$(nproc)" bash -c 'check "$0"'
