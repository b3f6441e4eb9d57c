#include "orchestrator/agents/agent_process.h"

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <map>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "core/base/files/open_files.h"
#include "core/base/status_macros.h"
#include "core/data/json.h"
#include "core/errors/shown.h"
#include "core/field_rules/field_rules.h"
#include "core/rewards/reply_json.h"

namespace quartet {
namespace {

using nlohmann::json;
using nlohmann::ordered_json;

// Of an answer; of a process that is not kept with all that it prints before.
constexpr size_t kMostAnswerBytes = size_t{16} << 20;

// Descriptors of this process that one of the agent takes while it is started, and for its connection; and those of all
// else, at the least and at ease.
constexpr int64_t kFilesOfAProcess = 10, kLeastOtherFiles = 128, kOtherFiles = 4096;

// How long after an episode was given up its process may write its line, and one that is to end may take for that; and
// the time in which a line is read.
constexpr absl::Duration kPatience = absl::Seconds(5), kLook = absl::Seconds(1);

// Clients of HTTP go by either name, and send to a proxy what neither names.
std::map<std::string, std::string> WithoutProxy() {
  std::map<std::string, std::string> environment;
  for (const char* name : {"NO_PROXY", "no_proxy"}) {
    const char* const own = std::getenv(name);
    const std::string_view before = own == nullptr ? "" : own;
    environment[name] = absl::StrCat(std::string(before), before.empty() ? "" : ",", "127.0.0.1,localhost");
  }
  return environment;
}

// `flags` of the shell. ABORTED where there is no room for it now, INVALID_ARGUMENT where the folder cannot be entered.
absl::StatusOr<std::unique_ptr<PipedProcess>> Start(const AgentConfig& config, const std::string& flags, int log,
                                                    const std::map<std::string, std::string>& more = {}) {
  PipedProcessOptions options;
  options.error_copy_fd = log;
  options.argv = {"/bin/sh", flags, config.command()};
  options.folder = config.command_folder();
  options.environment = WithoutProxy();
  options.environment.insert(more.begin(), more.end());
  absl::StatusOr<std::unique_ptr<PipedProcess>> process = PipedProcess::Start(options);
  if (process.ok()) return process;
  const absl::Status& why = process.status();
  if (absl::IsResourceExhausted(why) || absl::IsUnavailable(why)) {
    return absl::AbortedError(absl::StrCat("it could not be started: ", why.message()));
  }
  return absl::InvalidArgumentError(why.message());
}

// The last line that says something.
std::string_view LastLine(std::string_view output) {
  while (!output.empty() && absl::ascii_isspace(static_cast<unsigned char>(output.back()))) output.remove_suffix(1);
  const size_t end = output.rfind('\n');
  return end == std::string_view::npos ? output : output.substr(end + 1);
}

// Of one that is not kept: it is not started, as it might not wait for a line.
absl::Status IsCommand(const AgentConfig& config) {
  QUARTET_ASSIGN_OR_RETURN(const std::unique_ptr<PipedProcess> shell, Start(config, "-nc", STDERR_FILENO));
  QUARTET_ASSIGN_OR_RETURN(const PipedProcess::Outcome outcome,
                           shell->Finish("", kMostAnswerBytes, Deadline::In(absl::Minutes(1)), {}));
  if (outcome.exit.ok()) return absl::OkStatus();
  return shell->WithLastWords(
      absl::InvalidArgumentError(absl::StrCat("the shell does not read it: ", outcome.exit.Describe())));
}

absl::Status WaitsForEpisodes(const AgentConfig& config) {
  constexpr absl::Duration kMoment = absl::Milliseconds(300);
  QUARTET_ASSIGN_OR_RETURN(const std::unique_ptr<PipedProcess> process, Start(config, "-c", STDERR_FILENO));
  const absl::StatusOr<std::string> line = process->ReadLine(kMostAnswerBytes, Deadline::In(kMoment), {});
  if (absl::IsDeadlineExceeded(line.status())) {
    process->End(kPatience, /*waits_for_input=*/false);
    return absl::OkStatus();
  }
  const std::string why =
      line.ok() ? absl::StrCat("before it was given an episode it has written ", Quoted(*line),
                               ", and with agent.kept its output is for answers alone")
                : absl::StrCat("with agent.kept it is to wait for episodes, and ", line.status().message());
  return WithLastWords(absl::InvalidArgumentError(why), process->LastErrorLines());
}

AgentAnswer Failed(EpisodeFailure kind, std::string why) { return {.failed = FailedTry{kind, std::move(why)}}; }

// Whether it is a number, as JSON or ParseReply has it, but none of fp32.
bool IsNotFinite(const json& value) {
  double number;
  const bool is_number =
      value.is_number() || (value.is_string() && absl::SimpleAtod(value.get<std::string>(), &number));
  return is_number && !ReadFinite(value, "").ok();
}

}  // namespace

std::string_view NameOf(EpisodeFailure failure) {
  constexpr std::string_view kNames[] = {"died",  "timed_out", "nonsense", "not_finite",
                                         "error", "no_call",   "no_token", "policy"};
  static_assert(std::size(kNames) == kEpisodeFailures);
  return kNames[static_cast<int>(failure)];
}

std::string EpisodeLine(const PromptRecord& prompt, const EpisodePlace& place, const OpenEpisode& open) {
  const auto parsed = [](const std::string& text, ordered_json otherwise) {
    absl::StatusOr<ordered_json> value = ParseExactOrderedJson(text, "");
    return value.ok() ? *std::move(value) : std::move(otherwise);
  };
  ordered_json episode = {{"step", place.step}};
  if (!place.set.empty()) episode["set"] = place.set;
  episode["row"] = place.row;
  episode["sample"] = place.sample;
  const ordered_json line = {{"messages", parsed(prompt.messages, ordered_json::array())},
                             {"label", prompt.label},
                             {"source", prompt.source},
                             {"row", parsed(prompt.row, ordered_json::object())},
                             {"place", prompt.place},
                             {"base_url", open.base_url},
                             {"api_key", open.api_key},
                             {"episode", std::move(episode)},
                             {"id", open.key}};
  return PrintExactJson(line);
}

AgentAnswer ReadAgentAnswer(std::string_view line, const std::string& id, bool may_be_empty) {
  if (absl::StripAsciiWhitespace({line.data(), line.size()}).empty()) {
    if (may_be_empty) return {};
    return Failed(EpisodeFailure::kNonsense,
                  "it has written no answer; as no reward.source adds to the reward of its row, it must say what the "
                  "episode is worth, in its last line: {\"reward\": number}");
  }
  const absl::StatusOr<json> said = ParseReply(line, json::value_t::object, "{\"reward\": number}");
  if (!said.ok()) return Failed(EpisodeFailure::kNonsense, std::string(said.status().message()));
  const auto has = [&said](const char* key) { return said->contains(key) && !said->at(key).is_null(); };
  if (has("id") && said->at("id") != id) {
    AgentAnswer failed =
        Failed(EpisodeFailure::kNonsense, absl::StrCat("the reply ", Quoted(line), " is to another episode than ", id));
    failed.to_another = true;
    return failed;
  }
  if (may_be_empty && has("id") && said->size() == 1) return {.names_episode = true};
  if (has("token_rewards")) {
    return Failed(EpisodeFailure::kNonsense, "there are \"token_rewards\", and an agent gives one number an episode");
  }
  absl::StatusOr<Reward> reward = ReadReward(*said);
  if (reward.ok()) return {.reward = *std::move(reward), .names_episode = has("id")};
  const auto not_finite = [&](const char* key) { return has(key) && IsNotFinite(said->at(key)); };
  const EpisodeFailure kind = has("error")                                  ? EpisodeFailure::kError
                              : not_finite("reward") || not_finite("score") ? EpisodeFailure::kNotFinite
                                                                            : EpisodeFailure::kNonsense;
  AgentAnswer failed = Failed(kind, absl::StrCat(kind == EpisodeFailure::kError ? "it reports an error: " : "",
                                                 std::string(reward.status().message())));
  failed.names_episode = has("id");
  return failed;
}

absl::StatusOr<AgentAnswer> AgentProcess::Play(const std::string& line, const OpenEpisode& open, bool may_be_empty,
                                               const std::stop_token& stop) {
  Settle(stop);
  if (stop.stop_requested()) return absl::CancelledError("the call has ended");
  const absl::StatusOr<std::string> answer = Ask(line, open, stop);
  const std::string words = process_ == nullptr ? "" : process_->LastErrorLines();
  AgentAnswer said;
  absl::Status end = answer.status();  // of the run, where it is one of these
  bool ends = absl::IsCancelled(end) || absl::IsInvalidArgument(end);
  if (answer.ok()) {
    said = ReadAgentAnswer(*answer, open.key, may_be_empty);
    // A line of somebody else who has its output: a program that it has started.
    if (names_any_ && !said.names_episode && !said.failed.has_value()) {
      said.reward.reset();
      said.failed = FailedTry{EpisodeFailure::kNonsense, absl::StrCat("the answer ", Quoted(*answer),
                                                                      " does not repeat the episode's \"id\", as "
                                                                      "those before it did")};
    }
    ends = config_.kept() && said.to_another && !names_all_;
    if (ends) end = OutOfStep(said.failed->why);
    const bool unnamed = !said.names_episode && !said.failed.has_value();
    unnamed_again_ = unnamed && !names_all_;
    names_all_ = names_all_ && !unnamed;
    names_any_ = names_any_ || said.names_episode;
  } else if (absl::IsDataLoss(end) && !names_all_) {
    ends = true;
    end = OutOfStep(std::string(end.message()));
  } else {
    said.failed = FailureOf(end);
  }
  said.last_words = words;
  // One that says that it has failed is well, and so may be one that was given up; one that is not understood may not
  // be.
  const bool is_well = !ends ? !said.failed.has_value() || said.failed->kind == EpisodeFailure::kError
                             : absl::IsCancelled(end) && process_ != nullptr && process_->owes_reply();
  given_up_ = Deadline::In(kPatience);
  waits_for_line_ = answer.ok() && is_well;
  is_to_end_ = !config_.kept() || !is_well;
  if (ends) return WithLastWords(end, words);
  return said;
}

absl::Status AgentProcess::Distrust(std::string_view why, bool has_asked) {
  is_to_end_ = true;
  waits_for_line_ = false;
  return config_.kept() && unnamed_again_ && !has_asked ? OutOfStep(why) : absl::OkStatus();
}

absl::Status AgentProcess::OutOfStep(std::string_view how) const {
  return absl::DataLossError(absl::StrCat(std::string(how),
                                          ". An agent that is kept writes one line an episode, and all else to stderr. "
                                          "Its answers do not repeat \"id\", so "
                                          "that earlier ones may have been to other episodes"));
}

absl::StatusOr<std::string> AgentProcess::Ask(const std::string& line, const OpenEpisode& open,
                                              const std::stop_token& stop) {
  const Deadline deadline = Deadline::In(absl::Seconds(config_.timeout_seconds()));
  if (config_.kept()) {
    if (process_ == nullptr) {
      QUARTET_ASSIGN_OR_RETURN(process_, Start(config_, "-c", log_));
    } else {
      process_->ForgetErrorLines();
    }
    return process_->Ask(line, kMostAnswerBytes, deadline, stop);
  }
  QUARTET_ASSIGN_OR_RETURN(
      process_, Start(config_, "-c", log_, {{"OPENAI_BASE_URL", open.base_url}, {"OPENAI_API_KEY", open.api_key}}));
  QUARTET_ASSIGN_OR_RETURN(const PipedProcess::Outcome outcome,
                           process_->Finish(line + "\n", kMostAnswerBytes, deadline, stop));
  const ExitState& exit = outcome.exit;
  if (exit.ok()) return std::string(LastLine(outcome.output));
  return absl::AbortedError(absl::StrCat("it has ended: ", exit.Describe()));
}

void AgentProcess::Settle(const std::stop_token& stop) {
  if (process_ == nullptr || stop.stop_requested()) return;
  if (!is_to_end_ && process_->owes_reply()) {
    const Deadline deadline = std::max(given_up_, Deadline::In(kLook));
    const absl::Status owed = process_->ReadLine(kMostAnswerBytes, deadline, stop).status();
    waits_for_line_ = owed.ok();
    is_to_end_ = !owed.ok() && !absl::IsCancelled(owed);
  }
  if (is_to_end_) End();
}

void AgentProcess::End() {
  if (process_ != nullptr) process_->End(kPatience, config_.kept() && waits_for_line_);
  process_.reset();
  is_to_end_ = names_any_ = false;
  names_all_ = true;
}

FailedTry AgentProcess::FailureOf(const absl::Status& status) const {
  const std::string message(status.message());
  if (absl::IsDeadlineExceeded(status)) {
    return {EpisodeFailure::kTimedOut,
            absl::StrCat("it has not ", config_.kept() ? "answered" : "ended", " after ",
                         absl::FormatDuration(absl::Seconds(config_.timeout_seconds())), " (agent.timeout_seconds)",
                         config_.kept() ? "; an answer is a line that it does not hold back (flush)" : "")};
  }
  if (absl::IsDataLoss(status)) {
    return {EpisodeFailure::kNonsense,
            message + "; with agent.kept its output is for one line an episode alone, and stderr for all else"};
  }
  if (config_.kept() && absl::EndsWith(message, "exit code 0")) {
    return {EpisodeFailure::kDied, message + "; with agent.kept it is to play one episode after the other"};
  }
  return {.kind = absl::IsResourceExhausted(status) ? EpisodeFailure::kNonsense : EpisodeFailure::kDied,
          .why = message,
          .no_room = process_ == nullptr};
}

absl::Status AllowAgents(const AgentConfig& config) {
  const int64_t files = kFilesOfAProcess * config.processes(), allowed = AllowOpenFiles(files + kOtherFiles);
  if (files + kLeastOtherFiles <= allowed) return absl::OkStatus();
  return NotAllowed(
      "agent.processes", absl::StrCat(config.processes()),
      absl::StrCat("it must be at most ", std::max<int64_t>(allowed - kLeastOtherFiles, 0) / kFilesOfAProcess,
                   ": each takes ", kFilesOfAProcess, " open files, and this process may have ", allowed,
                   " (ulimit -Hn), of which ", kLeastOtherFiles, " are for all else"));
}

absl::Status TryAgent(const AgentConfig& config) {
  QUARTET_RETURN_IF_ERROR(AllowAgents(config));
  const absl::Status status = config.kept() ? WaitsForEpisodes(config) : IsCommand(config);
  return Prefixed(absl::StrCat("agent.command ", Quoted(config.command())), status);
}

}  // namespace quartet
