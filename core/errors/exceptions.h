// What becomes of exceptions that nobody expects: memory or a thread that cannot be had, a library's own.
// LibTorch-free.
#pragma once

#include <exception>
#include <string>
#include <type_traits>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace quartet {

// RESOURCE_EXHAUSTED where memory or a thread cannot be had, else INTERNAL with what the exception says.
absl::Status StatusOfException(const std::exception& error);

// What `work` returns, an absl::Status or an absl::StatusOr; what it throws becomes the status above.
template <typename Work>
std::invoke_result_t<Work> CatchAll(Work&& work) {
  try {
    return std::forward<Work>(work)();
  } catch (const std::exception& error) {
    return StatusOfException(error);
  }
}

// From now on an exception that leaves main, a thread or a function that must not throw ends the process with code 1
// and "<program>: <sentence>" on standard error, in place of SIGABRT. Nothing is unwound or flushed.
void EndOnExceptions(const std::string& program);

}  // namespace quartet
