#include "orchestrator/loop/report/batch_file.h"

#include <iterator>
#include <memory>
#include <utility>

#include "core/base/status_macros.h"
#include "core/safetensors/writer.h"

namespace quartet {
namespace {

// Tensors of one dimension, in the order in which they come.
class Columns {
 public:
  template <typename T>
  void Add(const std::string& name, Dtype dtype, std::vector<T> values) {
    entries_.push_back({name, dtype, {static_cast<int64_t>(values.size())}});
    const auto own = std::make_shared<const std::vector<T>>(std::move(values));
    columns_.push_back({std::shared_ptr<const void>(own, own->data()), own->size() * sizeof(T)});
  }

  absl::Status Write(const std::string& path) {
    QUARTET_ASSIGN_OR_RETURN(const std::unique_ptr<SafetensorsWriter> writer,
                             SafetensorsWriter::Create(path, std::move(entries_)));
    for (size_t i = 0; i < columns_.size(); ++i) {
      QUARTET_RETURN_IF_ERROR(writer->Write(static_cast<int>(i), 0, columns_[i].data.get(), columns_[i].bytes));
    }
    return writer->Close();
  }

 private:
  struct Column {
    std::shared_ptr<const void> data;
    size_t bytes;
  };
  std::vector<SafetensorsWriter::Entry> entries_;
  std::vector<Column> columns_;
};

constexpr std::pair<const char*, std::vector<float> Experience::*> kOfActions[] = {
    {"token_rewards", &Experience::token_rewards},
    {"rollout_log_probs", &Experience::rollout_log_probs},
    {"sampled_log_probs", &Experience::sampled_log_probs},
    {"log_probs", &Experience::log_probs},
    {"reference_log_probs", &Experience::reference_log_probs},
    {"values", &Experience::values},
    {"kl", &Experience::kl},
    {"advantages", &Experience::advantages},
    {"returns", &Experience::returns},
};

}  // namespace

absl::Status WriteBatch(const std::vector<Experience>& batch, const std::string& path) {
  std::vector<int64_t> token_offsets = {0}, action_offsets = {0}, sequence_offsets = {0}, group;
  std::vector<uint8_t> truncated, excluded, action_mask;
  std::vector<double> reward, score, shaped_reward;
  std::vector<int32_t> ids;
  for (const Experience& e : batch) {
    for (const TokenSequence& tokens : e.sequences) {
      ids.insert(ids.end(), tokens.ids().begin(), tokens.ids().end());
      action_mask.insert(action_mask.end(), tokens.action_mask().begin(), tokens.action_mask().end());
      sequence_offsets.push_back(std::ssize(ids));
    }
    token_offsets.push_back(std::ssize(ids));
    action_offsets.push_back(action_offsets.back() + e.action_tokens());
    group.push_back(e.group);
    truncated.push_back(e.truncated);
    excluded.push_back(e.excluded);
    reward.push_back(e.reward);
    score.push_back(e.score);
    shaped_reward.push_back(e.shaped_reward);
  }
  const auto actions = static_cast<size_t>(action_offsets.back());
  Columns columns;
  columns.Add("token_offsets", Dtype::kI64, std::move(token_offsets));
  columns.Add("action_offsets", Dtype::kI64, std::move(action_offsets));
  columns.Add("sequence_offsets", Dtype::kI64, std::move(sequence_offsets));
  columns.Add("group", Dtype::kI64, std::move(group));
  columns.Add("truncated", Dtype::kBool, std::move(truncated));
  columns.Add("excluded", Dtype::kBool, std::move(excluded));
  columns.Add("reward", Dtype::kF64, std::move(reward));
  columns.Add("score", Dtype::kF64, std::move(score));
  columns.Add("shaped_reward", Dtype::kF64, std::move(shaped_reward));
  columns.Add("ids", Dtype::kI32, std::move(ids));
  columns.Add("action_mask", Dtype::kBool, std::move(action_mask));
  for (const auto& [name, of] : kOfActions) {
    std::vector<float> values;
    for (const Experience& e : batch) values.insert(values.end(), (e.*of).begin(), (e.*of).end());
    if (values.size() == actions) columns.Add(name, Dtype::kF32, std::move(values));
  }
  return columns.Write(path);
}

}  // namespace quartet
