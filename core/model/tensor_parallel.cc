#include "core/model/tensor_parallel.h"

#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "core/base/division.h"
#include "core/base/status_macros.h"

namespace quartet {
namespace {

// Rows of the vocabulary are dealt in units of as many as products take together.
constexpr int64_t kVocabularyUnit = 16;

absl::Status CheckShare(const ModelConfig& config, int size) {
  const auto refuse = [](const char* field, const auto& value, const std::string& why) {
    return absl::InvalidArgumentError(absl::StrCat("config.json: ", field, " is ", value, ", ", why));
  };
  if (size > 1 && config.block.qk_norm == QkNorm::kAllHeads) {
    return refuse(
        "model_type", absl::StrCat("\"", config.model_type, "\""),
        absl::StrCat("whose norms of queries and keys are over all heads, which ", size, " ranks do not have"));
  }
  const auto divided = [&](const char* field, int64_t value) {
    return value % size == 0 ? absl::OkStatus()
                             : refuse(field, value, absl::StrCat("which cannot be divided over ", size, " ranks"));
  };
  QUARTET_RETURN_IF_ERROR(divided("num_attention_heads", config.num_attention_heads));
  if (const int64_t heads = config.num_key_value_heads; heads % size != 0 && size % heads != 0) {
    return refuse(
        "num_key_value_heads", heads,
        absl::StrCat("which can neither be divided over ", size, " ranks nor be on equally many of them each"));
  }
  QUARTET_RETURN_IF_ERROR(divided("intermediate_size", config.intermediate_size));
  if (config.vocab_size <= kVocabularyUnit * (size - 1)) {
    return refuse("vocab_size", config.vocab_size, absl::StrCat("too little for ", size, " ranks"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckTensorParallel(const ModelConfig& config, int size) {
  const absl::Status status = CheckShare(config, size);
  if (status.ok()) return status;
  constexpr int kMostNamed = 64;
  std::vector<int> allowed;
  for (int other = 1; other <= kMostNamed; ++other) {
    if (CheckShare(config, other).ok()) allowed.push_back(other);
  }
  return absl::InvalidArgumentError(
      absl::StrCat(status.message(), "; allowed numbers of ranks: ", absl::StrJoin(allowed, ", ")));
}

VocabularyRows VocabularyRowsOf(const ModelConfig& config, TensorParallel place) {
  const int64_t units = CeilDivide(config.vocab_size, kVocabularyUnit);
  const auto first = [&](int rank) { return std::min(config.vocab_size, units * rank / place.size * kVocabularyUnit); };
  return {.begin = first(place.rank), .count = first(place.rank + 1) - first(place.rank)};
}

ModelConfig ShareOfConfig(const ModelConfig& config, int size) {
  ModelConfig share = config;
  share.num_attention_heads /= size;
  share.num_key_value_heads = std::max<int64_t>(1, share.num_key_value_heads / size);
  share.intermediate_size /= size;
  return share;
}

ParameterLayout ShareOfLayout(const ModelConfig& config, HeadKind head, TensorParallel place) {
  const ParameterLayout whole = MakeParameterLayout(config, head);
  const VocabularyRows vocabulary = VocabularyRowsOf(config, place);
  ModelConfig share = ShareOfConfig(config, place.size);
  share.vocab_size = vocabulary.count;
  ParameterLayout layout = MakeParameterLayout(share, head);
  for (size_t g = 0; g < layout.groups.size(); ++g) {
    for (size_t p = 0; p < layout.groups[g].parameters.size(); ++p) {
      ParameterSpec& parameter = layout.groups[g].parameters[p];
      const std::vector<int64_t>& stored = whole.groups[g].parameters[p].shape;
      for (size_t dimension = 0; dimension < stored.size(); ++dimension) {
        if (parameter.shape[dimension] == stored[dimension]) continue;
        // Outside of the blocks only the vocabulary is divided.
        const bool of_vocabulary = g == 0 || static_cast<int>(g) == layout.head_group;
        const auto parts = static_cast<int>(stored[dimension] / parameter.shape[dimension]);
        const int copies = of_vocabulary ? 1 : place.size / parts;
        const int64_t begin = of_vocabulary ? vocabulary.begin : place.rank / copies * parameter.shape[dimension];
        parameter.slice = TensorSlice{stored, static_cast<int>(dimension), begin, copies};
      }
    }
  }
  return layout;
}

}  // namespace quartet
