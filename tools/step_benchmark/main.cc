// Times whole steps of a method on prompts and answers of fixed lengths, with real services on this machine, and holds
// each phase against what the machine could do at best. tools/compare/step.py times TRL's on the same prompts.
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "core/base/files/files.h"
#include "core/base/status_macros.h"
#include "core/config/origins/origins.h"
#include "core/config/run_config.h"
#include "core/model/model_config.h"
#include "core/model/model_work.h"
#include "orchestrator/launch/service_launcher.h"
#include "orchestrator/loop/train.h"
#include "orchestrator/session/run_program.h"
#include "tools/step_benchmark/prompt_texts.h"

namespace quartet {
namespace {

using nlohmann::json;

struct Options {
  std::string model;
  std::string preset = "grpo", dtype = "bf16";
  int prompts = 8, samples = 8, prompt_tokens = 128, answer_tokens = 64, ranks = 2, steps = 3;
  std::string run_dir = NewRunDir("step_benchmark");
  std::vector<std::string> overrides;
};

CommandLine BenchmarkCommandLine(Options* options) {
  return {
      .program = "step_benchmark",
      .before =
          "step_benchmark: times whole steps of a method with all services on this machine. The last line, on standard "
          "output, is a JSON object: medians over the steps in seconds, tokens a second, and `roofline`, the share of "
          "the time that the least work would take (what sequences begin with once, all decoded together) at the "
          "machine's best rates. tools/compare/step.py times TRL's GRPOTrainer on the same prompts.\n\nUsage: "
          "step_benchmark [flags]\n\nFlags:\n",
      .flags = {{"model", "FOLDER",
                 "A Hugging Face folder, of all models. Default: SmolLM2-135M-Instruct, where "
                 "//orchestrator:smollm2_arithmetic keeps it.",
                 UserPath(&options->model)},
                {"preset", "NAME", "The method. Default grpo.", Text(&options->preset)},
                {"prompts", "N", "Of a step. Default 8.", AtLeast(1, &options->prompts)},
                {"samples", "N", "Answers to each. Default 8.", AtLeast(1, &options->samples)},
                {"prompt_tokens", "N", "Tokens of every prompt. Default 128.", AtLeast(1, &options->prompt_tokens)},
                {"answer_tokens", "N", "Tokens of every answer. Default 64.", AtLeast(1, &options->answer_tokens)},
                {"dtype", "NAME", "bf16 (default) or fp32, of all models.", Text(&options->dtype)},
                {"ranks", "N", "Of each service, one thread each. Default 2.", AtLeast(1, &options->ranks)},
                {"steps", "N", "The first is not counted where there are more. Default 3.",
                 AtLeast(1, &options->steps)},
                {"run_dir", "FOLDER", "Default runs/step_benchmark-<time>.", UserPath(&options->run_dir)},
                {"set", "PATH=VALUE", "Overrides one field of the configuration. May be repeated.",
                 Texts(&options->overrides)}},
      .after = "\n"};
}

std::vector<std::string> Settings(const Options& options, const std::string& prompts) {
  std::vector<std::string> settings = {
      "run_dir=" + options.run_dir,
      "data.prompt_data=" + prompts,
      absl::StrCat("data.prompt_max_len=", options.prompt_tokens),
      absl::StrCat("rollout.rollout_batch_size=", options.prompts),
      absl::StrCat("rollout.n_samples_per_prompt=", options.samples),
      absl::StrCat("rollout.generate_max_len=", options.answer_tokens),
      absl::StrCat("rollout.min_tokens=", options.answer_tokens),
      "rollout.temperature=1",
      "rollout.dtype=" + options.dtype,
      "actor.pretrain=" + options.model,
      "actor.dtype=" + options.dtype,
      "actor.gradient_checkpointing=false",
      "algorithm.kl.init_kl_coef=0.04",
      "reference.dtype=" + options.dtype,
      // Some answers are worth more than others: those with a comma.
      "reward.source.0.rule=format",
      R"(reward.source.0.pattern=[\s\S]*,[\s\S]*)",
      "train.updates_per_batch=1",
      absl::StrCat("train.max_steps=", options.steps),
      "train.save_steps=0",
  };
  for (const char* service : {"rollout", "policy_trainer", "critic_trainer", "scorer"}) {
    settings.push_back(absl::StrCat("services.", service, ".ranks=", options.ranks));
    settings.push_back(absl::StrCat("services.", service, ".threads=1"));
  }
  settings.insert(settings.end(), options.overrides.begin(), options.overrides.end());
  return settings;
}

struct Rates {
  double flops = 0;  // a second, of products in the models' type
  double bytes = 0;  // a second, read from memory
};

absl::StatusOr<Rates> MeasureRates(const std::string& program, int threads, const std::string& dtype) {
  const std::string command = absl::StrCat("OMP_NUM_THREADS=", threads, " '", program, "'");
  FILE* const output = popen(command.c_str(), "r");
  char line[256] = {};
  const bool read = output != nullptr && std::fgets(line, sizeof(line), output) != nullptr;
  const int ended = output == nullptr ? -1 : pclose(output);
  const json rates = json::parse(read ? line : "", nullptr, /*allow_exceptions=*/false);
  if (ended != 0 || !rates.is_object()) return absl::InternalError(absl::StrCat("cannot measure by ", program));
  const double fp32 = rates.at("fp32_flops").get<double>();
  // bf16 may be computed in fp32 where that is faster.
  return Rates{.flops = dtype == "fp32" ? fp32 : std::max(fp32, rates.at("bf16_flops").get<double>()),
               .bytes = rates.at("bytes").get<double>()};
}

// Seconds that a step's phases take at least, with what sequences begin with computed once.
struct LeastSeconds {
  double generate = 0, forwards = 0, update = 0;
};

// `shared`: the share of a step's tokens that the trainer found at the beginning of others (policy/shared_tokens).
LeastSeconds LeastOf(const RunConfig& config, const Options& options, const ModelConfig& model, const Rates& rates,
                     double shared) {
  const ModelWork policy = WorkOf(model, HeadKind::kVocabulary), critic = WorkOf(model, HeadKind::kScalar);
  const double P = options.prompt_tokens, A = options.answer_tokens, prompts = options.prompts,
               answers = prompts * options.samples;
  const double prompt_pairs = prompts * P * P / 2, answer_pairs = answers * A * (P + A / 2);
  const double element_bytes = config.actor().dtype() == "fp32" ? 4 : 2;
  // Answers may begin alike, too.
  const double distinct = std::clamp((1 - shared) * answers * (P + A) - prompts * P, 0.0, answers * A);
  const auto forward = [&](const ModelWork& work) {
    return (work.BlockFlops(prompts * P + distinct, prompt_pairs + answer_pairs * distinct / (answers * A)) +
            work.HeadFlops(distinct)) /
           rates.flops;
  };
  LeastSeconds least;
  // All sequences decoded together: each token's products and attention, or the weights and the cache from memory,
  // where a prompt's is read once for its samples.
  const double decode_flops = policy.BlockFlops(answers * A, answer_pairs) + policy.HeadFlops(answers * A);
  const double decode_bytes = A * (policy.block_weights + policy.head_weights) * element_bytes +
                              A * (prompts * P + answers * A / 2) * policy.cached_elements * element_bytes;
  least.generate = policy.BlockFlops(prompts * P, prompt_pairs) / rates.flops +
                   std::max(decode_flops / rates.flops, decode_bytes / rates.bytes);
  if (UsesReference(config)) least.forwards += forward(policy);
  least.update += 3 * config.algorithm().max_epochs() * forward(policy);
  if (UsesCritic(config)) {
    least.forwards += forward(critic);
    least.update += 3 * config.algorithm().critic_epochs() * forward(critic);
  }
  return least;
}

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const size_t half = values.size() / 2;
  return values.size() % 2 == 1 ? values[half] : (values[half - 1] + values[half]) / 2;
}

// The medians of metrics.jsonl's numbers over all steps but the first.
absl::StatusOr<std::map<std::string, double>> ReadMetrics(const std::string& path) {
  std::ifstream file(path);
  std::map<std::string, std::vector<double>> values;
  std::vector<json> records;
  for (std::string line; std::getline(file, line);) records.push_back(json::parse(line, nullptr, false));
  if (records.size() > 1) records.erase(records.begin());
  for (const json& record : records) {
    if (!record.is_object()) return absl::DataLossError(path + " has a line that is no object");
    for (const auto& [name, value] : record.items()) {
      if (value.is_number()) values[name].push_back(value.get<double>());
    }
  }
  std::map<std::string, double> medians;
  for (const auto& [name, list] : values) medians[name] = Median(list);
  return medians;
}

std::string CpuName() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    if (const size_t colon = line.find(": "); line.starts_with("model name") && colon != std::string::npos) {
      return line.substr(colon + 2);
    }
  }
  return "unknown";
}

