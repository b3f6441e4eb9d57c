#include "core/rewards/programs/command.h"

#include <atomic>
#include <map>
#include <mutex>
#include <random>
#include <thread>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "core/base/status_macros.h"
#include "core/data/json.h"
#include "core/errors/shown.h"
#include "core/rewards/reply_json.h"
#include "core/service/process/piped_process.h"

namespace quartet {
namespace {

using nlohmann::json;

constexpr size_t kMostReplyBytes = 1 << 20;  // of one answer, and for each of its tokens
constexpr size_t kMostBytesOfANumber = 32;

absl::StatusOr<std::unique_ptr<PipedProcess>> Begin(const CommandOptions& options) {
  PipedProcessOptions start;
  start.argv = ShellArguments(options.command);
  start.folder = options.folder;
  start.limits.address_space_bytes = options.memory_limit_bytes;
  return PipedProcess::Start(start);
}

absl::Status Named(const std::string& command, const absl::Status& status) {
  return Prefixed(absl::StrCat("command ", Quoted(command)), status);
}

class Command final : public RewardFunction {
 public:
  Command(CommandOptions options, std::unique_ptr<PipedProcess> first)
      : options_(std::move(options)), first_(std::move(first)) {}

  absl::Status Check() override { return CheckFirst(kMoment); }

  // That the first process waits, while nobody has asked it anything: it is looked at for so long. Once it was found to
  // have ended that is the answer.
  absl::Status CheckFirst(absl::Duration time) {
    const std::lock_guard lock(mutex_);
    return Named(options_.command, LookAtFirst(time));
  }

  std::vector<absl::StatusOr<Reward>> Score(std::span<const Answer* const> answers, std::stop_token stop) override {
    std::vector<absl::StatusOr<Reward>> rewards;
    const size_t of_a_line = options_.in_lists ? answers.size() : 1;
    for (size_t begin = 0; begin < answers.size(); begin += of_a_line) {
      const auto asked = answers.subspan(begin, of_a_line);
      absl::StatusOr<std::vector<absl::StatusOr<Reward>>> said = Ask(asked, stop);
      for (size_t i = 0; i < asked.size(); ++i) {
        absl::StatusOr<Reward> reward = said.ok() ? std::move((*said)[i]) : said.status();
        rewards.push_back(reward.ok() ? std::move(reward) : Named(options_.command, reward.status()));
      }
    }
    return rewards;
  }

 private:
  // One line with questions, and one back. An error is that of all of them.
  absl::StatusOr<std::vector<absl::StatusOr<Reward>>> Ask(std::span<const Answer* const> answers,
                                                          const std::stop_token& stop) {
    QUARTET_ASSIGN_OR_RETURN(Program program, TakeMine());
    const Deadline deadline = Deadline::In(options_.timeout);
    if (program.process == nullptr) {
      QUARTET_ASSIGN_OR_RETURN(program.process, Begin(options_));
    }
    json questions = json::array();
    size_t most_reply_bytes = kMostReplyBytes * answers.size();
    for (const Answer* answer : answers) {
      questions.push_back(ToJson(*answer, options_.token_rewards));
      most_reply_bytes += kMostBytesOfANumber * answer->token_ids.size();
      questions.back()["id"] = ++asked_;
    }
    const absl::StatusOr<std::string> reply = program.process->Ask(
        PrintExactJson(options_.in_lists ? questions : questions.front()), most_reply_bytes, deadline, stop);
    if (absl::IsDeadlineExceeded(reply.status())) {
      return absl::DeadlineExceededError(
          absl::StrCat("no answer after ", absl::FormatDuration(options_.timeout), " (timeout_seconds)"));
    }
    if (absl::IsDataLoss(reply.status())) {
      return program.process->WithLastWords(OutOfStep(program, reply.status().message()));
    }
    if (!reply.ok()) return program.process->WithLastWords(WithHint(reply.status()));
    // Replies of {"error": ...} come from a program that is well; one that is not understood may not be.
    absl::StatusOr<json> said = ReadReplies(*reply, answers.size());
    if (!said.ok()) return program.process->WithLastWords(said.status());
    std::vector<absl::StatusOr<Reward>> rewards;
    for (size_t i = 0; i < answers.size(); ++i) {
      const json& one = (*said)[i];
      const bool named = one.is_object() && one.contains("id");
      if (named && one["id"] != questions[i]["id"]) {
        return OutOfStep(program, absl::StrCat("the reply ", Quoted(*reply), " is to another question than ",
                                               questions[i]["id"].dump(),
                                               ": it has answered one twice, or not at all, or in another order"));
      }
      rewards.push_back(ReadReward(one, options_.token_rewards ? answers[i] : nullptr));
      if (named || !rewards.back().ok()) {
        program.names_any |= named;
        continue;
      }
      program.names_all = false;
      // A line of somebody else who has its output: a program that it has started.
      if (program.names_any) {
        return absl::InternalError(absl::StrCat("the reply ", Quoted(*reply),
                                                " does not repeat the question's \"id\", as those before it did"));
      }
    }
    KeepMine(std::move(program));
    return rewards;
  }

