#include "core/service/reported_fields.h"

#include "absl/status/statusor.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "core/base/files/files.h"
#include "core/base/hash.h"
#include "core/base/hash_text.h"
#include "core/config/services.h"

namespace quartet {
namespace {

bool IsModel(const std::string& field) {
  return absl::EndsWith(field, ".pretrain") ||
         (absl::StartsWith(field, "reward.source.") && absl::EndsWith(field, ".model"));
}

}  // namespace

std::map<std::string, std::string> ReportedFields(const RunConfig& config, std::string_view service) {
  const std::map<std::string, std::string> fields = ServiceFields(config, service);
  std::map<std::string, std::string> reported = fields;
  for (const auto& [field, value] : fields) {
    std::string folder;  // in quotes, as in text format
    if (!IsModel(field) || !absl::CUnescape(value.substr(1, value.size() - 2), &folder)) continue;
    for (const char* file : {"/config.json", "/adapter_config.json"}) {
      const absl::StatusOr<std::string> text = ReadFile(folder + file);
      if (text.ok()) reported[field + file] = absl::StrCat("of the hash ", HashText(HashBytes(*text)));
    }
  }
  return reported;
}

bool IsFileHash(std::string_view field) { return field.find('/') != std::string_view::npos; }

}  // namespace quartet
