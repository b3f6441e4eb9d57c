#include "core/run_folder/private_folder.h"

#include <sys/stat.h>
#include <unistd.h>

#include "core/base/testing/scratch_folder.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace quartet {
namespace {

mode_t ModeOf(const std::string& path) {
  struct stat info;
  return stat(path.c_str(), &info) == 0 ? info.st_mode & 0777 : 0;
}

TEST(PrivateFolder, IsOfItsUserAlone) {
  const ScratchFolder scratch;
  const std::string path = scratch.path() + "/private";
  ASSERT_TRUE(MakePrivateFolder(path).ok());
  EXPECT_EQ(ModeOf(path), 0700u);
  ASSERT_EQ(chmod(path.c_str(), 0777), 0);
  ASSERT_TRUE(MakePrivateFolder(path).ok());
  EXPECT_EQ(ModeOf(path), 0700u);
  ASSERT_EQ(symlink(path.c_str(), (path + "_link").c_str()), 0);
  EXPECT_EQ(MakePrivateFolder(path + "_link").code(), absl::StatusCode::kPermissionDenied);
  EXPECT_EQ(MakePrivateFolder(scratch.path() + "/none/private").code(), absl::StatusCode::kNotFound);
  if (geteuid() != 0) GTEST_SKIP() << "only root can give a folder away";
  ASSERT_EQ(chown(path.c_str(), 12345, 12345), 0);
  const absl::Status status = MakePrivateFolder(path);
  EXPECT_EQ(status.code(), absl::StatusCode::kPermissionDenied);
  EXPECT_THAT(std::string(status.message()), ::testing::HasSubstr(path));
}

}  // namespace
}  // namespace quartet
