#include "orchestrator/evaluation/evaluation.h"

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"
#include "core/base/files/files.h"
#include "core/base/status_macros.h"
#include "core/clients/handshake.h"
#include "core/config/batches/call_sizes.h"
#include "core/config/eval_sets.h"
#include "core/errors/shown.h"
#include "core/rewards/labels/labels.h"
#include "orchestrator/agents/agent_process.h"
#include "orchestrator/agents/episode_answers.h"
#include "orchestrator/answers/answer.h"
#include "orchestrator/data/first_example.h"
#include "orchestrator/data/reward_sources.h"
#include "orchestrator/evaluation/evaluation_scores.h"
#include "orchestrator/session/warning.h"

namespace quartet {
namespace {

GenerateHeader HeaderOf(const RunConfig& config, const EvalSet& set, uint64_t policy_version) {
  GenerateHeader header;
  header.set_policy_version(policy_version);
  SamplingParams* sampling = header.mutable_sampling();
  *sampling = AnswerLimits(config.rollout());
  sampling->set_temperature(set.temperature());
  sampling->set_top_p(set.top_p());
  sampling->set_top_k(-1);
  sampling->set_seed(config.seed());
  sampling->set_n_samples(set.n_samples_per_prompt());
  return header;
}

// Names of the sources that give any of these answers a score.
std::set<std::string> SourcesOfScores(const std::vector<ScoreReply>& replies) {
  std::set<std::string> names;
  for (const ScoreReply& reply : replies) {
    for (const auto& [name, score] : reply.scores()) names.insert(name);
  }
  return names;
}

// Whether every source that can tell holds the answer for right; nothing where none can: neither compares with labels,
// nor gives a score. Of `give_scores` (SourcesOfScores), one that was not asked, as the answer's reasoning has no end,
// holds it for wrong.
absl::StatusOr<std::optional<bool>> IsRight(const RewardConfig& reward, const std::string& prompt_source,
                                            const std::set<std::string>& give_scores, const ScoreReply& score) {
  std::optional<bool> right;
  for (const RewardSource& source : reward.source()) {
    if (!IsFor(source, prompt_source)) continue;
    const std::string& name = source.name().empty() ? source.rule() : source.name();
    const bool verifies = Verifies(source);
    const auto& values = verifies ? score.parts() : score.scores();
    const auto value = values.find(name);
    if (value == values.end()) {
      const auto unfinished = score.extra_logs().find(absl::StrCat(name, "/", kUnfinishedReasoning));
      if (give_scores.contains(name) && unfinished != score.extra_logs().end() && unfinished->second == 1) {
        right = false;
        continue;
      }
      // A source of weight 0 that has failed decides nothing.
      if (!verifies || (source.has_weight() && source.weight() == 0)) continue;
      return absl::InternalError(absl::StrCat("the scorer's reply has no part \"", name, "\""));
    }
    right = right.value_or(true) && value->second >= 1;
  }
  return right;
}

// The values of `prompts` (all of their answers stand one behind the other), each name behind `prefix`.
void AddValues(const std::vector<std::vector<const EvaluatedAnswer*>>& prompts, const EvalSet& set,
               const std::string& prefix, Metrics* values) {
  const auto n_prompts = static_cast<double>(prompts.size());
  const int n = set.n_samples_per_prompt();
  const double n_answers = n_prompts * n;
  std::map<int, double> pass, majority;
  double reward = 0, tokens = 0, truncated = 0;
  bool tells_right = true;  // of all of them
  for (const auto& answers : prompts) {
    std::vector<std::string> votes;
    std::vector<bool> right;
    for (const EvaluatedAnswer* answer : answers) {
      if (n > 1) votes.push_back(VoteOf(answer->response));
      tells_right = tells_right && answer->right.has_value();
      right.push_back(answer->right.value_or(false));
      reward += answer->reward;
      tokens += static_cast<double>(answer->tokens);
      truncated += answer->truncated ? 1 : 0;
    }
    const auto n_right = static_cast<int>(std::count(right.begin(), right.end(), true));
    for (const int k : set.k()) {
      pass[k] += PassAtK(n, n_right, k);
      if (k > 1) majority[k] += MajorityAtK(votes, right, k);
    }
  }
  if (tells_right) {
    for (const auto& [k, sum] : pass) values->Set(absl::StrCat(prefix, "pass@", k), sum / n_prompts);
    for (const auto& [k, sum] : majority) values->Set(absl::StrCat(prefix, "maj@", k), sum / n_prompts);
  }
  values->Set(prefix + "reward", reward / n_answers);
  values->Set(prefix + "response_length", tokens / n_answers);
  values->Set(prefix + "truncated", truncated / n_answers);
}

// n_samples_per_prompt of the set's options to each prompt, by prompt, then by sample.
absl::StatusOr<std::vector<PromptAnswer>> DrawAnswers(const EvaluationRun& run, const EvaluationSet& set, int64_t step,
                                                      uint64_t policy_version) {
  std::vector<const PromptRecord*> prompts;
  for (const PromptRecord& prompt : set.prompts) prompts.push_back(&prompt);
  int64_t drawn = 0;
  return run.answers.Draw({.step = step, .set = set.options.name()}, HeaderOf(run.config, set.options, policy_version),
                          prompts, std::ssize(prompts), [&](const PromptAnswer&) {
                            run.view.Progress(++drawn);
                            return absl::OkStatus();
                          });
}

// The scorer's word on each answer that is there; on the others an empty one.
absl::StatusOr<std::vector<ScoreReply>> ScoresOf(const EvaluationRun& run, const EvaluationSet& set,
                                                 const std::vector<PromptAnswer>& answers) {
  const RewardConfig& reward = run.config.reward();
  std::vector<ScoreReply> scores(answers.size());
  if (reward.source().empty()) return scores;
  std::vector<ScoreItem> items;
  for (size_t i = 0; i < answers.size(); ++i) {
    const PromptAnswer& answer = answers[i];
    if (!answer.error.empty()) continue;
    items.push_back(MakeScoreItem(i, {answer.sequences.back(), answer.response, answer.truncated, answer.conversation},
                                  set.prompts[answer.prompt], reward, run.tokenizer));
  }
  if (items.empty()) return scores;
  const absl::StatusOr<std::vector<ScoreReply>> scored = run.scorer.Score(items);
  if (!scored.ok()) {
    return NameRow(scored.status(),
                   [&](uint64_t index) -> const PromptRecord& { return set.prompts.at(answers.at(index).prompt); });
  }
  for (size_t i = 0; i < items.size(); ++i) scores[items[i].tokens().index()] = (*scored)[i];
  return scores;
}

// Answers with what they are worth, each as the scorer and, of an episode, its agent say.
absl::StatusOr<std::vector<EvaluatedAnswer>> JudgeAnswers(const RewardConfig& reward, const EvaluationSet& set,
                                                          std::vector<PromptAnswer> answers,
                                                          std::vector<ScoreReply> scores) {
  const auto n = static_cast<size_t>(set.options.n_samples_per_prompt());
  const std::set<std::string> give_scores = SourcesOfScores(scores);
  std::vector<EvaluatedAnswer> judged;
  for (size_t i = 0; i < answers.size(); ++i) {
    EvaluatedAnswer& answer = judged.emplace_back();
    answer.prompt = static_cast<int64_t>(i / n);
    answer.response = std::move(answers[i].response);
    answer.conversation = std::move(answers[i].conversation);
    answer.error = answers[i].error.empty() ? scores[i].error() : answers[i].error;
    if (answer.error.empty()) {
      const PromptRecord& prompt = set.prompts[i / n];
      QUARTET_ASSIGN_OR_RETURN(answer.right, IsRight(reward, prompt.source, give_scores, scores[i]));
      if (const std::optional<Reward>& agent = answers[i].agent; agent.has_value()) {
        QUARTET_RETURN_IF_ERROR(Prefixed(prompt.place, AddAgentReward(reward, *agent, &scores[i])));
        if (agent->score.has_value()) answer.right = answer.right.value_or(true) && *agent->score >= 1;
      }
      answer.reward = scores[i].reward();
      answer.parts = {scores[i].parts().begin(), scores[i].parts().end()};
    }
    answer.truncated = answers[i].truncated;
    answer.tokens = answers[i].action_tokens();
  }
  return judged;
}

// The figures of result->answers.
absl::Status AddUp(const EvaluationRun& run, const EvaluationSet& set, EvaluationResult* result) {
  const auto n = static_cast<size_t>(set.options.n_samples_per_prompt());
  const auto failed = [](const EvaluatedAnswer& answer) { return !answer.error.empty(); };
  std::vector<std::vector<const EvaluatedAnswer*>> all;
  std::map<std::string, std::vector<std::vector<const EvaluatedAnswer*>>> by_source;
  for (size_t i = 0; i < set.prompts.size(); ++i) {
    std::vector<const EvaluatedAnswer*> of_prompt;
    for (size_t k = i * n; k < (i + 1) * n && !failed(result->answers[k]); ++k) {
      of_prompt.push_back(&result->answers[k]);
    }
    if (of_prompt.size() < n) continue;
    by_source[set.prompts[i].metrics_source].push_back(of_prompt);
    all.push_back(std::move(of_prompt));
  }
  if (all.empty()) {
    return absl::UnavailableError(absl::StrCat(
        "of no prompt of the evaluation of ", result->set,
        " could all answers be scored; the first: ", std::ranges::find_if(result->answers, failed)->error));
  }
  result->prompts = static_cast<int64_t>(all.size());
  if (run.config.reward().on_error() == "drop" || run.answers.may_drop()) {
    result->values.Set("failed", static_cast<double>(std::ranges::count_if(result->answers, failed)));
  }
  AddValues(all, set.options, "", &result->values);
  run.answers.TakeMetrics(&result->values);
  if (by_source.size() == 1) return absl::OkStatus();
  for (const auto& [source, of_source] : by_source) {
    AddValues(of_source, set.options, absl::StrCat("source/", source, "/"), &result->values);
  }
  return absl::OkStatus();
}

absl::StatusOr<EvaluationResult> Evaluate(const EvaluationRun& run, const EvaluationSet& set, int64_t step,
                                          uint64_t policy_version) {
  EvaluationResult result = {.set = set.options.name()};
  QUARTET_ASSIGN_OR_RETURN(std::vector<PromptAnswer> answers, DrawAnswers(run, set, step, policy_version));
  QUARTET_ASSIGN_OR_RETURN(std::vector<ScoreReply> scores, ScoresOf(run, set, answers));
  QUARTET_ASSIGN_OR_RETURN(result.answers,
                           JudgeAnswers(run.config.reward(), set, std::move(answers), std::move(scores)));
  QUARTET_RETURN_IF_ERROR(AddUp(run, set, &result));
  return result;
}

// "gsm8k: pass@1 52.3 %, reward 0.5230, 187 tokens; 1319 prompts".
std::string DescribeEvaluation(const EvaluationResult& result) {
  std::string text = absl::StrCat(result.set, ": ");
  const auto& values = result.values.values();
  if (std::none_of(values.begin(), values.end(), [](const auto& v) { return absl::StartsWith(v.first, "pass@"); })) {
    absl::StrAppend(&text,
                    "no pass@k (no reward compares with labels, and none gives a score, or not of all answers), ");
  }
  for (const auto& [name, value] : result.values.values()) {
    if (absl::StrContains(name, "/")) continue;  // of a source
    if (absl::StrContains(name, "@")) absl::StrAppendFormat(&text, "%s %.1f %%, ", name, 100 * value);
  }
  absl::StrAppendFormat(&text, "reward %.4f, %.1f tokens; %d prompts", result.values.Get("reward").value_or(0),
                        result.values.Get("response_length").value_or(0), result.prompts);
  if (const double failed = result.values.Get("failed").value_or(0); failed > 0) {
    absl::StrAppendFormat(&text, ", others left out for %.0f answers that could not be scored", failed);
  }
  return text;
}

// JSON, a line a prompt: {"prompt", "label", "source", "answers": [{"response", "reward", "parts", "right",
// "truncated", "tokens"}]}, of an episode also "messages"; with "error" in place of reward, parts and right where an
// answer could not be scored, without "right" where no source tells.
std::string AnswerLines(const EvaluationSet& set, const EvaluationResult& result) {
  using Json = nlohmann::ordered_json;
  std::vector<Json> prompts(set.prompts.size());
  for (size_t i = 0; i < prompts.size(); ++i) {
    prompts[i]["prompt"] = set.prompts[i].text;
    prompts[i]["label"] = set.prompts[i].label;
    prompts[i]["source"] = set.prompts[i].source;
    prompts[i]["answers"] = Json::array();
  }
  for (const EvaluatedAnswer& answer : result.answers) {
    Json& written = prompts[answer.prompt]["answers"].emplace_back();
    written["response"] = answer.response;
    if (!answer.conversation.empty()) written["messages"] = Json::parse(answer.conversation);
    if (answer.error.empty()) {
      written["reward"] = ShortestOfFp32(answer.reward);
      for (const auto& [name, value] : answer.parts) written["parts"][name] = ShortestOfFp32(value);
      if (answer.right.has_value()) written["right"] = *answer.right;
    } else {
      written["error"] = answer.error;
    }
    written["truncated"] = answer.truncated;
    written["tokens"] = answer.tokens;
  }
  std::string lines;
  for (const Json& prompt : prompts) {
    absl::StrAppend(&lines, OneLineJson(prompt), "\n");
  }
  return lines;
}

}  // namespace

absl::StatusOr<std::vector<EvaluationSet>> LoadEvaluationSets(const RunConfig& config, const Tokenizer& tokenizer,
                                                              const RowProgress& progress) {
  std::vector<EvaluationSet> sets;
  for (const EvalSet& options : EvalSets(config)) {
    const auto i = static_cast<int>(sets.size()) - config.eval().data_size();
    const std::string option = i < 0 ? "eval.data" : absl::StrCat("eval.set[", i, "].data");
    QUARTET_ASSIGN_OR_RETURN(HeldOutPrompts held_out, ReadHeldOutPrompts(options, option, config, tokenizer, progress));
    sets.push_back({.options = options,
                    .prompts = std::move(held_out.prompts),
                    .description = std::move(held_out.description),
                    .files = std::move(held_out.files)});
  }
  return sets;
}

absl::StatusOr<std::vector<EvaluationResult>> EvaluateSets(const EvaluationRun& run,
                                                           const std::vector<EvaluationSet>& sets,
                                                           const EvaluatedModel& model, uint64_t policy_version) {
  const std::string what = absl::StrCat("evaluation of ", model.name);
  std::vector<EvaluationResult> results;
  for (const EvaluationSet& set : sets) {
    run.view.Begin(absl::StrCat(what, ", ", set.options.name()),
                   static_cast<int64_t>(set.prompts.size()) * set.options.n_samples_per_prompt());
    absl::StatusOr<EvaluationResult> result = Evaluate(run, set, model.step, policy_version);
    // Of one that has failed, too: they may say why.
    absl::Status shown;
    for (const std::string& warning : run.answers.TakeWarnings()) {
      shown.Update(ShowWarning(run.view, run.folder, model.step, ExecutableName(run.program), warning));
    }
    QUARTET_ASSIGN_OR_RETURN(results.emplace_back(), std::move(result));
    QUARTET_RETURN_IF_ERROR(shown);
    run.view.Print(absl::StrCat(what, ": ", DescribeEvaluation(results.back())));
    QUARTET_RETURN_IF_ERROR(run.folder.WriteEvaluation({.step = model.step,
                                                        .model = model.name,
                                                        .set = set.options.name(),
                                                        .data = set.options.data(),
                                                        .prompts = results.back().prompts,
                                                        .n_samples_per_prompt = set.options.n_samples_per_prompt(),
                                                        .temperature = set.options.temperature(),
                                                        .top_p = set.options.top_p(),
                                                        .values = results.back().values}));
  }
  return results;
}

void AddEvaluationMetrics(const EvaluationResult& result, Metrics* metrics) {
  for (const auto& [name, value] : result.values.values()) {
    metrics->Set(absl::StrCat("eval/", result.set, "/", name), value);
  }
}

absl::Status CheckSetByFlags(const ValueOrigins& origins, bool has_model) {
  const auto check = [&origins](const std::string& field, const std::string& flag) {
    const auto set = origins.find(field);
    if (set == origins.end() || set->second != "--set") return absl::OkStatus();
    return absl::InvalidArgumentError(absl::StrCat("--set=", field, " has no effect: ", flag, "; leave it out"));
  };
  QUARTET_RETURN_IF_ERROR(check("run_dir", "--output says where results go"));
  if (!has_model) {
    const auto evaluated = origins.find("rollout.pretrain");
    if (evaluated == origins.end() || evaluated->second == "--set") return absl::OkStatus();
    return check("actor.pretrain",
                 absl::StrCat("rollout.pretrain, set by ", evaluated->second,
                              ", says what is evaluated; give the model, or the checkpoint, by --model"));
  }
  QUARTET_RETURN_IF_ERROR(check("rollout.pretrain", "--model says what is evaluated"));
  return check("actor.pretrain", "the tokenizer is that of --model");
}

absl::Status NamingFlags(bool has_model, const absl::Status& error) {
  std::string message(error.message());
  if (has_model)
    message = absl::StrReplaceAll(message, {{"rollout.pretrain", "--model"}, {"actor.pretrain", "--model"}});
  constexpr std::string_view kRunDir = "run_dir ";
  if (message.starts_with(kRunDir)) message = absl::StrCat("--output ", message.substr(kRunDir.size()));
  return absl::Status(error.code(), message);
}

int64_t MostSequences(const std::vector<EvaluationSet>& sets) {
  int64_t most = 0;
  for (const EvaluationSet& set : sets) {
    most = std::max(most, static_cast<int64_t>(set.prompts.size()) * set.options.n_samples_per_prompt());
  }
  return most;
}

absl::Status EvaluateModel(RunSession session) {
  RunConfig& config = session.config();
  TerminalView& view = session.view();
  // Nothing is trained, and there is no penalty: the scorer does without a reference.
  config.mutable_algorithm()->mutable_kl()->Clear();
  config.mutable_algorithm()->mutable_kl()->set_init_kl_coef(0);
  config.clear_reference();
  config.mutable_train()->clear_load_checkpoint();
  config.mutable_monitor()->clear_listen();  // which the run that is evaluated may have
  std::vector<EvaluationSet> sets;
  const auto read = [&]() -> absl::Status {
    if (HasAgent(config)) QUARTET_RETURN_IF_ERROR(TryAgent(config.agent()));
    QUARTET_ASSIGN_OR_RETURN(sets, LoadEvaluationSets(config, session.tokenizer(), session.ShowChecking()));
    if (sets.empty()) {
      return absl::InvalidArgumentError("eval.data and eval.set are empty; they name what is evaluated");
    }
    return CheckEvaluationCalls(config, MostSequences(sets));
  };
  QUARTET_RETURN_IF_ERROR(session.ReadInputs(read));
  for (const EvaluationSet& set : sets) view.Print(absl::StrCat(set.options.name(), ": ", set.description));
  view.Print(DescribePrompt(sets.front().prompts.front(), session.tokenizer()));

  QUARTET_RETURN_IF_ERROR(session.OpenFolder({}));
  QUARTET_RETURN_IF_ERROR(session.StartServices());
  QUARTET_ASSIGN_OR_RETURN(const Services services, ConnectServices(config, &session.cancellation()));
  const auto on_loading = view.ShowLoading();
  const int64_t longest = LongestSequence(config);
  uint64_t policy_version = 0;
  for (ServiceClient* client :
       {static_cast<ServiceClient*>(services.rollout.get()), static_cast<ServiceClient*>(services.scorer.get())}) {
    const absl::StatusOr<ServiceInfo> info =
        CheckService(*client, config, session.tokenizer().vocab_size(), longest, on_loading);
    if (!info.ok()) return session.End(info.status());
    policy_version = std::max(policy_version, info->policy_version());
  }
  RunFolder& folder = session.folder();
  QUARTET_RETURN_IF_ERROR(folder.BeginAfter(0));
  QUARTET_ASSIGN_OR_RETURN(
      const std::unique_ptr<AnswerSource> answers,
      MakeAnswerSource(config, &session.tokenizer(), services.rollout.get(), &session.cancellation()));
  const absl::StatusOr<std::vector<EvaluationResult>> results =
      EvaluateSets({config, session.tokenizer(), *answers, *services.scorer, folder, view, session.program()}, sets,
                   EvaluatedModelIn(config.rollout().pretrain()), policy_version);
  if (!results.ok()) return session.End(results.status());
  for (size_t i = 0; i < results->size(); ++i) {
    QUARTET_RETURN_IF_ERROR(AtomicWriteFile(absl::StrCat(folder.path(), "/answers_", (*results)[i].set, ".jsonl"),
                                            AnswerLines(sets[i], (*results)[i])));
  }
  return absl::OkStatus();
}

}  // namespace quartet
