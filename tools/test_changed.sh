#!/usr/bin/env bash
# Runs the tests that depend on what differs from a commit (default: where this branch left main), uncommitted and new
# files included.
#
#   tools/test_changed.sh [--list] [COMMIT] [bazel test options]
#
# --list prints the tests and runs none.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
list=
if [[ "${1:-}" == --list ]]; then
  list=1
  shift
fi
if (($#)) && [[ "$1" != --* ]]; then
  base="$(git rev-parse --verify --quiet "$1^{commit}")" || {
    echo "test_changed: '$1' is no commit" >&2
    exit 2
  }
  shift
else
  main=main
  git rev-parse --verify --quiet origin/main >/dev/null && main=origin/main
  base="$(git merge-base HEAD "${main}")"
fi

# One expression of `bazel query` a file: the file itself, or all of its package where the file is a BUILD file or gone.
expressions=()
labels=()
while IFS= read -r file; do
  case "${file}" in
    WORKSPACE | .bazelrc | .bazelversion | bazelw | *.bzl | third_party/*) expressions=("//...") && break ;;
  esac
  package="$(dirname "${file}")"
  while [[ "${package}" != . && ! -e "${package}/BUILD" ]]; do package="$(dirname "${package}")"; done
  if [[ "${package}" == . ]]; then
    name="${file}" package=
  else
    name="${file#"${package}/"}"
  fi
  if [[ "$(basename "${file}")" != BUILD && -e "${file}" ]]; then
    labels+=("//${package}:${name}")
  elif [[ -n "${package}" ]]; then
    expressions+=("//${package}:all")
  fi
done < <({ git diff --name-only --no-renames "${base}" && git ls-files --others --exclude-standard; } | sort -u)

# What stands in no BUILD file (this script, documents) has no label: Bazel then says so and exits with 3.
if ((${#labels[@]})) && [[ "${expressions[*]}" != "//..." ]]; then
  log="$(mktemp)"
  status=0
  known="$(./bazelw query --keep_going --noshow_progress "set(${labels[*]})" 2>"${log}")" || status=$?
  if ((status != 0 && status != 3)); then
    cat "${log}" >&2
    exit 1
  fi
  rm -f "${log}"
  # shellcheck disable=SC2206  # One expression a label.
  expressions+=(${known})
fi

if ((${#expressions[@]} == 0)); then
  echo "test_changed: no test depends on what differs from ${base:0:10}" >&2
  exit 0
fi
# Tests on a GPU cannot be asked for by name where they are not built.
left_out=manual
[[ " $* " == *" --config=cuda "* ]] || left_out='(manual|gpu)'
tests="$(./bazelw query --noshow_progress --ui_event_filters=-info "tests(rdeps(//..., set(${expressions[*]})))
  except attr(tags, '[\[ ]${left_out}[,\]]', //...)")"
if [[ -z "${tests}" ]]; then
  echo "test_changed: no test depends on what differs from ${base:0:10}" >&2
  exit 0
fi
if [[ -n "${list}" ]]; then
  echo "${tests}"
else
  # shellcheck disable=SC2086  # One argument a label.
  exec ./bazelw test "$@" ${tests}
fi
