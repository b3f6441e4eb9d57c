#include "core/run_folder/records/tensorboard_writer.h"

#include <gtest/gtest.h>

#include "absl/time/clock.h"
#include "core/base/testing/scratch_folder.h"
#include "core/run_folder/testing/tensorboard_reader.h"

namespace quartet {
namespace {

TEST(Crc32c, AgreesWithRfc3720) {
  EXPECT_EQ(Crc32c("123456789"), 0xe3069283u);
  EXPECT_EQ(Crc32c(std::string(32, '\0')), 0x8a9136aau);
  EXPECT_EQ(Crc32c(std::string(32, '\xff')), 0x62a8ab43u);
  EXPECT_EQ(Crc32c(""), 0u);
}

TEST(TensorBoardWriter, WritesAVersionThenScalarsOfEachStep) {
  const ScratchFolder scratch;
  auto writer = TensorBoardWriter::Create(scratch.path(), absl::FromUnixSeconds(1'700'000'000));
  ASSERT_TRUE(writer.ok()) << writer.status();
  Metrics metrics;
  metrics.Set("reward/mean", 0.25);
  metrics.Set("policy/loss", 0);
  ASSERT_TRUE((*writer)->Write(7, absl::FromUnixMillis(1'700'000'000'500), metrics).ok());

  const std::string name = (*writer)->path().substr(scratch.path().size() + 1);
  EXPECT_EQ(name.rfind("events.out.tfevents.1700000000.", 0), 0) << name;
  const auto read = ReadTensorBoardEvents(scratch.Read(name));
  ASSERT_TRUE(read.ok()) << read.status();
  const std::vector<TensorBoardEvent>& events = *read;
  ASSERT_EQ(events.size(), 2);
  EXPECT_EQ(events[0].file_version(), "brain.Event:2");
  EXPECT_EQ(events[1].step(), 7);
  EXPECT_DOUBLE_EQ(events[1].wall_time(), 1'700'000'000.5);
  ASSERT_EQ(events[1].summary().value_size(), 2);
  EXPECT_EQ(events[1].summary().value(0).tag(), "reward/mean");
  EXPECT_EQ(events[1].summary().value(0).simple_value(), 0.25f);
  EXPECT_TRUE(events[1].summary().value(1).has_simple_value()) << "a zero is a value, too";
}

TEST(SplitTensorBoardFile, LeavesWhatIsBrokenInTheLaterPart) {
  const ScratchFolder scratch;
  auto writer = TensorBoardWriter::Create(scratch.path(), absl::FromUnixSeconds(1'700'000'000));
  ASSERT_TRUE(writer.ok()) << writer.status();
  const auto file = [&] { return scratch.Read((*writer)->path().substr(scratch.path().size() + 1)); };
  EXPECT_EQ(SplitTensorBoardFile(file(), 0).before, "") << "there are no scalars";
  EXPECT_EQ(SplitTensorBoardFile(file(), 0).later, "");
  const std::string head = file();
  Metrics metrics;
  metrics.Set("reward/mean", 0.25);
  for (int64_t step = 0; step < 3; ++step) ASSERT_TRUE((*writer)->Write(step, absl::Now(), metrics).ok());
  const std::string whole = file(), cut = whole.substr(0, whole.size() - 1);
  EXPECT_EQ(SplitTensorBoardFile(whole, 3).before, whole);
  EXPECT_EQ(SplitTensorBoardFile(whole, 3).later, "");
  EXPECT_EQ(SplitTensorBoardFile(whole, 0).before, "");
  EXPECT_EQ(SplitTensorBoardFile(whole, 0).later, whole);
  const TensorBoardParts parts = SplitTensorBoardFile(cut, 3);
  EXPECT_EQ(parts.before + parts.later.substr(head.size()), cut);
  EXPECT_EQ(ReadTensorBoardEvents(parts.before)->size(), 3) << "the version and two steps";
  EXPECT_EQ(SplitTensorBoardFile("no event file", 3).later, "no event file");
}

}  // namespace
}  // namespace quartet
