#include "core/data/record.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/data/json.h"

namespace quartet {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Pair;

nlohmann::ordered_json Row(const std::string& text) {
  const auto row = ParseExactOrderedJson(text, "the row");
  EXPECT_TRUE(row.ok()) << row.status();
  return *row;
}

// Keys that begin with '?' are optional.
absl::StatusOr<Record> Read(const std::string& row, const std::vector<std::string>& names) {
  std::vector<RowKey> keys;
  for (const std::string& name : names) {
    const bool optional = name[0] == '?';
    keys.push_back({.name = name.substr(optional), .option = "data.key", .optional = optional});
  }
  return ReadRecord(Row(row), keys);
}

std::string Error(const std::string& row, const std::vector<std::string>& names) {
  const absl::Status status = Read(row, names).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  return std::string(status.message());
}

TEST(Record, KeepsTheAskedForFieldsAlone) {
  EXPECT_THAT(Read(R"({"q": "1 + 1?", "a": 2, "more": []})", {"q", "a"})->fields,
              ElementsAre(Pair("a", "2"), Pair("q", "1 + 1?")));
}

TEST(Record, TurnsNumbersAndBooleansIntoTheirText) {
  EXPECT_THAT(Read(R"({"a": -3, "b": 0.5, "c": true, "d": 18446744073709551615})", {"a", "b", "c", "d"})->fields,
              ElementsAre(Pair("a", "-3"), Pair("b", "0.5"), Pair("c", "true"), Pair("d", "18446744073709551615")));
}

TEST(Record, KeepsTheDigitsOfNumbersBeyondThoseOfTheMachine) {
  const auto text = [](const std::string& number) {
    const auto row = ParseExactOrderedJson("{\"a\": " + number + "}", "");
    EXPECT_TRUE(row.ok()) << row.status();
    return ReadRecord(*row, {{.name = "a", .option = "data.key"}})->fields.at("a");
  };
  for (const char* number : {"1180591620717411303424", "-36893488147419103232", "3.14159265358979323846"}) {
    EXPECT_EQ(text(number), number);
  }
  EXPECT_EQ(text("0.25"), "0.25");
}

TEST(Record, TurnsListsAndObjectsIntoTheirJsonWhereTheKeySaysSo) {
  const auto read = [](const std::string& row) {
    return ReadRecord(Row(row), {{.name = "tests", .option = "data.key", .as_json = true}, {.rest = true}});
  };
  EXPECT_EQ(read(R"j({"tests": ["assert f(1) == 1", "é"]})j")->fields.at("tests"),
            R"j(["assert f(1) == 1", "\u00e9"])j");
  const std::string tests = R"({"inputs": [[100000000000000000000000]], "outputs": [0.5], "fn_name": null})";
  const auto record = read(R"({"tests": )" + tests + R"(, "more": [36893488147419103232]})");
  EXPECT_EQ(record->fields.at("tests"), tests);
  EXPECT_EQ(record->rest, R"({"more": [36893488147419103232]})");
  EXPECT_EQ(read(R"({"tests": "[1]"})")->fields.at("tests"), "[1]");
}

TEST(Record, FollowsDotsIntoARow) {
  const std::string row = R"({"reward_model": {"ground_truth": "42", "style": "rule"}, "x": {"y": {"z": 1}}})";
  EXPECT_THAT(Read(row, {"reward_model.ground_truth", "x.y.z"})->fields,
              ElementsAre(Pair("reward_model.ground_truth", "42"), Pair("x.y.z", "1")));
  EXPECT_EQ(Error(row, {"reward_model.answer"}),
            "has no field \"reward_model.answer\" (data.key); it has: reward_model, x");
  EXPECT_THAT(Error(row, {"x.y"}), HasSubstr("is of JSON type object"));
  EXPECT_THAT(Error(row, {"reward_model.style.more"}), HasSubstr("has no field"));
}

TEST(Record, TakesAWholeNameWithDotsFirst) {
  EXPECT_THAT(Read(R"({"a": {"b": 1}, "a.b": 2, "c.d": {"e": 3}})", {"a.b", "c.d.e"})->fields,
              ElementsAre(Pair("a.b", "2"), Pair("c.d.e", "3")));
}

TEST(Record, LeavesOutAnOptionalFieldThatIsNullOrNotThere) {
  EXPECT_THAT(Read(R"({"q": "1", "b": null})", {"q", "?a", "?b", "?c.d"})->fields, ElementsAre(Pair("q", "1")));
}

TEST(Record, SaysOfANullFieldThatItIsNull) {
  EXPECT_EQ(Error(R"({"q": null})", {"q"}), "field \"q\" (data.key) is null");
  EXPECT_EQ(Error(R"({"a": {"b": null}})", {"a.b"}), "field \"a.b\" (data.key) is null");
  EXPECT_THAT(Error(R"({"a": null})", {"a.b"}), HasSubstr("has no field \"a.b\""));
}

TEST(Record, TakesAListWhereTheKeySaysSoWithoutWhatTheListHas) {
  const auto read = [](const std::string& row, bool list) {
    return ReadRecord(Row(row), {{.name = "chat", .option = "data.key", .list = list},
                                 {.name = "answer", .option = "data.answer", .spared_by = "chat"}});
  };
  const std::string list = R"({"chat": [{"role": "user", "content": "x"}], "more": 1})";
  EXPECT_EQ(read(list, true)->lists.at("chat").dump(), R"([{"role":"user","content":"x"}])");
  EXPECT_THAT(read(list, true)->fields, IsEmpty());
  EXPECT_THAT(read(R"({"chat": "text", "answer": "a"})", true)->fields,
              ElementsAre(Pair("answer", "a"), Pair("chat", "text")));
  EXPECT_THAT(std::string(read(list, false).status().message()),
              HasSubstr("(data.key) is of JSON type array; a string, a number or a boolean is allowed"));
  EXPECT_THAT(std::string(read(R"({"chat": "text"})", true).status().message()),
              HasSubstr("has no field \"answer\" (data.answer); it has: chat"));
}

TEST(Record, HasNumbersInItsListsAsProgramsThatReadJsonHaveThem) {
  const auto read = [](const std::string& number, const std::string& columns) {
    return ReadRecord(Row(R"({"chat": [{"x": {"y": [)" + number + "]}}]}"),
                      {{.name = "chat", .option = "data.key", .list = true}}, columns);
  };
  for (const char* columns : {"", "chat"}) {
    const auto value = [&](const std::string& number) {
      return read(number, columns)->lists.at("chat")[0]["x"]["y"][0];
    };
    EXPECT_EQ(value("3.14159265358979312345"), nlohmann::ordered_json(3.141592653589793));
    EXPECT_EQ(value("100000000000000000.0"), nlohmann::ordered_json(1e17));
    EXPECT_EQ(value("18446744073709551615").dump(), "18446744073709551615");
    EXPECT_EQ(read("12345678901234567890123", columns).status().message(),
              "field \"chat\" (data.key) has the number 12345678901234567890123; whole numbers of at most 64 bits are "
              "allowed");
  }
}

TEST(Record, OfAFileOfColumnsHasNoFieldsOfListsThatAreNull) {
  const std::string row = R"({"tools": [{"name": "f", "unit": null, "enum": [null, 1], "in": {"x": null}}]})";
  const std::vector<RowKey> keys = {{.name = "tools", .option = "data.key", .list = true}};
  EXPECT_EQ(ReadRecord(Row(row), keys)->lists.at("tools").dump(),
            R"([{"name":"f","unit":null,"enum":[null,1],"in":{"x":null}}])");
  EXPECT_EQ(ReadRecord(Row(row), keys, "tools")->lists.at("tools").dump(), R"([{"name":"f","enum":[null,1],"in":{}}])");
}

TEST(Record, NamesWhatARowHas) {
  EXPECT_EQ(Error(R"({"my_q":"2", "gold": 3, "id": 4})", {"q"}),
            "has no field \"q\" (data.key); it has: my_q, gold, id");
  EXPECT_EQ(Error("{}", {"q"}), "has no field \"q\" (data.key); it has: nothing");
  EXPECT_LT(Error("{\"" + std::string(100'000, 'x') + "\": 1}", {"q"}).size(), 500);
  EXPECT_THAT(Error(R"({"q":["1"]})", {"?q"}), HasSubstr("array"));
  EXPECT_THAT(Error("[1]", {"q"}), HasSubstr("is of JSON type array; it must be an object"));
}

}  // namespace
}  // namespace quartet
