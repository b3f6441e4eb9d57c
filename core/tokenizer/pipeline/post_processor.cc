#include <cstdint>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/base/status_macros.h"
#include "core/tokenizer/pipeline/pipeline.h"
#include "core/tokenizer/pipeline/step.h"

namespace quartet {
namespace {

using nlohmann::json;

absl::StatusOr<int32_t> TokenId(const json& step, const json& value) {
  if (!value.is_number_unsigned() || value.get<uint64_t>() > std::numeric_limits<int32_t>::max()) {
    return StepError(step, absl::StrCat(value.dump(), " is not a token id"));
  }
  return value.get<int32_t>();
}

PostProcessor Surround(std::vector<int32_t> before, std::vector<int32_t> after) {
  return [before = std::move(before), after = std::move(after)](std::vector<int32_t> ids) {
    ids.insert(ids.begin(), before.begin(), before.end());
    ids.insert(ids.end(), after.begin(), after.end());
    return ids;
  };
}

absl::StatusOr<PostProcessor> MakeTemplate(const json& step) {
  const auto single = step.find("single");
  if (single == step.end() || !single->is_array()) return StepError(step, "\"single\" is not a list");
  const auto specials = step.find("special_tokens");
  std::vector<int32_t> around[2];
  int side = 0;
  for (const json& part : *single) {
    const bool known = part.is_object() && part.size() == 1 && part.begin()->is_object();
    if (!known || !part.begin()->contains("id") || !(*part.begin())["id"].is_string()) {
      return StepError(step, absl::StrCat("the part ", part.dump(), " of \"single\" is not well-formed"));
    }
    const auto& name = (*part.begin())["id"].get_ref<const std::string&>();
    if (part.begin().key() == "Sequence" && name == "A" && side == 0) {
      side = 1;
      continue;
    }
    if (part.begin().key() != "SpecialToken") {
      return StepError(step, absl::StrCat("the part ", part.dump(), " of \"single\" is not supported"));
    }
    const json* ids = nullptr;
    if (specials != step.end() && specials->is_object()) {
      const auto special = specials->find(name);
      if (special != specials->end() && special->is_object() && special->contains("ids")) ids = &(*special)["ids"];
    }
    if (ids == nullptr || !ids->is_array()) {
      return StepError(step, absl::StrCat("\"special_tokens\" does not give the ids of \"", name, "\""));
    }
    for (const json& value : *ids) {
      QUARTET_ASSIGN_OR_RETURN(const int32_t token, TokenId(step, value));
      around[side].push_back(token);
    }
  }
  if (side == 0) return StepError(step, "\"single\" does not hold the sequence A");
  return Surround(around[0], around[1]);
}

// "cls" and "sep", each [token, id].
absl::StatusOr<PostProcessor> MakeBertProcessing(const json& step) {
  std::vector<int32_t> around[2];
  const char* names[2] = {"cls", "sep"};
  for (int i = 0; i < 2; ++i) {
    const auto pair = step.find(names[i]);
    if (pair == step.end() || !pair->is_array() || pair->size() != 2) {
      return StepError(step, absl::StrCat("\"", names[i], "\" is not a pair of token and id"));
    }
    QUARTET_ASSIGN_OR_RETURN(const int32_t token, TokenId(step, (*pair)[1]));
    around[i].push_back(token);
  }
  return Surround(around[0], around[1]);
}

}  // namespace

absl::StatusOr<PostProcessor> MakePostProcessor(const json& step) {
  if (step.is_null()) return Surround({}, {});
  QUARTET_ASSIGN_OR_RETURN(const std::string type, StepType(step));
  if (type == "Sequence") return Chain<PostProcessor>(step, "processors", &MakePostProcessor);
  if (type == "ByteLevel") return Surround({}, {});  // it trims offsets, which nobody asks for here
  if (type == "TemplateProcessing") return MakeTemplate(step);
  if (type == "BertProcessing" || type == "RobertaProcessing") return MakeBertProcessing(step);
  return StepNotSupported(type);
}

}  // namespace quartet
