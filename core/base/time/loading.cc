#include "core/base/time/loading.h"

#include <mutex>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "core/base/logging.h"
#include "core/base/time/deadline.h"
#include "core/base/time/time_left.h"

namespace quartet {
namespace {

struct Report {
  std::mutex mutex;
  std::string what;
  std::string text;
  Deadline::Clock::time_point began{};
  Deadline::Clock::time_point logged{};  // or begun
  bool was_logged = false;
};

Report& Latest() {
  static auto* report = new Report;
  return *report;
}

}  // namespace

void ReportLoading(const std::string& what, int64_t done, int64_t total) {
  Report& latest = Latest();
  const std::lock_guard lock(latest.mutex);
  const Deadline::Clock::time_point now = Deadline::Clock::now();
  if (latest.what != what) {
    latest.what = what;
    latest.began = latest.logged = now;
    latest.was_logged = false;
  }
  const std::string left = TimeLeftAtRate(done, total, absl::FromChrono(now - latest.began));
  latest.text = absl::StrCat(what, ", ", done, " of ", total, left.empty() ? "" : ", ", left);
  const bool is_end = done == total && latest.was_logged;
  if (is_end || now - latest.logged >= std::chrono::seconds(1)) {
    QUARTET_LOG(kInfo) << kLoading << latest.text;
    latest.logged = now;
    latest.was_logged = true;
  }
  if (done == total) latest.what.clear();
}

absl::Status StillLoading(const std::string& sentence) {
  Report& latest = Latest();
  const std::lock_guard lock(latest.mutex);
  if (latest.text.empty()) return absl::UnavailableError(sentence);
  return absl::UnavailableError(absl::StrCat(sentence, "; ", kLoading, latest.text));
}

std::string LoadingDetail(const std::string& text) {
  const size_t at = text.rfind(kLoading);
  return at == std::string::npos ? "" : text.substr(at + sizeof(kLoading) - 1);
}

}  // namespace quartet
