#!/usr/bin/env bash
# Each argument is NAME=FILE: the labels that something depends on. Of a service's programs: no service may depend on
# another one, nor on the orchestrator or the integration tests. Engines know no gRPC,
# and of a configuration their own section alone; OpenAI's interface knows neither a service nor gRPC; `libtorch_free` knows no LibTorch, and neither does the orchestrator, which
# reaches no service, no planner and nothing of deploy/; what shows a run reads its folder and knows no orchestrator.
set -euo pipefail
units=(rollout policy_trainer critic_trainer scorer orchestrator tests)
bad=0

refuse() {
  local file="$1" name="$2" pattern="$3"
  if grep "${pattern}" "${file}"; then
    echo "${name} depends on the above" >&2
    bad=1
  fi
}

for argument in "$@"; do
  name="${argument%%=*}"
  file="${argument#*=}"
  grep -q '^//core/' "${file}" || {
    echo "${file}: no //core label: the query did not run" >&2
    exit 1
  }
  case "${name}" in
    core_openai) refuse "${file}" "${name}" '^@libtorch//\|^@com_github_grpc_grpc//:grpc++$\|^//\(rollout\|policy_trainer\|critic_trainer\|scorer\|orchestrator\)[:/]' ;;
    engines)
      refuse "${file}" "${name}" '^@com_github_grpc_grpc//:grpc++$'
      refuse "${file}" "${name}" '^//core/config[:/]'
      ;;
    orchestrator) refuse "${file}" "${name}" '^@libtorch//\|^//\(rollout\|policy_trainer\|critic_trainer\|scorer\|planner\|deploy\)[:/]' ;;
    viewer) refuse "${file}" "${name}" '^//orchestrator[:/]' ;;
    libtorch_free) refuse "${file}" "${name}" '^@libtorch//' ;;
    *)
      # Only the shared protocol may connect two services.
      for unit in "${units[@]}"; do
        [[ "${unit}" == "${name}" ]] || refuse "${file}" "//${name}" "^//${unit}[:/]"
      done
      ;;
  esac
done
exit "${bad}"
