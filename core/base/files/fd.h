// File descriptors, and all that is to be written to one.
#pragma once

#include <unistd.h>

#include <cstdint>
#include <string_view>
#include <utility>

namespace quartet {

// Closed at the end of its scope. One thread.
class Fd {
 public:
  // Takes over a descriptor; below 0: none.
  explicit Fd(int fd = -1) : fd_(fd) {}
  Fd(Fd&& other) noexcept : fd_(other.Release()) {}
  Fd& operator=(Fd&& other) noexcept {
    Reset(other.Release());
    return *this;
  }
  ~Fd() { Reset(); }

  bool is_open() const { return fd_ >= 0; }
  int get() const { return fd_; }
  // The descriptor, from now on the caller's to close.
  int Release() { return std::exchange(fd_, -1); }
  void Reset(int fd = -1) {
    if (is_open()) close(fd_);
    fd_ = fd;
  }

 private:
  int fd_;
};

// Writes all of `bytes`, at the file's position or, with `offset`, from there on. False, with errno, where it cannot;
// some may be written then. Thread safe.
bool WriteAll(int fd, std::string_view bytes);
bool WriteAllAt(int fd, uint64_t offset, std::string_view bytes);

}  // namespace quartet
