#include "core/base/fail_point.h"

#include <signal.h>
#include <stdlib.h>

#include <atomic>
#include <chrono>
#include <map>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "core/base/logging.h"
#include "core/base/status_macros.h"

namespace quartet {
namespace {

struct Point {
  enum class Action { kKill, kError, kSleep, kTrip } action;
  int sleep_ms = 0;
  int only_pass = 0;  // 0: every
  int passes = 0;
};

using Points = std::map<std::string, Point, std::less<>>;

absl::Status ParsePoints(const std::string& specification, Points* points) {
  for (absl::string_view item : absl::StrSplit(specification, ',', absl::SkipEmpty())) {
    const auto malformed = [item] {
      return absl::InvalidArgumentError(absl::StrCat("QUARTET_FAIL_POINTS: '", item,
                                                     "' is not name=action[@n], where action is kill, error, trip or "
                                                     "sleep:<milliseconds> and n is at least 1"));
    };
    const std::pair<std::string, std::string> name_action = absl::StrSplit(item, absl::MaxSplits('=', 1));
    if (name_action.first.empty()) return malformed();
    const std::pair<std::string, std::string> action_pass = absl::StrSplit(name_action.second, absl::MaxSplits('@', 1));
    const std::string& action = action_pass.first;
    Point point;
    if (name_action.second.find('@') != std::string::npos &&
        (!absl::SimpleAtoi(action_pass.second, &point.only_pass) || point.only_pass < 1)) {
      return malformed();
    }
    if (action == "kill") {
      point.action = Point::Action::kKill;
    } else if (action == "error") {
      point.action = Point::Action::kError;
    } else if (action == "trip") {
      point.action = Point::Action::kTrip;
    } else if (action.rfind("sleep:", 0) == 0 && absl::SimpleAtoi(action.substr(6), &point.sleep_ms) &&
               point.sleep_ms >= 0) {
      point.action = Point::Action::kSleep;
    } else {
      return malformed();
    }
    if (!points->emplace(name_action.first, point).second) {
      return absl::InvalidArgumentError(absl::StrCat("QUARTET_FAIL_POINTS names '", name_action.first, "' twice"));
    }
  }
  return absl::OkStatus();
}

struct Registry {
  Registry() {
    const char* specification = getenv("QUARTET_FAIL_POINTS");
    if (specification == nullptr) return;
    if (absl::Status s = ParsePoints(specification, &points); !s.ok()) QUARTET_LOG(kFatal) << s.message();
    any = !points.empty();
  }
  std::atomic<bool> any{false};
  std::mutex mutex;
  Points points;  // guarded by mutex
};

Registry& TheRegistry() {
  static auto* registry = new Registry;
  return *registry;
}

// Counts a pass; the point's action if it happens on this pass.
std::unique_ptr<Point> Pass(std::string_view name) {
  Registry& registry = TheRegistry();
  if (!registry.any.load(std::memory_order_relaxed)) return nullptr;
  std::lock_guard<std::mutex> lock(registry.mutex);
  auto found = registry.points.find(name);
  if (found == registry.points.end()) return nullptr;
  Point& point = found->second;
  ++point.passes;
  if (point.only_pass != 0 && point.passes != point.only_pass) return nullptr;
  QUARTET_LOG(kWarning) << "fail point " << name << ", pass " << point.passes;
  return std::make_unique<Point>(point);
}

}  // namespace

absl::Status FailPoint(std::string_view name) {
  std::unique_ptr<Point> point = Pass(name);
  if (point == nullptr) return absl::OkStatus();
  switch (point->action) {
    case Point::Action::kKill:
      raise(SIGKILL);
      break;
    case Point::Action::kError:
      return absl::InternalError(absl::StrCat("fail point ", std::string(name)));
    case Point::Action::kSleep:
      std::this_thread::sleep_for(std::chrono::milliseconds(point->sleep_ms));
      break;
    case Point::Action::kTrip:
      break;
  }
  return absl::OkStatus();
}

void ThrowAtFailPoint(std::string_view name) {
  if (const absl::Status status = FailPoint(name); !status.ok())
    throw std::runtime_error(std::string(status.message()));
}

bool FailPointArmed(std::string_view name) {
  std::unique_ptr<Point> point = Pass(name);
  return point != nullptr && point->action == Point::Action::kTrip;
}

absl::Status SetFailPoints(std::string_view specification) {
  Points points;
  QUARTET_RETURN_IF_ERROR(ParsePoints(std::string(specification), &points));
  Registry& registry = TheRegistry();
  std::lock_guard<std::mutex> lock(registry.mutex);
  registry.points = std::move(points);
  registry.any = !registry.points.empty();
  return absl::OkStatus();
}

}  // namespace quartet
