// The boundary between exceptions (LibTorch's, a collective's, the ledger's) and absl::Status. LibTorch-free.
#pragma once

#include <exception>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "core/zero/ledger.h"

namespace quartet {

// `error`, thrown while `what` was being done. RESOURCE_EXHAUSTED where memory or a budget ran out (OutOfMemoryError,
// std::bad_alloc, LibTorch's allocators): the message then says what `ledger` holds and what would help. Else INTERNAL.
absl::Status StatusOf(const std::exception& error, const std::string& what, const Ledger& ledger);

// Runs `work`, which returns an absl::Status; what it throws becomes the status above.
template <typename Work>
absl::Status CatchExceptions(const std::string& what, const Ledger& ledger, Work&& work) {
  try {
    return std::forward<Work>(work)();
  } catch (const std::exception& error) {
    return StatusOf(error, what, ledger);
  }
}

}  // namespace quartet