  absl::StatusOr<json> ReadReplies(const std::string& reply, size_t count) const {
    if (!options_.in_lists) {
      QUARTET_ASSIGN_OR_RETURN(json one, ParseReply(reply, json::value_t::object, "{\"reward\": number}"));
      return json::array({std::move(one)});
    }
    const std::string shape = absl::StrCat("of ", count, ", an object {\"reward\": number} for each question");
    QUARTET_ASSIGN_OR_RETURN(json replies, ParseReply(reply, json::value_t::array, shape));
    if (replies.size() == count) return replies;
    return absl::InternalError(
        absl::StrCat("the reply ", Quoted(reply), " has ", replies.size(), " rewards for ", count, " questions"));
  }

  struct Program {
    std::unique_ptr<PipedProcess> process;
    bool names_all = true;  // each reward that it has given came with its question's id
    bool names_any = false;
  };

  // It has said something beside its replies. Those that do not say what they answer may then be other answers'.
  static absl::Status OutOfStep(const Program& program, absl::string_view how) {
    if (program.names_all) return absl::InternalError(how);
    return absl::DataLossError(absl::StrCat(
        how,
        "; rewards that it gave before may be those of other answers, since its replies do not repeat "
        "the \"id\" of the question: have them do so (docs/rewards.md), and it is an error of one answer"));
  }

  // Of a program that has ended: what helps where it is a file of functions that nobody calls.
  static absl::Status WithHint(const absl::Status& ended) {
    if (!absl::IsAborted(ended) || !absl::StrContains(ended.message(), "exit code 0")) return ended;
    return absl::Status(
        ended.code(),
        absl::StrCat(ended.message(),
                     "; a file that only defines a reward function is served by examples/rewards/reward_func.py"));
  }

  // This thread's; else the first, where nobody has it yet; else none.
  absl::StatusOr<Program> TakeMine() {
    const std::lock_guard lock(mutex_);
    auto mine = programs_.extract(std::this_thread::get_id());
    if (!mine.empty()) return std::move(mine.mapped());
    QUARTET_RETURN_IF_ERROR(LookAtFirst(kMoment));
    return Program{.process = std::move(first_)};
  }
  void KeepMine(Program program) {
    const std::lock_guard lock(mutex_);
    programs_[std::this_thread::get_id()] = std::move(program);
  }

  // With mutex_ held.
  absl::Status LookAtFirst(absl::Duration time) {
    if (first_ == nullptr || !first_is_wrong_.ok()) return first_is_wrong_;
    const absl::StatusOr<std::string> line = first_->ReadLine(kMostReplyBytes, Deadline::In(time), {});
    if (absl::IsDeadlineExceeded(line.status())) return absl::OkStatus();
    const std::string what = line.ok()
                                 ? absl::StrCat("has written ", Quoted(*line), ", and its output is for replies alone")
                                 : std::string(WithHint(line.status()).message());
    first_is_wrong_ = first_->WithLastWords(
        absl::InvalidArgumentError(absl::StrCat("before it was asked anything ", line.ok() ? "it " : "", what)));
    return first_is_wrong_;
  }

  static constexpr absl::Duration kMoment = absl::Milliseconds(2);

  const CommandOptions options_;
  // Ids that nobody guesses who does not see the questions.
  std::atomic<int64_t> asked_ = static_cast<int64_t>(std::random_device()()) << 20;
  std::mutex mutex_;
  std::unique_ptr<PipedProcess> first_;  // null once a thread has it
  absl::Status first_is_wrong_;
  std::map<std::thread::id, Program> programs_;  // by the thread that has started it
};

}  // namespace

absl::StatusOr<std::unique_ptr<RewardFunction>> NewCommand(const CommandOptions& options) {
  // One that is not there, or cannot run, has ended by then; others wait for a question, or still load.
  constexpr absl::Duration kAtOnce = absl::Milliseconds(300);
  absl::StatusOr<std::unique_ptr<PipedProcess>> first = Begin(options);
  if (!first.ok()) return Named(options.command, absl::InvalidArgumentError(first.status().message()));
  auto command = std::make_unique<Command>(options, *std::move(first));
  QUARTET_RETURN_IF_ERROR(command->CheckFirst(kAtOnce));
  return command;
}

}  // namespace quartet
