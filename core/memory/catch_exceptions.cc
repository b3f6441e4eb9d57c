#include "core/memory/catch_exceptions.h"

#include <new>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace quartet {
namespace {

// Outside of a MemoryScope LibTorch's allocators say so themselves, each in its own words and with a stack trace below:
// "DefaultCPUAllocator: can't allocate memory: you tried to allocate 8 bytes.", "CUDA out of memory. Tried to allocate
// 8 GiB."
bool IsLibTorchOutOfMemory(const std::string& message) {
  return absl::StrContains(message, "you tried to allocate") || absl::StrContains(message, "Tried to allocate");
}

}  // namespace

bool IsOutOfMemory(const std::exception& error) {
  return dynamic_cast<const OutOfMemoryError*>(&error) != nullptr ||
         dynamic_cast<const std::bad_alloc*>(&error) != nullptr || IsLibTorchOutOfMemory(error.what());
}

absl::Status StatusOf(const std::exception& error, const std::string& what, const Ledger& ledger) {
  const std::string message = error.what();
  if (dynamic_cast<const OutOfMemoryError*>(&error) != nullptr) {
    return absl::ResourceExhaustedError(absl::StrCat(what, ": ", message));
  }
  if (dynamic_cast<const std::bad_alloc*>(&error) != nullptr) {
    return absl::ResourceExhaustedError(absl::StrCat(what, ": out of memory. ", ledger.Describe()));
  }
  if (IsLibTorchOutOfMemory(message)) {
    return absl::ResourceExhaustedError(
        absl::StrCat(what, ": ", message.substr(0, message.find('\n')), " ", ledger.Describe()));
  }
  return absl::InternalError(absl::StrCat(what, ": ", message));
}

}  // namespace quartet
