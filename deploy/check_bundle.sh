#!/usr/bin/env bash
# Lets a bundle train the quickstart's model on systems with nothing but their C and C++ libraries: Debian 12 and Ubuntu 22.04, made
# by mmdebstrap, without network. Needs mmdebstrap and bubblewrap, root, and a mirror of each.
#
#   deploy/check_bundle.sh [BUNDLE]
#
# DEBIAN_MIRROR, UBUNTU_MIRROR: other than the official ones.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

bundle=${1:-bazel-bin/deploy/bundle.tar.gz}
[[ -f $bundle ]] || { echo "check_bundle: there is no $bundle; ./bazelw build //deploy:bundle makes one" >&2; exit 2; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

check() {
  local name=$1 suite=$2 source=$3 root="$work/$1"
  # shellcheck disable=SC2086  # No source: mmdebstrap's own.
  mmdebstrap --quiet --variant=minbase --include=libstdc++6 "$suite" "$root" ${source:+"$source"} 2>"$work/log" || { cat "$work/log"; exit 1; }
  mkdir -p "$root/anywhere"
  tar xzf "$bundle" -C "$root/anywhere"
  local inside=(bwrap --bind "$root" / --proc /proc --dev /dev --tmpfs /tmp --unshare-net --die-with-parent --clearenv
    --setenv PATH /usr/bin:/bin --setenv HOME /root)
  "${inside[@]}" /anywhere/quartet/quartet --version
  local command
  for command in $(sed -n 's/^  \([a-z_| ]*\)) .*exec.*/\1/p' "$root/anywhere/quartet/quartet" | tr -d '|'); do
    "${inside[@]}" /anywhere/quartet/quartet "$command" --help >"$work/log" 2>&1 || { cat "$work/log"; exit 1; }
  done
  "${inside[@]}" --bind "$work" /runs /anywhere/quartet/quartet quickstart --run_dir="/runs/run_$name" >"$work/log" 2>&1 ||
    { tail -20 "$work/log"; exit 1; }
  grep "held-out problems solved" "$work/log"
  "${inside[@]}" --bind "$work" /runs /anywhere/quartet/quartet status "/runs/run_$name" | head -3
  # A second run by the command for whole runs, as a user's would be, and its plan.
  "${inside[@]}" --bind "$work" /runs /anywhere/quartet/quartet launch --config="/runs/run_$name/run.textproto" \
    --set="run_dir=/runs/again_$name" --set=train.max_steps=2 >"$work/log" 2>&1 || { tail -20 "$work/log"; exit 1; }
  "${inside[@]}" --bind "$work" /runs /anywhere/quartet/quartet plan --config="/runs/again_$name/run.textproto" --format=json |
    grep -c '"service"' | sed "s/^/ranks planned: /"
  echo "$name: passed"
}

check debian12 bookworm "${DEBIAN_MIRROR:+deb $DEBIAN_MIRROR bookworm main}"
check ubuntu22.04 jammy "deb [trusted=yes] ${UBUNTU_MIRROR:-http://archive.ubuntu.com/ubuntu} jammy main"
