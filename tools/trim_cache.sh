#!/usr/bin/env bash
# Bazel's disk cache (.bazelrc) grows with each build and Bazel 4 takes nothing out of it. Where it holds more than
# SIZE (a number of GB), what has not been used for longest goes, until three quarters of that are left.
#
#   tools/trim_cache.sh SIZE [FOLDER]
set -euo pipefail
[[ "${1:-}" =~ ^[1-9][0-9]{0,5}$ ]] || { echo "trim_cache: the size is \"${1:-}\"; allowed: 1 to 999999, in GB" >&2; exit 2; }
limit=$(($1 * 1000 * 1000 * 1000))
folder="${2:-${HOME}/.cache/quartet/bazel-disk}"
[[ -d "${folder}" ]] || exit 0
# By when a file was last read or written, newest first; what is behind the bytes that stay goes. Builds beside this one
# take files away, too.
{ find "${folder}" -type f -printf '%A@ %T@ %s %p\0' 2>/dev/null || true; } |
  awk -v RS='\0' -v ORS='\0' '{
    used = $1 > $2 ? $1 : $2; path = $0; sub(/^[^ ]+ [^ ]+ [^ ]+ /, "", path); print used, $3, path
  }' | sort -z -r -g |
  awk -v RS='\0' -v ORS='\0' -v limit="${limit}" '{
    sum += $2; path = $0; sub(/^[^ ]+ [^ ]+ /, "", path); paths[NR] = path; before[NR] = sum
  } END {
    if (sum > limit) for (i = 1; i <= NR; i++) if (before[i] > limit * 3 / 4) print paths[i]
  }' | xargs -0 -r rm -f --
