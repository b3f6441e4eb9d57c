#include "core/config/batches/micro_batches.h"

#include <algorithm>
#include <limits>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "core/config/services.h"

namespace quartet {
namespace {

constexpr int32_t kTokens = 4096;

// "12,288".
std::string Count(int64_t number) {
  std::string digits = absl::StrCat(number);
  for (int at = static_cast<int>(digits.size()) - 3; at > 0; at -= 3) digits.insert(static_cast<size_t>(at), ",");
  return digits;
}

std::string Sequences(int64_t count) { return absl::StrCat(Count(count), count == 1 ? " sequence" : " sequences"); }

std::string UpTo(int64_t tokens, int64_t longest) {
  return absl::StrCat("up to ", Count(tokens), " tokens (", Sequences(tokens / longest), " of ", Count(longest), ")");
}

std::string OfTrainer(const TrainerConfig& trainer) {
  if (trainer.max_tokens_per_micro_batch() > 0) return UpTo(trainer.max_tokens_per_micro_batch(), trainer.max_len());
  const int train = trainer.micro_train_batch_size(), forward = trainer.micro_rollout_batch_size();
  return train == forward ? Sequences(train)
                          : absl::StrCat(Sequences(train), ", ", Count(forward), " without gradient,");
}

// Models with the same micro-batches together, in the order in which they come.
class Models {
 public:
  void Add(const std::string& model, const std::string& what) {
    for (auto& [known, models] : groups_) {
      if (known == what) return models.push_back(model);
    }
    groups_.push_back({what, {model}});
  }

  std::string Text() const {
    std::vector<std::string> parts;
    for (const auto& [what, models] : groups_) {
      parts.push_back(
          absl::StrCat(groups_.size() == 1 ? "" : absl::StrCat(absl::StrJoin(models, " and "), " "), what, " a rank"));
    }
    return absl::StrJoin(parts, ", ");
  }

 private:
  std::vector<std::pair<std::string, std::vector<std::string>>> groups_;
};

}  // namespace

int32_t DefaultMicroBatchTokens(const RunConfig& config, int32_t max_len) {
  // A pair is not divided.
  const int64_t together = (config.preference().data().empty() ? int64_t{1} : int64_t{2}) * max_len;
  return static_cast<int32_t>(std::clamp<int64_t>(together, kTokens, std::numeric_limits<int32_t>::max()));
}

std::string DescribeMicroBatches(const RunConfig& config, const std::vector<std::string>& services) {
  const auto has = [&](const std::string& service) {
    return std::find(services.begin(), services.end(), service) != services.end();
  };
  Models models;
  std::vector<std::string> by_default;  // sections
  for (const auto& [service, section, model, state] : kTrainers) {
    if (!has(service)) continue;
    const TrainerConfig& trainer = TrainerOf(config, section);
    models.Add(model, OfTrainer(trainer));
    if (trainer.max_tokens_per_micro_batch() == DefaultMicroBatchTokens(config, trainer.max_len())) {
      by_default.push_back(section);
    }
  }
  std::set<std::string> scored;  // those of all rewards are cut alike
  for (const ScoringModel& model : has("scorer") ? ScoringModels(config) : std::vector<ScoringModel>()) {
    const std::string name = model.is_reference() ? "reference" : "reward";
    if (!scored.insert(name).second) continue;
    models.Add(name, model.tokens > 0 ? UpTo(model.tokens, config.actor().max_len()) : Sequences(model.sequences));
  }
  std::string text = models.Text();
  if (!by_default.empty()) {
    absl::StrAppend(&text, "; set max_tokens_per_micro_batch or micro_train_batch_size of ",
                    absl::StrJoin(by_default, " and "), " to change it");
  }
  return text;
}

}  // namespace quartet
