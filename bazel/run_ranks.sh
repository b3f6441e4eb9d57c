#!/usr/bin/env bash
# RANKS PROGRAM [ARGUMENT...]: starts a test once for each rank (core/comm/testing/rank_threads.h); the first decides.
# To NCCL each is a host of its own, so that they may have one GPU together (NCCL_ON_ONE_GPU in units.bzl).
set -u
export QUARTET_TEST_RANKS=$1
program=$2
shift 2
QUARTET_TEST_STORE=$(mktemp -d "${TEST_TMPDIR:-/tmp}/ranks.XXXXXX")
export QUARTET_TEST_STORE
others=()
for ((rank = 1; rank < QUARTET_TEST_RANKS; ++rank)); do
  QUARTET_TEST_RANK=$rank NCCL_HOSTID=rank$rank env -u XML_OUTPUT_FILE "$program" "$@" >"$QUARTET_TEST_STORE/$rank.log" 2>&1 &
  others+=($!)
done
QUARTET_TEST_RANK=0 NCCL_HOSTID=rank0 "$program" "$@"
result=$?
kill "${others[@]}" 2>/dev/null
wait
if ((result != 0)); then tail -n 60 "$QUARTET_TEST_STORE"/*.log; fi
exit $result
