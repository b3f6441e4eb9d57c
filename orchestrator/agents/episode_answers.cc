#include "orchestrator/agents/episode_answers.h"

#include <errno.h>
#include <fcntl.h>

#include <algorithm>
#include <iterator>
#include <mutex>
#include <optional>
#include <stop_token>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/files/fd.h"
#include "core/base/files/files.h"
#include "core/base/status_macros.h"
#include "core/config/batches/call_sizes.h"
#include "core/config/services.h"
#include "core/errors/shown.h"
#include "core/model/model_config.h"
#include "orchestrator/answers/rollout_answers.h"

namespace quartet {
namespace {

TokenSequence TokensOf(const EpisodeSequence& sequence) {
  TokenSequence tokens;
  tokens.mutable_ids()->Assign(sequence.ids.begin(), sequence.ids.end());
  tokens.mutable_action_mask()->Assign(sequence.is_action.begin(), sequence.is_action.end());
  return tokens;
}

PromptAnswer AnswerOf(PlayedEpisode episode, const EpisodePlace& place) {
  PromptAnswer answer = {.prompt = static_cast<uint64_t>(place.row), .sample = static_cast<uint64_t>(place.sample)};
  if (!episode.dropped.ok()) {
    answer.error = std::string(episode.dropped.message());
    return answer;
  }
  EpisodeRecord& record = episode.record;
  for (const EpisodeSequence& sequence : record.sequences) {
    answer.sequences.push_back(TokensOf(sequence));
    answer.log_probs.insert(answer.log_probs.end(), sequence.log_probs.begin(), sequence.log_probs.end());
    answer.sampled_log_probs.insert(answer.sampled_log_probs.end(), sequence.sampled_log_probs.begin(),
                                    sequence.sampled_log_probs.end());
  }
  answer.conversation = OneLineJson(record.conversation);
  answer.response = std::move(record.response);
  answer.truncated = record.truncated;
  answer.overlong = record.overlong;
  answer.agent = std::move(episode.reward);
  return answer;
}

// What is known of requests, from any thread.
struct Notices {
  std::mutex mutex;
  std::vector<std::string> texts;
};

class EpisodeAnswers final : public AnswerSource {
 public:
  // `lost` is cancelled where the rollout is gone; the server tells `notices`.
  EpisodeAnswers(const RunConfig& config, std::unique_ptr<EpisodeServer> server, Fd log, Cancellation* cancellation,
                 std::shared_ptr<Cancellation> lost, std::shared_ptr<Notices> notices)
      : config_(config),
        server_(std::move(server)),
        log_(std::move(log)),
        runs_(config, server_.get(), log_.get()),
        cancellation_(*cancellation),
        lost_(std::move(lost)),
        notices_(std::move(notices)) {}

  absl::StatusOr<std::vector<PromptAnswer>> Draw(const DrawPlace& place, const GenerateHeader& header,
                                                 const std::vector<const PromptRecord*>& prompts, int64_t first,
                                                 const AnswerFunction& on_answer) override;
  bool comes_in_a_call() const override { return false; }
  bool may_drop() const override { return config_.agent().on_error() == "drop"; }
  void TakeMetrics(Metrics* metrics) override { std::exchange(metrics_, {}).AddTo(metrics); }
  std::vector<std::string> TakeWarnings() override;

