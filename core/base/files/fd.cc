#include "core/base/files/fd.h"

#include <errno.h>

#include <algorithm>

namespace quartet {
namespace {

constexpr size_t kAtOnce = size_t{1} << 30;  // more than 2 GiB the system does not write

// write(part) of what is left, until nothing is.
template <typename Write>
bool WriteParts(std::string_view left, const Write& write) {
  while (!left.empty()) {
    const ssize_t n = write(left.substr(0, kAtOnce));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return false;
    left.remove_prefix(static_cast<size_t>(n));
  }
  return true;
}

}  // namespace

bool WriteAll(int fd, std::string_view bytes) {
  return WriteParts(bytes, [&](std::string_view part) { return write(fd, part.data(), part.size()); });
}

bool WriteAllAt(int fd, uint64_t offset, std::string_view bytes) {
  return WriteParts(bytes, [&](std::string_view part) {
    const auto at = static_cast<off_t>(offset + static_cast<uint64_t>(part.data() - bytes.data()));
    return pwrite(fd, part.data(), part.size(), at);
  });
}

}  // namespace quartet
