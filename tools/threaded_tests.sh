#!/usr/bin/env bash
# Prints the LibTorch-free tests that have more than one thread: those that are built of a file that begins one, or that
# serves or calls over gRPC or HTTP, whose libraries do. ThreadSanitizer finds something in no other.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

mapfile -t files < <(git grep -lE \
  'std::(jthread|thread)\b([^:]|$)|std::async\b|pthread_create|grpcpp/|\.grpc\.pb\.h|microhttpd|curl/' -- '*.h' '*.cc')
exec ./bazelw query --noshow_progress --ui_event_filters=-info \
  "kind(cc_test, rdeps(//..., set(${files[*]}))) except attr(tags, '\\b(torch|gpu)\\b', //...)"
