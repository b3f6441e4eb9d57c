#include "core/rewards/extract.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

namespace quartet {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::Optional;

TEST(Tags, AreTheLastOnes) {
  EXPECT_THAT(LastTag("<answer>1</answer> no: <answer> 2 </answer>", "answer"), Optional(std::string_view(" 2 ")));
  EXPECT_EQ(LastTag("<answer>1</answer><answer>2", "answer"), std::nullopt);
  EXPECT_EQ(LastTag("1", "answer"), std::nullopt);
}

TEST(CodeBlocks, OfTheLanguageComeBeforeOthers) {
  const auto blocks = [](const char* text) { return CodeBlocks(text, {"python"}); };
  EXPECT_THAT(blocks("```python\na\n```\n```\nb\n```\n"), ElementsAre("a\n"));
  EXPECT_THAT(blocks("```python\na\n```\n```Python \nb\n\nc\n```\n"), ElementsAre("a\n", "b\n\nc\n"));
  EXPECT_THAT(blocks("```\na\n```\nso:\n```\nb\n```"), ElementsAre("a\n", "b\n"));
  EXPECT_THAT(blocks("```python\na\nb"), ElementsAre("a\nb\n"));
  EXPECT_THAT(blocks("```python title=\"a.py\"\na\n```"), ElementsAre("a\n"));
  EXPECT_THAT(blocks("````python\na\n```\nb\n````\n"), ElementsAre("a\n```\nb\n"));
  EXPECT_THAT(blocks("print(1)"), IsEmpty());
}

TEST(CodeBlocks, BeginBehindText) {
  const auto blocks = [](const char* text) { return CodeBlocks(text, {"python"}); };
  EXPECT_THAT(blocks("<think>so</think>```python\na\n```"), ElementsAre("a\n"));
  EXPECT_THAT(blocks("Answer: ```python\na\n```\nIt is right."), ElementsAre("a\n"));
  EXPECT_THAT(blocks("1. ```python\n   if a:\n     b\n   ```"), ElementsAre("if a:\n  b\n"));
  EXPECT_THAT(blocks("In C: ```cpp\na\n```\n```python\nb\n```"), ElementsAre("b\n"));
  EXPECT_THAT(blocks("Take ```a``` and ```b```:\n```python\nc\n```"), ElementsAre("c\n"));
  EXPECT_THAT(blocks("The fence ``` opens it:\n```python\nc\n```"), ElementsAre("c\n"));
  EXPECT_THAT(blocks("```python print(1)``` is short:\n```python\nc\n```"), ElementsAre("c\n"));
}

TEST(CodeBlocks, LoseTheIndentationOfTheirFence) {
  const auto blocks = [](const char* text) { return CodeBlocks(text, {"python"}); };
  EXPECT_THAT(blocks("1. so\n   ```python\n   if a:\n\n     b\n   ```"), ElementsAre("if a:\n\n  b\n"));
  EXPECT_THAT(blocks("  ```python\nif a:\n  b\n  ```"), ElementsAre("if a:\n  b\n")) << "only the fence is indented";
  EXPECT_THAT(blocks("  ```python\n  x = '''\n y'''\n  ```"), ElementsAre("x = '''\ny'''\n"));
  EXPECT_THAT(blocks("```python\n  a\n```"), ElementsAre("  a\n"));
}

TEST(CodeBlocks, EndBehindTheirCodeWhereNoLineClosesThem) {
  const auto blocks = [](const char* text) { return CodeBlocks(text, {"python"}); };
  EXPECT_THAT(blocks("```python\na\nb```"), ElementsAre("a\nb\n"));
  EXPECT_THAT(blocks("  ```python\n  a\n  b ``` \nIt is right."), ElementsAre("a\nb \n"));
  EXPECT_THAT(blocks("```python\na```\nor\n```python\nb```\nor ```"), ElementsAre("a\n", "b\n"));
  EXPECT_THAT(blocks("```python\n# with ```\na\n```"), ElementsAre("# with ```\na\n"));
  EXPECT_THAT(blocks("```python\na\n```python\nb\n```"), ElementsAre("a\n", "b\n"));
}

TEST(CodeBlocks, MayStandInQuotations) {
  const auto blocks = [](const char* text) { return CodeBlocks(text, {"python"}); };
  EXPECT_THAT(blocks("> ```python\n> if a:\n>   b\n>\n> c\n> ```\nSo."), ElementsAre("if a:\n  b\n\nc\n"));
  EXPECT_THAT(blocks(">```python\n>a\n>```"), ElementsAre("a\n"));
  EXPECT_THAT(blocks("> > So: ```python\n> > a\n> > >>> b\n> > ```"), ElementsAre("a\n>>> b\n"));
  EXPECT_THAT(blocks("> ```python\n> a\nwhich is right.\n```python\nb\n```"), ElementsAre("a\n", "b\n"));
  EXPECT_THAT(blocks("```python\na\n> 3\n```"), ElementsAre("a\n> 3\n"));
}

TEST(CodeBlocks, DoNotEndWithinTexts) {
  const auto blocks = [](const char* text) { return CodeBlocks(text, {"python"}); };
  EXPECT_THAT(
      blocks("```python\ndef f():\n    \"\"\"So:\n    ```\n    f()\n    ```\n    \"\"\"\n    return 1\n```\nDone."),
      ElementsAre("def f():\n    \"\"\"So:\n    ```\n    f()\n    ```\n    \"\"\"\n    return 1\n"));
  EXPECT_THAT(blocks("```python\ndef f():\n  '''\n  ```python\n  f()\n  ```\n  '''\n```"),
              ElementsAre("def f():\n  '''\n  ```python\n  f()\n  ```\n  '''\n"));
  EXPECT_THAT(blocks("```python\n\"\"\"\n```\nf()\n```\n\"\"\"\na\n```"),
              ElementsAre("\"\"\"\n```\nf()\n```\n\"\"\"\na\n"));
  EXPECT_THAT(blocks("```python\nx = \"\"\"\n```\nNo:\n```python\n\"\"\"a\"\"\"\n```"),
              ElementsAre("x = \"\"\"\n", "\"\"\"a\"\"\"\n"))
      << "a text that nothing closes";
  EXPECT_THAT(blocks("```python\nx = '\"\"\"'  # \"\"\"\n```\nb\n```python\nc\n```"),
              ElementsAre("x = '\"\"\"'  # \"\"\"\n", "c\n"));
}

TEST(CodeBlocks, MayHaveFencesOfTildes) {
  const auto blocks = [](const char* text) { return CodeBlocks(text, {"python"}); };
  EXPECT_THAT(blocks("~~~python\na\n```\nb\n~~~\nc"), ElementsAre("a\n```\nb\n"));
  EXPECT_THAT(blocks("~~~~^^^^\nc\n```python\na\n~~~\nb\n```"), ElementsAre("a\n~~~\nb\n"));
}

TEST(JsonObjects, AreTheLastWholeOnes) {
  EXPECT_EQ(LastJsonObject(R"(first {"a": 1}, then {"a": {"b": [7, {"c": "}"}]}}. {done})")->dump(),
            R"({"a":{"b":[7,{"c":"}"}]}})");
  EXPECT_EQ(LastJsonObject("{ no } [1]"), std::nullopt);
  EXPECT_EQ(LastJsonObject(std::string(100000, '{')), std::nullopt);
  const nlohmann::json object = {{"a", {{"b", {7, {{"c", "x"}}}}}}};
  EXPECT_EQ(*AtPath(object, "a.b.0"), 7);
  EXPECT_EQ(*AtPath(object, "a.b.1.c"), "x");
  EXPECT_EQ(AtPath(object, "a.b.2"), nullptr);
  EXPECT_EQ(AtPath(object, "a.c"), nullptr);
}

}  // namespace
}  // namespace quartet
