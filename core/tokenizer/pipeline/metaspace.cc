#include "core/tokenizer/pipeline/metaspace.h"

#include <nlohmann/json.hpp>
#include <string>

#include "absl/strings/str_cat.h"
#include "core/base/status_macros.h"
#include "core/tokenizer/pipeline/step.h"

namespace quartet {

absl::StatusOr<MetaspacePrepend> ReadMetaspacePrepend(const nlohmann::json& step) {
  if (!step.contains("prepend_scheme")) {
    QUARTET_ASSIGN_OR_RETURN(const bool add, StepFlag(step, "add_prefix_space", true));
    return add ? MetaspacePrepend::kAlways : MetaspacePrepend::kNever;
  }
  QUARTET_ASSIGN_OR_RETURN(const std::string scheme, StepText(step, "prepend_scheme"));
  if (scheme == "always") return MetaspacePrepend::kAlways;
  if (scheme == "first") return MetaspacePrepend::kFirst;
  if (scheme == "never") return MetaspacePrepend::kNever;
  return StepError(step, absl::StrCat("the prepend_scheme \"", scheme, "\" is not supported"));
}

}  // namespace quartet
