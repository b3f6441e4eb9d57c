#include "core/errors/exceptions.h"

#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <new>
#include <string_view>
#include <system_error>

#include "absl/strings/str_cat.h"

namespace quartet {
namespace {

constexpr char kNoMemory[] = "out of memory: ";
constexpr char kMemoryHelp[] = "the host or the container has no more, or ulimit -v forbids it";
constexpr char kNoThread[] = "no further thread can be made: ";
constexpr char kThreadHelp[] = "this user (ulimit -u) or the container (pids.max) has as many as it may have";

std::terminate_handler before;
const std::string* name = nullptr;

// std::thread and std::async throw it.
bool IsNoThread(const std::exception& error) {
  const auto* system = dynamic_cast<const std::system_error*>(&error);
  return system != nullptr && system->code() == std::errc::resource_unavailable_try_again;
}

// Without memory of its own, of which there may be none.
void Say(std::string_view text) {
  while (!text.empty()) {
    const ssize_t n = write(STDERR_FILENO, text.data(), text.size());
    if (n <= 0) return;
    text.remove_prefix(static_cast<size_t>(n));
  }
}

[[noreturn]] void End() {
  const std::exception_ptr thrown = std::current_exception();
  if (thrown == nullptr && std::uncaught_exceptions() == 0) {  // an invariant of ours
    if (before != nullptr) before();
    std::abort();
  }
  Say(*name);
  Say(": ");
  try {
    if (thrown != nullptr) std::rethrow_exception(thrown);
    Say("memory or a thread could not be had");
  } catch (const std::bad_alloc&) {
    Say(kNoMemory);
    Say(kMemoryHelp);
  } catch (const std::exception& error) {
    Say(IsNoThread(error) ? kNoThread : "an error that was not expected: ");
    Say(IsNoThread(error) ? kThreadHelp : error.what());
  } catch (...) {
    Say("an error that was not expected");
  }
  Say("\n");
  _exit(1);
}

}  // namespace

absl::Status StatusOfException(const std::exception& error) {
  if (dynamic_cast<const std::bad_alloc*>(&error) != nullptr) {
    return absl::ResourceExhaustedError(absl::StrCat(kNoMemory, kMemoryHelp));
  }
  if (IsNoThread(error)) return absl::ResourceExhaustedError(absl::StrCat(kNoThread, kThreadHelp));
  return absl::InternalError(error.what());
}

void EndOnExceptions(const std::string& program) {
  static auto* own = new std::string;
  *own = program;
  name = own;
  const std::terminate_handler now = std::set_terminate(End);
  if (now != End) before = now;
}

}  // namespace quartet
