#include "scorer/answer_sources.h"

#include <algorithm>
#include <string>
#include <thread>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "core/base/files/files.h"
#include "core/base/logging.h"
#include "core/base/status_macros.h"
#include "core/base/time/deadline.h"
#include "core/hardware/cores.h"
#include "core/rewards/labels/labels.h"
#include "core/rewards/programs/code.h"
#include "core/rewards/programs/command.h"
#include "core/rewards/programs/sandbox.h"
#include "core/rewards/remote/remote.h"
#include "core/rewards/rules/rules.h"

namespace quartet {
namespace {

absl::StatusOr<std::unique_ptr<RewardFunction>> NewRemote(const RewardSource& source) {
  RemoteOptions options;
  options.urls.assign(source.remote_url().begin(), source.remote_url().end());
  options.timeout = absl::Seconds(source.timeout_seconds());
  options.token_rewards = source.token_rewards();
  if (!source.api_key_file().empty()) {
    QUARTET_ASSIGN_OR_RETURN(options.api_key, ReadSecretFile(source.api_key_file()));
    if (options.api_key.empty() || options.api_key.find_first_of("\r\n") != std::string::npos) {
      return absl::InvalidArgumentError(absl::StrCat("api_key_file ", source.api_key_file(), " is not one line"));
    }
  }
  if (absl::StartsWith(options.urls[0], "grpc")) return NewGrpcRemote(options);
  return NewHttpRemote(std::move(options));
}

absl::StatusOr<std::unique_ptr<RewardFunction>> NewFunction(const RewardSource& source) {
  if (!source.remote_url().empty()) return NewRemote(source);
  const absl::Duration timeout = absl::Seconds(source.timeout_seconds());
  if (!source.command().empty()) {
    const CommandOptions options = {.command = source.command(),
                                    .folder = source.command_folder(),
                                    .timeout = timeout,
                                    .memory_limit_bytes = source.memory_limit_bytes(),
                                    .in_lists = source.has_max_batch_size(),
                                    .token_rewards = source.token_rewards()};
    return NewCommand(options);
  }
  if (!source.code().empty()) {
    QUARTET_RETURN_IF_ERROR(CheckSandbox());
    return NewCode({.share = source.code_score() == "share",
                    .limits = {.timeout = timeout, .memory_bytes = source.memory_limit_bytes()}});
  }
  return NewRule(source);
}

// What is behind the last `delimiter`, of the text that the model has written too; null where there is none.
std::shared_ptr<const Answer> WithoutReasoning(const Answer& answer, const std::string& delimiter) {
  const size_t at = answer.response.rfind(delimiter);
  if (at == std::string::npos) return nullptr;
  auto rest = std::make_shared<Answer>(answer);
  rest->response.erase(0, at + delimiter.size());
  const size_t written = rest->query.rfind(delimiter);
  if (written != std::string::npos && written >= answer.prompt.size()) {
    rest->query.erase(answer.prompt.size(), written + delimiter.size() - answer.prompt.size());
  }
  return rest;
}

WorkerPoolOptions PoolOptions(int index, const RewardSource& source) {
  WorkerPoolOptions options;
  options.name = absl::StrCat("reward.source[", index, "]", source.name().empty() ? "" : " ", source.name());
  options.workers = source.has_workers() ? source.workers() : AvailableCores();
  options.max_batch = std::max(1, source.max_batch_size());
  options.max_tries = std::max(1, source.max_tries());
  return options;
}

}  // namespace

absl::StatusOr<std::unique_ptr<AnswerSources>> AnswerSources::Create(const RewardConfig& config) {
  auto sources = std::make_unique<AnswerSources>();
  for (int i = 0; i < config.source_size(); ++i) {
    const RewardSource& source = config.source(i);
    if (!source.model().empty()) continue;
    QUARTET_ASSIGN_OR_RETURN(std::unique_ptr<RewardFunction> function,
                             Prefixed(absl::StrCat("reward.source[", i, "]"), NewFunction(source)));
    sources->pools_.push_back({i, source, std::make_unique<WorkerPool>(std::move(function), PoolOptions(i, source))});
  }
  return sources;
}

absl::Status AnswerSources::Check() const {
  absl::Status later;
  for (const Pool& pool : pools_) {
    const absl::Status status = Prefixed(absl::StrCat("reward.source[", pool.source, "]"), pool.workers->Check());
    if (!status.ok() && !absl::IsUnavailable(status)) return status;
    later.Update(status);
  }
  return later;
}

absl::Status AnswerSources::CheckFor(absl::Duration patience) const {
  constexpr absl::Duration kPause = absl::Milliseconds(200);
  const Deadline deadline = Deadline::In(patience);
  for (bool said = false;; said = true) {
    const absl::Status status = Check();
    if (!absl::IsUnavailable(status)) return status;
    if (deadline.passed()) {
      return absl::InvalidArgumentError(
          absl::StrCat(status.message(), "; no server of it could be reached for ", absl::FormatDuration(patience)));
    }
    if (!said) QUARTET_LOG(kWarning) << std::string(status.message()) << "; trying again";
    absl::SleepFor(kPause);
  }
}

int64_t AnswerSources::failed_tries() const {
  int64_t count = 0;
  for (const Pool& pool : pools_) count += pool.workers->failed_tries();
  return count;
}

void AnswerSources::Score(const std::shared_ptr<const Answer>& answer, const std::stop_token& stop,
                          const std::function<void(int, absl::StatusOr<Reward>)>& done) {
  for (Pool& pool : pools_) {
    if (!IsFor(pool.options, answer->source)) continue;
    const std::string& delimiter = pool.options.reasoning_delimiter();
    if (delimiter.empty()) {
      pool.workers->Submit(answer, stop, [done, source = pool.source](absl::StatusOr<Reward> reward) {
        done(source, std::move(reward));
      });
      continue;
    }
    std::shared_ptr<const Answer> final_answer = WithoutReasoning(*answer, delimiter);
    if (final_answer == nullptr) {
      done(pool.source, Reward{.value = 0, .extra_logs = {{kUnfinishedReasoning, 1}}});
      continue;
    }
    pool.workers->Submit(std::move(final_answer), stop, [done, source = pool.source](absl::StatusOr<Reward> reward) {
      if (reward.ok()) reward->extra_logs[kUnfinishedReasoning] = 0;
      done(source, std::move(reward));
    });
  }
}

}  // namespace quartet
