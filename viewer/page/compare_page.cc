#include "viewer/page/compare_page.h"

#include <filesystem>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "core/base/status_macros.h"
#include "viewer/page/fill_template.h"
#include "viewer/page/json_text.h"
#include "viewer/page/run_page.h"

namespace quartet {
namespace {

constexpr char kCompareTemplate[] =
#include "viewer/page/compare.inc"
    ;

}  // namespace

absl::StatusOr<std::string> ComparePage(const std::vector<std::string>& run_dirs) {
  std::vector<std::string> names;
  std::string data;
  {
    JsonList all("{", &data);
    JsonList runs("[", all.Next("runs"));
    for (const std::string& run_dir : run_dirs) {
      RunPage page(run_dir);
      QUARTET_RETURN_IF_ERROR(page.Read());
      if (page.is_empty()) {
        return absl::NotFoundError(absl::StrCat(run_dir, " has no run.textproto: it is no run's folder"));
      }
      page.AppendData(/*with_samples=*/false, runs.Next());
      names.push_back(std::filesystem::path(run_dir).filename().string());
    }
  }
  return FillTemplate(kCompareTemplate, absl::StrJoin(names, ", "), data);
}

}  // namespace quartet
