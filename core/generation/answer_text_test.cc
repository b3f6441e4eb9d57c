// Against vLLM's detokenizer (tools/golden/make_vllm_golden.py).

#include "core/generation/answer_text.h"

#include <fstream>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "core/tokenizer/testing/piece_tokenizer.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace quartet {
namespace {

using Strings = std::vector<std::string>;

AnswerTextOptions EndedBy(const Strings& stop) { return {.stop = std::make_shared<const StopStrings>(stop)}; }

// What is given token by token, and at the end.
Strings Given(const Tokenizer& tokenizer, const std::vector<int32_t>& ids, const AnswerTextOptions& options = {},
              const std::vector<int32_t>& prompt = {}) {
  AnswerText text(tokenizer, prompt, std::make_shared<const AnswerTextOptions>(options));
  Strings given;
  for (const int32_t id : ids) given.push_back(text.Read(id));
  given.push_back(text.Finish());
  return given;
}

const PieceTokenizer& Words() {
  static const auto* tokenizer = new PieceTokenizer({"<end>", " the", " cat", " sat", "sa", "t!", "\n", "User", ":"});
  return *tokenizer;
}

TEST(AnswerText, IsGivenAtOnceWhereNothingCanStopIt) {
  EXPECT_EQ(Given(Words(), {4, 5, 2}), (Strings{"sa", "t!", " cat", ""}));
}

TEST(AnswerText, GoesOnFromThePromptWithItsSpace) {
  EXPECT_EQ(Given(Words(), {2}), (Strings{"cat", ""}));
  EXPECT_EQ(Given(Words(), {2}, {}, {1}), (Strings{" cat", ""}));
}

TEST(AnswerText, HasTheSpaceOfAWordBehindSpecialTokens) {
  EXPECT_EQ(Given(Words(), {1, 0, 0, 2, 0, 3}), (Strings{"the", "", "", " cat", "", " sat", ""}));
  EXPECT_EQ(Given(Words(), {2}, {}, {1, 0, 0, 0, 0, 0, 0}), (Strings{" cat", ""}));
  EXPECT_EQ(Given(Words(), {0, 2}), (Strings{"", "cat", ""}));
}

TEST(AnswerText, HasTheNamesOfMarksWhereTheyStand) {
  AnswerTextOptions marked = EndedBy({"cat!", "sat"});
  marked.marks = {{0, "[MARK]"}};
  // What is held back comes before the mark behind it.
  EXPECT_EQ(Given(Words(), {1, 0, 2, 0, 1}, marked), (Strings{"the", "[MARK]", " ", "", "cat[MARK] the", ""}));
  EXPECT_EQ(Given(Words(), {0, 4, 0}, marked), (Strings{"[MARK]", "", "", "sa[MARK]"}));
  // Stop strings are found as if there were none; what stands behind their beginning is cut with them.
  EXPECT_EQ(Given(Words(), {1, 0, 4, 0, 5}, marked), (Strings{"the", "[MARK]", "", "", "", ""}));
  marked.silent = {0};
  EXPECT_EQ(Given(Words(), {1, 0, 2}, marked), (Strings{"the", "", " ", "cat"}));
}

TEST(AnswerText, HasMarksBehindTheCharacterThatTheyStandIn) {
  const PieceTokenizer tokenizer({"<end>", "\xF0", "\x9F", "\x98", "\x80", "a"});
  const std::string smile = "\xF0\x9F\x98\x80", broken = "\xEF\xBF\xBD";
  for (const Strings& stop : {Strings{}, Strings{"b"}}) {
    AnswerTextOptions marked = EndedBy(stop);
    if (stop.empty()) marked.stop = nullptr;
    marked.marks = {{0, "[MARK]"}};
    EXPECT_EQ(Given(tokenizer, {5, 1, 2, 0, 5}, marked), (Strings{"a", "", "", "", broken + "[MARK]a", ""}));
    EXPECT_EQ(Given(tokenizer, {1, 0, 0, 2, 3, 4, 0, 5}, marked),
              (Strings{"", "", "", "", "", smile + "[MARK][MARK]", "[MARK]", "a", ""}));
    EXPECT_EQ(Given(tokenizer, {1, 0, 1, 2, 3, 4}, marked),
              (Strings{"", "", "", "", "", broken + "[MARK]" + smile, ""}));
    EXPECT_EQ(Given(tokenizer, {1, 2, 0}, marked), (Strings{"", "", "", broken + "[MARK]"}));
  }
  // For stop strings it is not there, as for the engine.
  AnswerTextOptions marked = EndedBy({smile + "a"});
  marked.marks = {{0, "[MARK]"}};
  EXPECT_EQ(Given(tokenizer, {5, 1, 0, 2, 3, 4, 5}, marked), (Strings{"a", "", "", "", "", "", "", ""}));
}

TEST(AnswerText, CountsTheCharactersItHasRead) {
  AnswerTextOptions options = EndedBy({"t!"});
  options.silent = {8};
  AnswerText text(Words(), {}, std::make_shared<const AnswerTextOptions>(options));
  std::vector<int64_t> characters;
  for (const int32_t id : {2, 0, 3, 4, 8}) {
    text.Read(id);
    characters.push_back(text.characters());
  }
  EXPECT_EQ(characters, (std::vector<int64_t>{3, 3, 7, 9, 9}));
}

TEST(AnswerText, HasNoneOfTheStopStringThatEndsIt) {
  EXPECT_EQ(Given(Words(), {2, 6, 7, 8}, EndedBy({"\nUser:"})), (Strings{"cat", "", "", "", ""}));
  // Also where its last token has more behind it, or before it.
  EXPECT_EQ(Given(Words(), {4, 5}, EndedBy({"at"})), (Strings{"s", "", ""}));
}

TEST(AnswerText, GivesWhatWasNoStopStringAfterAll) {
  EXPECT_EQ(Given(Words(), {2, 6, 7, 3}, EndedBy({"\nUser:"})), (Strings{"cat", "", "", "\nUser sat", ""}));
  EXPECT_EQ(Given(Words(), {2, 6, 7}, EndedBy({"\nUser:"})), (Strings{"cat", "", "", "\nUser"}));
}

TEST(AnswerText, GivesAStopStringThatComesTooEarlyToEndIt) {
  AnswerTextOptions options = EndedBy({"sat"});
  options.min_tokens = 2;
  EXPECT_EQ(Given(Words(), {2, 3, 2, 3}, options), (Strings{"cat", " ", "sat cat", " ", ""}));
  // One that begins early and is complete in time ends it.
  EXPECT_EQ(Given(Words(), {2, 4, 5}, options), (Strings{"cat", "", "", ""}));
}

TEST(AnswerText, HasTheStopStringWhereThatIsIncluded) {
  AnswerTextOptions options = EndedBy({"at"});
  options.includes_stop = true;
  EXPECT_EQ(Given(Words(), {1, 4, 5}, options), (Strings{"the", "sa", "t", ""}));
}

TEST(AnswerText, HasNoTextOfTokensThatEndIt) {
  EXPECT_EQ(Given(Words(), {2, 8}, {.silent = {8}}), (Strings{"cat", "", ""}));
  EXPECT_EQ(Given(Words(), {2, 0}), (Strings{"cat", "", ""}));
}

TEST(AnswerText, IsOfWholeCharacters) {
  // U+1F600 in four tokens, and one that has the end of a character and the beginning of the next.
  const PieceTokenizer tokenizer({"<end>", "\xF0", "\x9F", "\x98", "\x80", "a", "\x80\xF0"});
  const std::string smile = "\xF0\x9F\x98\x80";
  EXPECT_EQ(Given(tokenizer, {5, 1, 2, 3, 4, 5}), (Strings{"a", "", "", "", smile, "a", ""}));
  EXPECT_EQ(Given(tokenizer, {1, 2, 3, 6, 2, 3, 4}), (Strings{"", "", "", "", "", "", smile + smile, ""}));
  // Cut off in the middle.
  EXPECT_EQ(Given(tokenizer, {5, 1, 2}), (Strings{"a", "", "", "\xEF\xBF\xBD"}));
}

// At which token (from 0) the text ends and by what; -1: not at all.
using End = std::pair<int, std::string>;
End EndOf(const Tokenizer& tokenizer, const Strings& stop, const std::vector<int32_t>& ids) {
  AnswerText text(tokenizer, {}, std::make_shared<const AnswerTextOptions>(EndedBy(stop)));
  for (size_t i = 0; i < ids.size(); ++i) {
    text.Read(ids[i]);
    if (text.stop_string() != nullptr) return {static_cast<int>(i), *text.stop_string()};
  }
  return {-1, ""};
}

TEST(AnswerText, EndsWithTheTokenThatCompletesAStopString) {
  const PieceTokenizer tokenizer({"<end>", " the", " end", " of", " it", "END", " t", "h", "e "});
  EXPECT_EQ(EndOf(tokenizer, {"end of"}, {1, 2, 3, 4}), End(2, "end of"));
  EXPECT_EQ(EndOf(tokenizer, {"e end"}, {1, 2, 3}), End(1, "e end"));
  EXPECT_EQ(EndOf(tokenizer, {"the"}, {6, 7, 8}), End(2, "the"));
  EXPECT_EQ(EndOf(tokenizer, {"x", "en"}, {1, 2}), End(1, "en"));
  EXPECT_EQ(EndOf(tokenizer, {"of it", "it", "t"}, {4, 3, 4}), End(0, "it"));
  EXPECT_EQ(EndOf(tokenizer, {"ofit"}, {3, 4}), End(-1, ""));
  // Of several in one token the one that is complete first.
  EXPECT_EQ(EndOf(tokenizer, {"END", "N"}, {1, 5}), End(1, "N"));
}

TEST(AnswerText, HasNoStopStringInSpecialTokens) {
  const PieceTokenizer tokenizer({"<end>", "a", "b"});
  EXPECT_EQ(EndOf(tokenizer, {"<end>"}, {1, 0, 2}), End(-1, ""));
  EXPECT_EQ(EndOf(tokenizer, {"ab"}, {1, 0, 2}), End(2, "ab"));
}

TEST(AnswerText, EndsAtAStopStringWhoseSpaceTransformersWouldTakeOut) {
  const std::unique_ptr<Tokenizer> tokenizer = Tokenizer::Load("core/tokenizer/testdata/cleaned").value();
  EXPECT_EQ(EndOf(*tokenizer, {" ,", " n't"}, *tokenizer->Encode("es , m", false)), End(3, " ,"));
  EXPECT_EQ(EndOf(*tokenizer, {" ,", " n't"}, *tokenizer->Encode("e n't", false)), End(4, " n't"));
  EXPECT_EQ(EndOf(*tokenizer, {"e."}, *tokenizer->Encode("e .", false)), End(-1, ""));
}

TEST(AnswerText, EndsWithCharactersOfSeveralTokens) {
  // U+1F600 in four bytes.
  const PieceTokenizer tokenizer({"<end>", "\xF0", "\x9F", "\x98", "\x80", " a", "b"});
  EXPECT_EQ(EndOf(tokenizer, {"\xF0\x9F\x98\x80"}, {5, 1, 2, 3, 4}), End(4, "\xF0\x9F\x98\x80"));
  EXPECT_EQ(EndOf(tokenizer, {"a\xF0\x9F\x98\x80 a"}, {5, 1, 2, 3, 4, 5, 6}), End(5, "a\xF0\x9F\x98\x80 a"));
  EXPECT_EQ(EndOf(tokenizer, {"\xEF\xBF\xBD"}, {1, 2}), End(-1, ""));
}

TEST(AnswerText, EndsWhereItEndsInVllm) {
  std::ifstream file("core/generation/testdata/vllm_stop.json");
  std::map<std::string, std::unique_ptr<Tokenizer>> tokenizers;
  int ended = 0;
  int cases = 0;
  for (const nlohmann::json& golden : nlohmann::json::parse(file)) {
    SCOPED_TRACE(golden.dump());
    const std::string folder = golden["tokenizer"];
    if (!tokenizers.contains(folder)) tokenizers[folder] = Tokenizer::Load(folder).value();
    AnswerTextOptions options = EndedBy(golden["stop"].get<Strings>());
    options.min_tokens = golden["min_tokens"];
    options.includes_stop = golden["include_stop_str_in_output"];
    const auto prompt = golden["prompt"].get<std::vector<int32_t>>();
    AnswerText text(*tokenizers[folder], prompt, std::make_shared<const AnswerTextOptions>(options));
    std::string given;
    int tokens = 0;
    for (const int32_t id : golden["answer"].get<std::vector<int32_t>>()) {
      given += text.Read(id);
      ++tokens;
      if (text.stop_string() != nullptr) break;
    }
    given += text.Finish();
    EXPECT_EQ(given, golden["text"].get<std::string>());
    EXPECT_EQ(tokens, golden["tokens"].get<int>());
    ASSERT_EQ(text.stop_string() != nullptr, !golden["stop_string"].is_null());
    if (text.stop_string() != nullptr) {
      EXPECT_EQ(*text.stop_string(), golden["stop_string"].get<std::string>());
    }
    ended += text.stop_string() != nullptr;
    ++cases;
  }
  EXPECT_GT(ended, 100);
  EXPECT_GT(cases - ended, 50);
}

}  // namespace
}  // namespace quartet
