#include "core/model/tensor_parallel.h"

#include <algorithm>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/base/division.h"
#include "core/base/status_macros.h"

namespace quartet {
namespace {

// Rows of the vocabulary are dealt in units of as many as products take together.
constexpr int64_t kVocabularyUnit = 16;

absl::Status CheckDivides(const char* field, int64_t value, int size) {
  if (value % size == 0) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("config.json: ", field, " is ", value,
                                                 ", which cannot be divided over ", size,
                                                 " ranks; allowed: multiples of ", size));
}

}  // namespace

absl::Status CheckTensorParallel(const ModelConfig& config, int size) {
  if (size > 1 && config.block.qk_norm == QkNorm::kAllHeads) {
    return absl::InvalidArgumentError(absl::StrCat("config.json: model_type is \"", config.model_type,
                                                   "\", whose norms of queries and keys are over all heads, which ",
                                                   size, " ranks do not have; allowed: 1 rank"));
  }
  QUARTET_RETURN_IF_ERROR(CheckDivides("num_attention_heads", config.num_attention_heads, size));
  if (const int64_t heads = config.num_key_value_heads; heads % size != 0 && size % heads != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("config.json: num_key_value_heads is ", heads, ", which can neither be divided over ", size,
                     " ranks nor be on equally many of them each; allowed: multiples and divisors of ", size));
  }
  QUARTET_RETURN_IF_ERROR(CheckDivides("intermediate_size", config.intermediate_size, size));
  if (config.vocab_size <= kVocabularyUnit * (size - 1)) {
    return absl::InvalidArgumentError(absl::StrCat("config.json: vocab_size is ", config.vocab_size,
                                                   ", too little for ", size, " ranks; allowed: above ",
                                                   kVocabularyUnit * (size - 1)));
  }
  return absl::OkStatus();
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
