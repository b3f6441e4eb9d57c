#include "core/safetensors/writer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <csignal>
#include <cstring>
#include <filesystem>
#include <fstream>

namespace quartet {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

class SafetensorsWriterTest : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = ::testing::TempDir() + "/writer_" + std::to_string(getpid()) + "_" +
              ::testing::UnitTest::GetInstance()->current_test_info()->name();
    std::filesystem::remove_all(folder_);
    std::filesystem::create_directories(folder_);
    path_ = folder_ + "/model.safetensors";
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  bool FolderIsEmpty() const { return std::filesystem::is_empty(folder_); }

  std::string folder_;
  std::string path_;
};

TEST_F(SafetensorsWriterTest, WritesInAnyOrderWhatTheReaderReads) {
  auto writer = SafetensorsWriter::Create(path_, {{"odd", Dtype::kU8, {3}},
                                                  {"matrix", Dtype::kF32, {2, 2}},
                                                  {"scalar", Dtype::kI64, {}},
                                                  {"nothing", Dtype::kBF16, {0, 5}}});
  ASSERT_TRUE(writer.ok()) << writer.status();
  const float matrix[4] = {1, 2, 3, 4};
  const int64_t scalar = -5;
  ASSERT_TRUE((*writer)->Write(2, 0, &scalar, 8).ok());
  ASSERT_TRUE((*writer)->Write(1, 8, matrix + 2, 8).ok());
  ASSERT_TRUE((*writer)->Write(0, 0, "\7\10\11", 3).ok());
  ASSERT_TRUE((*writer)->Write(1, 0, matrix, 4).ok());
  ASSERT_TRUE((*writer)->Write(1, 4, matrix + 1, 4).ok());
  ASSERT_TRUE((*writer)->Write(3, 0, nullptr, 0).ok());
  EXPECT_FALSE(std::filesystem::exists(path_)) << "a file under the final name must be whole";
  ASSERT_TRUE((*writer)->Close().ok());
  EXPECT_EQ(std::filesystem::file_size(path_), (*writer)->file_bytes());
  EXPECT_FALSE(std::filesystem::exists(path_ + ".partial"));

  auto reader = CheckpointReader::Open(folder_);
  ASSERT_TRUE(reader.ok()) << reader.status();
  for (const auto& [name, info] : (*reader)->tensors()) EXPECT_EQ(info.offset % DtypeSize(info.dtype), 0) << name;
  float read_matrix[4];
  ASSERT_TRUE((*reader)->ReadRange("matrix", 0, 4, read_matrix).ok());
  EXPECT_THAT(read_matrix, ElementsAre(1, 2, 3, 4));
  int64_t read_scalar;
  ASSERT_TRUE((*reader)->ReadRange("scalar", 0, 1, &read_scalar).ok());
  EXPECT_EQ(read_scalar, -5);
  char odd[3];
  ASSERT_TRUE((*reader)->ReadRange("odd", 0, 3, odd).ok());
  EXPECT_THAT(odd, ElementsAre(7, 8, 9));
  EXPECT_THAT((*reader)->tensors().at("nothing").shape, ElementsAre(0, 5));
}

TEST_F(SafetensorsWriterTest, WritesAFileWithoutTensors) {
  auto writer = SafetensorsWriter::Create(path_, {});
  ASSERT_TRUE(writer.ok());
  ASSERT_TRUE((*writer)->Close().ok());
  EXPECT_TRUE(CheckpointReader::Open(folder_)->get()->tensors().empty());
}

TEST_F(SafetensorsWriterTest, RefusesToCloseWhileAByteIsMissing) {
  auto writer = SafetensorsWriter::Create(path_, {{"a", Dtype::kU8, {4}}, {"b", Dtype::kU8, {4}}});
  ASSERT_TRUE(writer.ok());
  ASSERT_TRUE((*writer)->Write(0, 0, "1234", 4).ok());
  ASSERT_TRUE((*writer)->Write(1, 0, "1", 1).ok());
  ASSERT_TRUE((*writer)->Write(1, 2, "34", 2).ok());
  const absl::Status status = (*writer)->Close();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()), HasSubstr("byte 1 of tensor \"b\""));
  ASSERT_TRUE((*writer)->Write(1, 1, "2", 1).ok());
  EXPECT_TRUE((*writer)->Close().ok());
  EXPECT_EQ((*writer)->Close().code(), absl::StatusCode::kFailedPrecondition);
}

