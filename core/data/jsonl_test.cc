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
using ::testing::IsEmpty;
using ::testing::Pair;

class ReadJsonlTest : public ::testing::Test {
 protected:
  // Keys that begin with '?' are optional.
  absl::StatusOr<std::vector<Record>> Read(const std::string& content, const std::vector<std::string>& names) {
    std::ofstream(path_, std::ios::binary) << content;
    std::vector<JsonlKey> keys;
    for (const std::string& name : names) {
      const bool optional = name[0] == '?';
      keys.push_back({.name = name.substr(optional), .option = "data.key", .optional = optional});
    }
    return ReadJsonl({.path = path_, .option = "data.file"}, keys);
  }
  // What follows the file's option and name.
  std::string Error(const std::string& content, const std::vector<std::string>& keys) {
    const absl::Status status = Read(content, keys).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    const std::string message(status.message()), place = "data.file: " + path_;
    EXPECT_EQ(message.substr(0, place.size()), place) << message;
    return message.substr(std::min(place.size(), message.size()));
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

TEST_F(ReadJsonlTest, TakesAListWhereTheKeySaysSoWithoutWhatTheListHas) {
  std::ofstream(path_) << R"({"chat": [{"role": "user"}], "more": 1})"
                          "\n"
                          R"({"chat": "text", "answer": "a"})"
                          "\n";
  const auto read = [&](bool list) {
    return ReadJsonl({.path = path_, .option = "data.file"},
                     {{.name = "chat", .option = "data.key", .list = list},
                      {.name = "answer", .option = "data.answer", .spared_by = "chat"}});
  };
  const auto records = read(true);
  ASSERT_TRUE(records.ok()) << records.status();
  EXPECT_EQ((*records)[0].lists.at("chat")[0]["role"], "user");
  EXPECT_THAT((*records)[0].fields, IsEmpty());
  EXPECT_THAT((*records)[1].fields, ElementsAre(Pair("answer", "a"), Pair("chat", "text")));
  EXPECT_THAT((*records)[1].lists, IsEmpty());
  EXPECT_THAT(std::string(read(false).status().message()),
              HasSubstr("(data.key) is of JSON type array; a string, a number or a boolean is allowed"));
  std::ofstream(path_) << R"({"chat": "text"})";
  EXPECT_THAT(std::string(read(true).status().message()),
              HasSubstr("has no field \"answer\" (data.answer); the line has: chat"));
}

TEST_F(ReadJsonlTest, NamesFileLineAndField) {
  EXPECT_EQ(Error("{\"q\":\"1\"}\n{\"my_q\":\"2\", \"gold\": 3, \"id\": 4}\n", {"q"}),
            " line 2: has no field \"q\" (data.key); the line has: gold, id, my_q");
  EXPECT_EQ(Error("{}\n", {"q"}), " line 1: has no field \"q\" (data.key); the line has: nothing");
  EXPECT_LT(Error("{\"" + std::string(100'000, 'x') + "\": 1}\n", {"q"}).size(), 500);
  EXPECT_THAT(Error("{\"q\":null}\n", {"q"}), HasSubstr("line 1: field \"q\" (data.key) is of JSON type null"));
  EXPECT_THAT(Error("{\"q\":[\"1\"]}\n", {"?q"}), HasSubstr("array"));
  EXPECT_THAT(Error("{\"q\":\"1\"}\n[1]\n", {"q"}), HasSubstr("line 2"));
  EXPECT_THAT(Error("{\"q\":\"1\"}\n\n{\"q\":\"2\"}\n", {"q"}), HasSubstr("line 2: is blank"));
  EXPECT_THAT(Error("{\"x\":" + std::string(100'000, '[') + "\n", {"q"}), HasSubstr("nested deeper"));
}

TEST_F(ReadJsonlTest, NamesThePlaceInTheFileWhereItIsNoJson) {
  EXPECT_THAT(Error("{\"q\":\"1\"}\n{\"q\": \"2\", \"a\": oops}\n", {"q"}),
              HasSubstr(": not well-formed JSON at line 2, column 17: "));
  EXPECT_THAT(Error("{\"q\":\"1\"}\n{\"q\":\n", {"q"}), HasSubstr("at line 2, column "));
}

TEST_F(ReadJsonlTest, SaysHowLargeAFileWithoutRecordsIs) {
  EXPECT_EQ(Error("", {"q"}), " is empty (0 bytes); it needs at least one line, a JSON object");
  EXPECT_THAT(Error("\n \n", {"q"}), HasSubstr("nothing but white space (3 bytes)"));
}

TEST_F(ReadJsonlTest, SaysThatAFileIsNotThereAndWhereRelativePathsStart) {
  const auto status = ReadJsonl({.path = "/nonexistent/file.jsonl", .option = "data.file"}, {}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(status.message(),
            "data.file: /nonexistent/file.jsonl: cannot be opened: No such file or directory; relative "
            "paths start at " +
                (std::filesystem::current_path() / "").string());
}

}  // namespace
}  // namespace quartet
