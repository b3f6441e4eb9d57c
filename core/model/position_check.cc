#include "core/model/position_check.h"

#include "absl/strings/str_cat.h"

namespace quartet {

absl::Status CheckLengthInPositions(const ModelConfig& config, const std::string& folder, std::string_view field,
                                    int64_t length) {
  if (length > config.max_position_embeddings) {
    return absl::InvalidArgumentError(
        absl::StrCat(std::string(field), " is ", length, "; at most ", config.max_position_embeddings,
                     " is allowed, the max_position_embeddings of ", ConfigPath(config, folder),
                     " (unless it is set, it is data.prompt_max_len + rollout.generate_max_len)"));
  }
  return CheckLengthInWindow(config, folder, field, length);
}

}  // namespace quartet
