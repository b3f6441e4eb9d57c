// For tests of what happens where no more files can be opened.
#pragma once

#include <gtest/gtest.h>
#include <sys/resource.h>

namespace quartet {

// Descriptors that this process may have, until it goes.
class FileLimit {
 public:
  explicit FileLimit(rlim_t most) {
    getrlimit(RLIMIT_NOFILE, &before_);
    const rlimit now = {most, before_.rlim_max};
    EXPECT_EQ(setrlimit(RLIMIT_NOFILE, &now), 0);
  }
  ~FileLimit() { setrlimit(RLIMIT_NOFILE, &before_); }
  FileLimit(const FileLimit&) = delete;
  FileLimit& operator=(const FileLimit&) = delete;

 private:
  rlimit before_;
};

}  // namespace quartet
