#include "orchestrator/tensorboard_writer.h"

#include <gtest/gtest.h>

#include <cstring>

#include "orchestrator/fake_services.h"
#include "orchestrator/tensorboard_event.pb.h"

namespace quartet {
namespace {

TEST(Crc32c, AgreesWithRfc3720) {
  EXPECT_EQ(Crc32c("123456789"), 0xe3069283u);
  EXPECT_EQ(Crc32c(std::string(32, '\0')), 0x8a9136aau);
  EXPECT_EQ(Crc32c(std::string(32, '\xff')), 0x62a8ab43u);
  EXPECT_EQ(Crc32c(""), 0u);
}

// What a reader of the format does, independent of the writer's code but for the CRC.
std::vector<TensorBoardEvent> ReadEvents(const std::string& bytes) {
  const auto number = [&bytes](size_t at, int size) {
    uint64_t value = 0;
    for (int i = size; i-- > 0;) value = value << 8 | static_cast<unsigned char>(bytes.at(at + i));
    return value;
  };
  const auto masked = [](std::string_view data) {
    const uint32_t crc = Crc32c(data);
    return static_cast<uint32_t>((crc >> 15 | crc << 17) + 0xa282ead8u);
  };
  std::vector<TensorBoardEvent> events;
  size_t at = 0;
  while (at < bytes.size()) {
    const uint64_t length = number(at, 8);
    EXPECT_EQ(number(at + 8, 4), masked(std::string_view(bytes).substr(at, 8)));
    const std::string data = bytes.substr(at + 12, length);
    EXPECT_EQ(number(at + 12 + length, 4), masked(data));
    EXPECT_TRUE(events.emplace_back().ParseFromString(data));
    at += 12 + length + 4;
  }
  return events;
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
  const std::vector<TensorBoardEvent> events = ReadEvents(scratch.Read(name));
  ASSERT_EQ(events.size(), 2);
  EXPECT_EQ(events[0].file_version(), "brain.Event:2");
  EXPECT_EQ(events[1].step(), 7);
  EXPECT_DOUBLE_EQ(events[1].wall_time(), 1'700'000'000.5);
  ASSERT_EQ(events[1].summary().value_size(), 2);
  EXPECT_EQ(events[1].summary().value(0).tag(), "reward/mean");
  EXPECT_EQ(events[1].summary().value(0).simple_value(), 0.25f);
  EXPECT_TRUE(events[1].summary().value(1).has_simple_value()) << "a zero is a value, too";
}

}  // namespace
}  // namespace quartet