// To four digits, more than a shared machine's times are worth.
double Rounded(double value) { return std::strtod(absl::StrFormat("%.4g", value).c_str(), nullptr); }

absl::StatusOr<json> Measure(const Options& options, TerminalView& view, Cancellation& cancellation) {
  const absl::StatusOr<ModelConfig> model_config = ReadModelConfig(options.model);
  if (!model_config.ok()) {
    return absl::InvalidArgumentError(absl::StrCat("--model: ", std::string(model_config.status().message()),
                                                   "; //orchestrator:smollm2_arithmetic fetches the default one"));
  }
  const std::string prompts = options.run_dir + "/start/prompts.jsonl";
  ConfigSources sources = {options.preset, "", Settings(options, prompts)};
  // Methods without a critic have no services.critic_trainer to set.
  QUARTET_ASSIGN_OR_RETURN(const RunConfig method, LoadRunConfig({sources.preset, "", {}}, ""));
  if (UsesCritic(method)) {
    for (const std::string& setting : {"critic.pretrain=" + options.model, "critic.dtype=" + options.dtype,
                                       std::string("critic.gradient_checkpointing=false")}) {
      sources.overrides.insert(sources.overrides.begin(), setting);
    }
  } else {
    std::erase_if(sources.overrides,
                  [](const std::string& setting) { return setting.starts_with("services.critic_trainer."); });
  }
  QUARTET_ASSIGN_OR_RETURN(RunConfig config, LoadRunConfig(sources, ""));
  QUARTET_ASSIGN_OR_RETURN(config, LoadRunConfig(sources, "", ServiceLauncher::Defaults(PpoServices(config))));
  QUARTET_ASSIGN_OR_RETURN(const auto tokenizer, LoadTokenizer(config, "actor"));
  QUARTET_RETURN_IF_ERROR(MakeDirs(options.run_dir + "/start"));
  QUARTET_ASSIGN_OR_RETURN(
      const std::vector<std::string> texts,
      Prefixed("--prompt_tokens", PromptTexts(*tokenizer, options.prompts * options.steps, options.prompt_tokens)));
  std::string rows;
  for (const std::string& text : texts) rows += json{{"prompt", text}}.dump() + "\n";
  QUARTET_RETURN_IF_ERROR(AtomicWriteFile(prompts, rows));

  const std::string& dtype = config.actor().dtype();
  QUARTET_ASSIGN_OR_RETURN(const Rates rates,
                           MeasureRates(ExecutableFolder() + "/machine_rates", options.ranks, dtype));
  QUARTET_ASSIGN_OR_RETURN(
      const PpoResult result,
      TrainByPpo(RunSession(Program::kPpo, config, {.launch = true, .allowed_entry = "start"}, view, cancellation)));
  QUARTET_ASSIGN_OR_RETURN(const auto metrics, ReadMetrics(options.run_dir + "/metrics.jsonl"));
  const auto value = [&](const char* name) {
    const auto found = metrics.find(name);
    return found == metrics.end() ? 0 : found->second;
  };
  if (value("response_length/mean") != options.answer_tokens) {
    return absl::FailedPreconditionError(absl::StrCat("answers have ", value("response_length/mean"), " tokens, not ",
                                                      options.answer_tokens, " each: the figures would not compare"));
  }
  const double answered = static_cast<double>(options.prompts) * options.samples * options.answer_tokens;
  const double trained = answered + static_cast<double>(options.prompts) * options.samples * options.prompt_tokens;
  const double step = value("time/step"), generate = value("time/generate"), forwards = value("time/forwards"),
               update = std::max(value("time/policy_update"), value("time/critic_update"));
  const LeastSeconds least = LeastOf(config, options, *model_config, rates, value("policy/shared_tokens"));
  const auto& ranks = result.services.at("policy_trainer").ranks();
  return json{
      {"benchmark", "step"},
      {"cpu", CpuName()},
      {"kernels", ranks.empty() ? "" : ranks.at(0).cpu_kernels()},
      {"model", options.model},
      {"preset", sources.preset},
      {"dtype", dtype},
      {"prompts", options.prompts},
      {"samples", options.samples},
      {"prompt_tokens", options.prompt_tokens},
      {"answer_tokens", options.answer_tokens},
      {"ranks", options.ranks},
      {"steps", options.steps},
      {"seconds",
       {{"step", Rounded(step)},
        {"generate", Rounded(generate)},
        {"score", Rounded(value("time/score"))},
        {"forwards", Rounded(forwards)},
        {"update", Rounded(update)},
        {"weight_sync", Rounded(value("time/weight_sync"))}}},
      {"tokens_per_second",
       {{"generate", Rounded(answered / generate)},
        {"update", Rounded(trained / update)},
        {"step", Rounded(answered / step)}}},
      {"machine", {{"gflops", Rounded(rates.flops * 1e-9)}, {"gbytes_per_second", Rounded(rates.bytes * 1e-9)}}},
      {"shared_tokens", Rounded(value("policy/shared_tokens"))},
      {"roofline",
       {{"step", Rounded((least.generate + least.forwards + least.update) / step)},
        {"generate", Rounded(least.generate / generate)},
        {"forwards", Rounded(forwards == 0 ? 0 : least.forwards / forwards)},
        {"update", Rounded(least.update / update)}}},
  };
}

absl::Status Run(const Options& options, TerminalView& view, Cancellation& cancellation) {
  QUARTET_ASSIGN_OR_RETURN(const json measured, Measure(options, view, cancellation));
  std::printf("%s\n", measured.dump().c_str());
  return absl::OkStatus();
}

}  // namespace
}  // namespace quartet

int main(int argc, char** argv) {
  quartet::Options options;
  const char* const home = std::getenv("HOME");
  options.model = absl::StrCat(home == nullptr ? "" : home, "/.cache/quartet/models/SmolLM2-135M-Instruct");
  return quartet::RunProgram(
      argc, argv, quartet::BenchmarkCommandLine(&options),
      [&](auto& view, auto& cancellation) { return quartet::Run(options, view, cancellation); }, stderr);
}
