// Early return on errors, errors that are only logged, and where they come from.
#pragma once

#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "core/base/logging.h"

namespace quartet {

// "<place>: " before the message of an error; OK as it is.
inline absl::Status Prefixed(absl::string_view place, const absl::Status& status) {
  return status.ok() ? status : absl::Status(status.code(), absl::StrCat(place, ": ", status.message()));
}
template <typename T>
absl::StatusOr<T> Prefixed(absl::string_view place, absl::StatusOr<T> value) {
  if (!value.ok()) return Prefixed(place, value.status());
  return value;
}

}  // namespace quartet

// Returns from the enclosing function if `expression` (an absl::Status) is an error.
#define QUARTET_RETURN_IF_ERROR(expression)            \
  do {                                                 \
    absl::Status quartet_status_ = (expression);       \
    if (!quartet_status_.ok()) return quartet_status_; \
  } while (false)

// Logs the error, where `expression` (an absl::Status) is one: what goes on without.
#define QUARTET_LOG_IF_ERROR(expression)                                 \
  do {                                                                   \
    const absl::Status quartet_status_ = (expression);                   \
    if (!quartet_status_.ok()) QUARTET_LOG(kWarning) << quartet_status_; \
  } while (false)

// Returns from the enclosing function if `expression` (an absl::StatusOr<T>) is an error; else assigns its value to
// `lhs`, which may be a declaration.
#define QUARTET_ASSIGN_OR_RETURN(lhs, expression) \
  QUARTET_ASSIGN_OR_RETURN_IMPL_(QUARTET_CONCAT_(quartet_statusor_, __LINE__), lhs, expression)

#define QUARTET_CONCAT_INNER_(a, b) a##b
#define QUARTET_CONCAT_(a, b) QUARTET_CONCAT_INNER_(a, b)
#define QUARTET_ASSIGN_OR_RETURN_IMPL_(statusor, lhs, expression) \
  auto statusor = (expression);                                   \
  if (!statusor.ok()) return statusor.status();                   \
  lhs = std::move(statusor).value()