TEST_F(SafetensorsWriterTest, RefusesBytesOutsideOrTwice) {
  auto writer = SafetensorsWriter::Create(path_, {{"a", Dtype::kU8, {4}}});
  ASSERT_TRUE(writer.ok());
  EXPECT_EQ((*writer)->Write(0, 2, "123", 3).code(), absl::StatusCode::kOutOfRange);
  EXPECT_EQ((*writer)->Write(0, UINT64_MAX, "1", 1).code(), absl::StatusCode::kOutOfRange);
  EXPECT_EQ((*writer)->Write(1, 0, "1", 1).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ((*writer)->Write(-1, 0, "1", 1).code(), absl::StatusCode::kInvalidArgument);
  ASSERT_TRUE((*writer)->Write(0, 1, "12", 2).ok());
  EXPECT_EQ((*writer)->Write(0, 2, "1", 1).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ((*writer)->Write(0, 0, "12", 2).code(), absl::StatusCode::kInvalidArgument);
}

TEST_F(SafetensorsWriterTest, RefusesEntriesThatMakeNoSense) {
  const std::vector<std::vector<SafetensorsWriter::Entry>> kCases = {
      {{"a", Dtype::kU8, {1}}, {"a", Dtype::kU8, {1}}},
      {{"__metadata__", Dtype::kU8, {1}}},
      {{"a", Dtype::kU8, {-1}}},
      {{"a", Dtype::kF32, {int64_t{1} << 40, int64_t{1} << 40}}},
      {{"\xff", Dtype::kU8, {1}}},
  };
  for (const auto& entries : kCases) {
    EXPECT_EQ(SafetensorsWriter::Create(path_, entries).status().code(), absl::StatusCode::kInvalidArgument);
  }
  EXPECT_TRUE(FolderIsEmpty());
}

TEST_F(SafetensorsWriterTest, LeavesNothingBehindWhenItIsDropped) {
  {
    auto writer = SafetensorsWriter::Create(path_, {{"a", Dtype::kU8, {4}}});
    ASSERT_TRUE(writer.ok());
    EXPECT_FALSE(FolderIsEmpty());
  }
  EXPECT_TRUE(FolderIsEmpty());
}

TEST_F(SafetensorsWriterTest, NamesAFolderThatIsNotThere) {
  const absl::Status status = SafetensorsWriter::Create(folder_ + "/none/x.safetensors", {}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(status.message()), HasSubstr("none/x.safetensors"));
}

TEST_F(SafetensorsWriterTest, ReportsADiskThatIsFull) {
  std::signal(SIGXFSZ, SIG_IGN);
  rlimit before;
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  rlimit small = before;
  small.rlim_cur = 4096;
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &small), 0);
  const absl::Status status = SafetensorsWriter::Create(path_, {{"big", Dtype::kF32, {1 << 20}}}).status();
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &before), 0);
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(status.message()), HasSubstr(path_));
  EXPECT_TRUE(FolderIsEmpty());
}

TEST_F(SafetensorsWriterTest, ReportsADiskThatFillsWhileItWrites) {
  auto writer = SafetensorsWriter::Create(path_, {{"big", Dtype::kF32, {1 << 20}}});
  ASSERT_TRUE(writer.ok());
  std::signal(SIGXFSZ, SIG_IGN);
  rlimit before;
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  rlimit small = before;
  small.rlim_cur = 1 << 20;
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &small), 0);
  const std::vector<float> values(1 << 20, 1.0f);
  const absl::Status status = (*writer)->Write(0, 0, values.data(), values.size() * 4);
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &before), 0);
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(status.message()), HasSubstr("\"big\""));
  EXPECT_THAT(std::string(status.message()), HasSubstr(path_));
  writer->reset();
  EXPECT_TRUE(FolderIsEmpty());
}

}  // namespace
}  // namespace quartet
