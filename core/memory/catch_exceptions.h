// The boundary of a call of an engine: exceptions (LibTorch's, a collective's, the ledger's) become an absl::Status,
// and the memory that the call has freed is offered to the system (block_cache.h). LibTorch-free.
#pragma once

#include <exception>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "core/memory/block_cache.h"
#include "core/memory/ledger.h"

namespace quartet {

// Memory or a budget ran out: OutOfMemoryError, std::bad_alloc, what LibTorch's allocators throw.
bool IsOutOfMemory(const std::exception& error);

// `error`, thrown while `what` was being done. RESOURCE_EXHAUSTED where it is of memory: the message then says what
// `ledger` holds and what would help. Else INTERNAL.
absl::Status StatusOf(const std::exception& error, const std::string& what, const Ledger& ledger);

// Runs `work`, which returns an absl::Status, in a ReuseScope; what it throws becomes the status above.
template <typename Work>
absl::Status CatchExceptions(const std::string& what, const Ledger& ledger, Work&& work) {
  const ReuseScope reuse;
  try {
    return std::forward<Work>(work)();
  } catch (const std::exception& error) {
    return StatusOf(error, what, ledger);
  }
}

}  // namespace quartet
