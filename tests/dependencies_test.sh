#!/usr/bin/env bash
# Each argument is SERVICE=FILE: the labels that the service's binaries depend on. No service may depend on another one,
# nor on the orchestrator or the integration tests.
set -euo pipefail
units=(rollout policy_trainer critic_trainer scorer orchestrator tests)
bad=0
for argument in "$@"; do
  service="${argument%%=*}"
  file="${argument#*=}"
  grep -q '^//core/' "${file}" || {
    echo "${file}: no //core label: the query did not run" >&2
    exit 1
  }
  for unit in "${units[@]}"; do
    [[ "${unit}" == "${service}" ]] && continue
    # Only the shared protocol may connect two services.
    if grep "^//${unit}[:/]" "${file}"; then
      echo "//${service} depends on //${unit}" >&2
      bad=1
    fi
  done
done
exit "${bad}"
