#include "core/data/jsonl.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

namespace quartet {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Pair;

class ReadJsonlTest : public ::testing::Test {
 protected:
  absl::StatusOr<std::vector<Record>> Read(const std::string& content, const std::vector<std::string>& keys) {
    std::ofstream(path_, std::ios::binary) << content;
    return ReadJsonl(path_, keys);
  }
  std::string Error(const std::string& content, const std::vector<std::string>& keys) {
    const auto records = Read(content, keys);
    EXPECT_EQ(records.status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(records.status().message()), HasSubstr(path_));
    return std::string(records.status().message());
  }
  void TearDown() override { std::filesystem::remove(path_); }

  const std::string path_ = ::testing::TempDir() + "/jsonl_test_" + std::to_string(getpid());
};

TEST_F(ReadJsonlTest, KeepsTheAskedForFieldsOfEveryLine) {
  const auto records =
      Read("{\"q\": \"1 + 1?\", \"a\": 2, \"more\": []}\r\n{\"a\": \"x\\ny\", \"q\": \"\"}\n\n \n", {"q", "a"});
  ASSERT_TRUE(records.ok()) << records.status();
  ASSERT_EQ(records->size(), 2);
  EXPECT_THAT((*records)[0].fields, ElementsAre(Pair("a", "2"), Pair("q", "1 + 1?")));
  EXPECT_THAT((*records)[1].fields, ElementsAre(Pair("a", "x\ny"), Pair("q", "")));
  EXPECT_EQ((*records)[1].line, 2);
}

TEST_F(ReadJsonlTest, ReadsALastLineWithoutItsEnd) {
  EXPECT_EQ(Read("{\"q\":\"1\"}\n{\"q\":\"2\"}", {"q"})->size(), 2);
}

TEST_F(ReadJsonlTest, TurnsNumbersAndBooleansIntoTheirText) {
  const auto records = Read(R"({"a": -3, "b": 0.5, "c": true, "d": 18446744073709551615})", {"a", "b", "c", "d"});
  ASSERT_TRUE(records.ok()) << records.status();
  EXPECT_THAT((*records)[0].fields,
              ElementsAre(Pair("a", "-3"), Pair("b", "0.5"), Pair("c", "true"), Pair("d", "18446744073709551615")));
}

TEST_F(ReadJsonlTest, LeavesOutAnOptionalFieldThatIsNotThere) {
  const auto records = Read("{\"q\":\"1\"}\n{\"q\":\"2\",\"a\":\"3\"}", {"q", "?a"});
  ASSERT_TRUE(records.ok()) << records.status();
  EXPECT_FALSE((*records)[0].fields.contains("a"));
  EXPECT_EQ((*records)[1].fields.at("a"), "3");
}

TEST_F(ReadJsonlTest, NamesFileLineAndField) {
  EXPECT_THAT(Error("{\"q\":\"1\"}\n{\"p\":\"2\"}\n", {"q"}), HasSubstr("line 2: has no field \"q\""));
  EXPECT_THAT(Error("{\"q\":null}\n", {"q"}), HasSubstr("line 1: field \"q\" is of JSON type null"));
  EXPECT_THAT(Error("{\"q\":[\"1\"]}\n", {"?q"}), HasSubstr("array"));
  EXPECT_THAT(Error("{\"q\":\"1\"}\n[1]\n", {"q"}), HasSubstr("line 2"));
  EXPECT_THAT(Error("{\"q\":\"1\"}\n{\"q\":\n", {"q"}), HasSubstr("line 2"));
  EXPECT_THAT(Error("{\"q\":\"1\"}\n\n{\"q\":\"2\"}\n", {"q"}), HasSubstr("line 2: is blank"));
  EXPECT_THAT(Error("", {"q"}), HasSubstr("no records"));
  EXPECT_THAT(Error("\n \n", {"q"}), HasSubstr("no records"));
  EXPECT_THAT(Error("{\"x\":" + std::string(100'000, '[') + "\n", {"q"}), HasSubstr("nested deeper"));
}

TEST_F(ReadJsonlTest, SaysThatAFileIsNotThere) {
  const auto status = ReadJsonl("/nonexistent/file.jsonl", {"q"}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(status.message()), HasSubstr("/nonexistent/file.jsonl"));
}

}  // namespace
}  // namespace quartet
