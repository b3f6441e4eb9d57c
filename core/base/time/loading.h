// What a program that loads is at, for its log and for whoever waits for it. Thread safe.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"

namespace quartet {

// `done` of `total` parts of `what` ("reading weights") are done. What takes longer than a second is logged every
// second, with the time that is left where it is known, as a line that begins with kLoading.
void ReportLoading(const std::string& what, int64_t done, int64_t total);
inline constexpr char kLoading[] = "loading: ";

// UNAVAILABLE: `sentence` ("the rollout is still loading its model"), then kLoading's text where one was reported.
absl::Status StillLoading(const std::string& sentence);

// "reading weights, 3 of 12", of a log line or of StillLoading's message; "" of other texts.
std::string LoadingDetail(const std::string& text);

}  // namespace quartet
