#include "core/data/json.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "absl/strings/str_cat.h"

namespace quartet {
namespace {

using ::testing::HasSubstr;

std::string Error(std::string_view text, int max_depth = kMaxJsonDepth) {
  const auto value = ParseJson(text, "the text", max_depth);
  EXPECT_FALSE(value.ok()) << text;
  EXPECT_EQ(value.status().code(), absl::StatusCode::kInvalidArgument);
  return std::string(value.status().message());
}

TEST(ParseJson, BuildsWhatTheLibraryItselfBuilds) {
  for (const std::string text : {R"({"a":[1,-2,3.5,true,false,null,{"b":{}},[[],{}]],"c":"\u00e9\ud83d\ude00","":0})",
                                 "[]", "{}", "7", "\"x\"", " [ 1 , [ 2 , { \"k\" : [ 3 ] } ] , 4 ] \n"}) {
    const auto value = ParseJson(text, "the text");
    ASSERT_TRUE(value.ok()) << value.status();
    EXPECT_EQ(*value, nlohmann::json::parse(text));
  }
}

TEST(ParseJson, KeepsTheOrderOfKeysWhereAsked) {
  for (const std::string text : {R"({"b":1,"a":{"z":[{"y":2,"x":3}],"c":null}})", "[]", "7"}) {
    const auto value = ParseOrderedJson(text, "the text");
    ASSERT_TRUE(value.ok()) << value.status();
    EXPECT_EQ(value->dump(), text);
  }
  std::string wide = "{";
  for (int i = 99; i >= 0; --i) wide += "\"" + std::to_string(i) + "\":[" + std::to_string(i) + "],";
  const auto object = ParseOrderedJson(wide + "\"last\":0}", "the text");
  ASSERT_TRUE(object.ok()) << object.status();
  EXPECT_EQ(object->dump(), wide + "\"last\":0}");
  for (const std::string again : {"99", "50", "0"}) {
    EXPECT_THAT(std::string(ParseOrderedJson(wide + "\"" + again + "\":0}", "the text").status().message()),
                HasSubstr("the key \"" + again + "\" stands twice"));
  }
  EXPECT_THAT(std::string(ParseOrderedJson(R"({"a":1,"a":2})", "the text").status().message()),
              HasSubstr("the key \"a\" stands twice"));
}

TEST(ParseExactJson, KeepsWholeNumbersBeyond64Bits) {
  for (const char* number : {"100000000000000000000000", "-354224848179261915075", "18446744073709551616"}) {
    const std::string text = absl::StrCat("{\"a\": [", number, ", 1, 0.5, \"\\u00e9\", null, {}]}");
    const auto value = ParseExactJson(text, "f");
    ASSERT_TRUE(value.ok()) << value.status();
    EXPECT_EQ(ExactNumber((*value)["a"][0]), number);
    EXPECT_EQ(PrintExactJson(*value), text);
    EXPECT_EQ(PrintExactJson(*ParseExactOrderedJson(text, "f")), text);
    EXPECT_TRUE((*ParseJson(text, "f"))["a"][0].is_number_float());
    EXPECT_THAT(std::string(ParseOrderedJson(text, "f").status().message()),
                HasSubstr(absl::StrCat("line 1, column ", 8 + std::string(number).size(), ": the whole number ", number,
                                       " is beyond 64 bits")));
  }
  EXPECT_EQ(ParseExactJson("[18446744073709551615, -9223372036854775808, 1e22]", "f")->dump(),
            "[18446744073709551615,-9223372036854775808,1e+22]");
  EXPECT_NE(*ParseExactJson("354224848179261915075", "f"), *ParseExactJson("354224848179261915076", "f"));
}

TEST(ParseJson, ReadsDecimalNumbersAsDoublesHoweverManyDigitsTheyHave) {
  const char* text = "[3.14159265358979312345, 100000000000000000.0, -0.10000000000000000000000001]";
  const auto value = ParseOrderedJson(text, "f");
  ASSERT_TRUE(value.ok()) << value.status();
  EXPECT_EQ(*value, nlohmann::ordered_json({3.141592653589793, 1e17, -0.1}));
}

TEST(ParseJson, NamesTheSourceAndThePlaceOfAnError) {
  EXPECT_THAT(Error("{\n  \"a\": 1,\n  b\n}"), HasSubstr("the text: not well-formed JSON at line 3, column 3"));
  EXPECT_THAT(Error("[1, 2"), HasSubstr("line 1, column"));
  EXPECT_THAT(Error(""), HasSubstr("line 1, column 1"));
  EXPECT_THAT(Error("[1] 2"), HasSubstr("line 1"));
  EXPECT_THAT(Error("\"\xff\""), HasSubstr("UTF-8"));
  EXPECT_THAT(Error("[1e999]"), HasSubstr("1e999"));
  EXPECT_LT(Error("[" + std::string(100'000, 'x')).size(), 500);
}

TEST(ParseJson, RefusesWhatFollowsAZeroByte) {
  const std::string zero(1, '\0');
  for (const std::string& text : {"1" + zero, "{\"a\":\n1} " + zero + "rm -rf", "[1]" + zero + "[2]", zero + "1"}) {
    EXPECT_EQ(ParseJson(text, "f").status().code(), absl::StatusCode::kInvalidArgument) << text;
    EXPECT_EQ(ParseOrderedJson(text, "f").status().code(), absl::StatusCode::kInvalidArgument) << text;
  }
  EXPECT_EQ(ParseJson("{\"a\":\n1} " + zero + "more", "f").status().message(),
            "f: not well-formed JSON at line 2, column 4: a byte of value 0 after the value");
}

TEST(ParseJson, EscapesWhatATerminalObeysInItsErrors) {
  const std::string long_key(100'000, 'k');
  for (const std::string& text : {std::string("{\"\\u001b[2J\":1,\"\\u001b[2J\":2}"), std::string("{\x1b[2J}"),
                                  "{\"" + long_key + "\":1,\"" + long_key + "\":2}"}) {
    const std::string message(ParseJson(text, "f").status().message());
    EXPECT_EQ(message.find('\x1b'), std::string::npos) << message;
    EXPECT_LT(message.size(), 400);
  }
}

TEST(ParseJson, RefusesAKeyThatStandsTwice) {
  EXPECT_THAT(Error("{\"a\": 1,\n \"a\": 2}"), HasSubstr("line 2"));
  EXPECT_THAT(Error(R"([{"b":{"a":1,"\u0061":2}}])"), HasSubstr("the key \"a\" stands twice"));
}

TEST(ParseJson, BoundsTheDepth) {
  EXPECT_TRUE(ParseJson("[[[]]]", "the text", 3).ok());
  EXPECT_THAT(Error("[[[[]]]]", 3), HasSubstr("nested deeper than 3"));
  EXPECT_THAT(Error(R"({"a":{"a":{"a":[]}}})", 3), HasSubstr("nested deeper than 3"));
  EXPECT_THAT(Error(std::string(10'000'000, '[')), HasSubstr("nested deeper"));
}

}  // namespace
}  // namespace quartet