 private:
  const RunConfig& config_;
  const std::unique_ptr<EpisodeServer> server_;
  const Fd log_;
  EpisodeRuns runs_;
  Cancellation& cancellation_;
  const std::shared_ptr<Cancellation> lost_;
  const std::shared_ptr<Notices> notices_;
  EpisodeMetrics metrics_;
  std::string retried_;  // why the last try has failed after which an episode was played again
  int64_t retries_ = 0;  // such episodes since warnings were taken
};

std::vector<std::string> EpisodeAnswers::TakeWarnings() {
  std::vector<std::string> warnings;
  {
    const std::lock_guard lock(notices_->mutex);
    warnings.swap(notices_->texts);
  }
  if (const int64_t retries = std::exchange(retries_, 0); retries > 0) {
    warnings.push_back(absl::StrCat(retries, retries == 1 ? " episode was" : " episodes were",
                                    " played again, as a try had failed: ", std::exchange(retried_, "")));
  }
  return warnings;
}

absl::StatusOr<std::vector<PromptAnswer>> EpisodeAnswers::Draw(const DrawPlace& place, const GenerateHeader& header,
                                                               const std::vector<const PromptRecord*>& prompts,
                                                               int64_t first, const AnswerFunction& on_answer) {
  const auto samples = static_cast<size_t>(header.sampling().n_samples());
  std::vector<EpisodeTask> tasks;
  for (size_t row = 0; row < prompts.size(); ++row) {
    for (size_t sample = 0; sample < samples; ++sample) {
      EpisodeTask& task = tasks.emplace_back();
      task.prompt = prompts[row];
      task.place = {place.step, place.set, static_cast<int64_t>(row), static_cast<int64_t>(sample)};
      task.seed = EpisodeSeed(header.sampling().seed(), task.place);
    }
  }
  server_->SetGeneration(header);

  const bool all = first == std::ssize(prompts);
  std::vector<std::vector<PromptAnswer>> answers(prompts.size());  // of each prompt as they come
  std::vector<size_t> taken, with_failures;                        // prompts that have all of theirs
  const auto tell = [&](size_t row) -> absl::Status {
    taken.push_back(row);
    for (size_t i = 0; !all && i < samples; ++i) QUARTET_RETURN_IF_ERROR(on_answer(answers[row][i]));
    return absl::OkStatus();
  };
  const auto take = [&](PlayedEpisode episode) -> absl::StatusOr<bool> {
    metrics_.Add(episode);
    if (episode.dropped.ok() && !episode.failed.empty()) {
      ++retries_;
      retried_ = absl::StrCat(tasks[episode.task].prompt->place, ": ", episode.why_failed);
    }
    const EpisodeTask& task = tasks[episode.task];
    std::vector<PromptAnswer>& of_prompt = answers[task.place.row];
    of_prompt.push_back(AnswerOf(std::move(episode), task.place));
    // Of a prompt that may be given up, nothing is told before all of it is there.
    if (all) QUARTET_RETURN_IF_ERROR(on_answer(of_prompt.back()));
    if (of_prompt.size() < samples) return true;
    // Episodes that fail are often the first to end: their prompts are taken last.
    const auto row = static_cast<size_t>(task.place.row);
    if (std::ranges::any_of(of_prompt, [](const PromptAnswer& answer) { return !answer.error.empty(); })) {
      with_failures.push_back(row);
    } else {
      QUARTET_RETURN_IF_ERROR(tell(row));
    }
    return std::ssize(taken) < first;
  };
  std::stop_source stop;
  const auto end = [&stop] { stop.request_stop(); };
  const Cancellation::Scope on_cancel(&cancellation_, end), on_loss(lost_.get(), end);
  const absl::Status played = runs_.Play(tasks, take, stop.get_token());
  if (stop.stop_requested()) {
    QUARTET_RETURN_IF_ERROR(cancellation_.status());
    QUARTET_RETURN_IF_ERROR(lost_->status());
  }
  QUARTET_RETURN_IF_ERROR(played);
  for (size_t i = 0; std::ssize(taken) < first; ++i) QUARTET_RETURN_IF_ERROR(tell(with_failures.at(i)));

  std::ranges::sort(taken);
  std::vector<PromptAnswer> drawn;
  for (const size_t row : taken) {
    std::ranges::sort(answers[row], {}, &PromptAnswer::sample);
    std::ranges::move(answers[row], std::back_inserter(drawn));
  }
  return drawn;
}

}  // namespace

absl::StatusOr<std::unique_ptr<AnswerSource>> MakeAnswerSource(const RunConfig& config, const Tokenizer* tokenizer,
                                                               RolloutClient* rollout, Cancellation* cancellation) {
  if (!HasAgent(config)) return std::make_unique<RolloutAnswers>(rollout, tokenizer);
  QUARTET_ASSIGN_OR_RETURN(const ModelConfig model, ReadModelConfig(config.rollout().pretrain()));
  EpisodeServerOptions options;
  options.episode.tokenizer = tokenizer;
  options.episode.vocab_size = tokenizer->vocab_size();
  options.episode.model = "policy";
  options.episode.end_token_ids = {model.eos_token_ids.begin(), model.eos_token_ids.end()};
  for (const int32_t id : config.rollout().stop_token_ids()) options.episode.end_token_ids.push_back(id);
  options.episode.max_len = LongestSequence(config);
  options.episode.max_turns = config.agent().max_turns();
  auto lost = std::make_shared<Cancellation>();
  options.episode.generate = [rollout, lost](const GenerateHeader& header, const Prompt& prompt,
                                             const std::stop_token& stop) -> absl::StatusOr<GeneratedSequence> {
    absl::StatusOr<std::vector<GeneratedSequence>> answer = rollout->Generate(header, {prompt}, stop);
    if (answer.ok()) return std::move(answer->front());
    if (absl::IsUnavailable(answer.status())) lost->Cancel(answer.status());
    return answer.status();
  };
  // What one engine draws at the same time, though as many as there are processes, each of which may wait for one.
  options.max_calls =
      std::clamp(config.rollout().max_num_seqs(), config.agent().processes(), config.rollout().max_calls());
  auto notices = std::make_shared<Notices>();
  options.notice = [notices](const std::string& notice) {
    const std::lock_guard lock(notices->mutex);
    notices->texts.push_back(notice);
  };
  const std::string log = config.run_dir() + "/logs/agent.log";
  QUARTET_RETURN_IF_ERROR(MakeDirs(config.run_dir() + "/logs"));
  Fd log_fd(open(log.c_str(), O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0666));
  if (!log_fd.is_open()) return absl::ErrnoToStatus(errno, absl::StrCat("cannot write ", log));
  QUARTET_ASSIGN_OR_RETURN(std::unique_ptr<EpisodeServer> server, EpisodeServer::Start(std::move(options)));
  return std::make_unique<EpisodeAnswers>(config, std::move(server), std::move(log_fd), cancellation, std::move(lost),
                                          std::move(notices));
}

}  // namespace quartet
