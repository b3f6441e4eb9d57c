#include "core/rewards/math/vocabulary/value_words.h"

#include <algorithm>
#include <map>
#include <set>
#include <vector>

#include "absl/strings/ascii.h"
#include "core/rewards/math/vocabulary/units.h"

namespace quartet::math {
namespace {

using Words = std::set<std::string, std::less<>>;

std::string LowerWord(std::string_view word) {
  return absl::AsciiStrToLower(absl::string_view(word.data(), word.size()));
}

bool EndsWithAny(std::string_view word, std::initializer_list<std::string_view> ends) {
  return std::any_of(ends.begin(), ends.end(), [&](std::string_view end) { return word.ends_with(end); });
}

const std::map<std::string, unsigned long, std::less<>>& Cardinals() {
  static const auto* all = new std::map<std::string, unsigned long, std::less<>>{
      {"zero", 0},      {"one", 1},       {"two", 2},       {"three", 3},    {"four", 4},     {"five", 5},
      {"six", 6},       {"seven", 7},     {"eight", 8},     {"nine", 9},     {"ten", 10},     {"eleven", 11},
      {"twelve", 12},   {"thirteen", 13}, {"fourteen", 14}, {"fifteen", 15}, {"sixteen", 16}, {"seventeen", 17},
      {"eighteen", 18}, {"nineteen", 19}, {"twenty", 20},   {"thirty", 30},  {"forty", 40},   {"fifty", 50},
      {"sixty", 60},    {"seventy", 70},  {"eighty", 80},   {"ninety", 90}};
  return *all;
}

const std::map<std::string, unsigned long, std::less<>>& Scales() {
  static const auto* all =
      new std::map<std::string, unsigned long, std::less<>>{{"hundred", 100},
                                                            {"thousand", 1000},
                                                            {"million", 1'000'000},
                                                            {"billion", 1'000'000'000},
                                                            {"trillion", 1'000'000'000'000},
                                                            {"quadrillion", 1'000'000'000'000'000}};
  return *all;
}

// "apples", "people": of how many of it a number may say. "gross" and "plus" are none.
bool IsPlural(std::string_view lower) {
  static const auto* irregular =
      new Words{"men",   "feet",   "mice",     "geese",      "teeth",     "oxen",     "lice",  "sheep",
                "deer",  "dice",   "data",     "cattle",     "bacteria",  "criteria", "media", "police",
                "staff", "salmon", "aircraft", "spacecraft", "phenomena", "vertices"};
  if (irregular->contains(lower) || EndsWithAny(lower, {"people", "children", "women", "fish", "men"})) return true;
  return lower.size() >= 4 && lower.ends_with('s') &&
         (!EndsWithAny(lower, {"ss", "us", "is", "'s"}) || lower == "buses");
}

// What may follow a number at once and says nothing more about it.
bool MayFollowNumber(std::string_view lower) {
  static const auto* words =
      new Words{"of",      "a",      "an",       "per",   "each",    "every",   "apiece", "left",   "remaining",
                "in",      "at",     "on",       "for",   "during",  "after",   "with",   "total",  "altogether",
                "overall", "now",    "then",     "today", "again",   "here",    "it",     "there",  "approximately",
                "approx",  "about",  "exactly",  "only",  "because", "since",   "as",     "so",     "which",
                "when",    "who",    "that",     "where", "while",   "rounded", "daily",  "weekly", "monthly",
                "yearly",  "hourly", "annually", "old",   "both",    "instead"};
  return words->contains(lower);
}

bool IsCopula(std::string_view lower) {
  static const auto* words = new Words{"is", "are", "was", "were", "remain", "remains", "will", "be"};
  return words->contains(lower);
}

// "5 is the answer", "5 apples are left": what may be said of the number.
bool IsPredicate(std::string_view lower) {
  static const auto* words = new Words{
      "smallest", "largest", "greatest",  "the",      "our",    "my",      "final",  "correct", "right",     "answer",
      "result",   "total",   "solution",  "value",    "number", "sum",     "amount", "left",    "remaining", "needed",
      "required", "sold",    "used",      "eaten",    "made",   "given",   "bought", "in",      "all",       "of",
      "also",     "thus",    "therefore", "then",     "so",     "what",    "we",     "want",    "wanted",    "for",
      "to",       "this",    "problem",   "question", "that",   "desired", "be",     "over",    "them"};
  return words->contains(lower);
}

bool IsAnswer(std::string_view lower) {
  static const auto* words = new Words{"answer", "solution", "result", "value", "number", "total", "amount", "sum"};
  return words->contains(lower);
}

// Behind which a number says something else than how many there are: "in 2 days", "of the two".
bool MayStandBeforeNumber(std::string_view lower) {
  static const auto* words =
      new Words{"in", "for", "over", "during", "after", "within", "with",  "from",    "on",    "these", "those",
                "at", "all", "the",  "last",   "next",  "first",  "other", "between", "among", "both",  "these"};
  return words->contains(lower);
}

// Whether letters of other scripts begin with a factor: thousands and the like, and not kilograms.
bool MultipliesIdeograph(std::string_view word) {
  for (const std::string_view scale : {"十", "百", "万", "亿", "萬", "億", "兆", "分之", "백", "만", "억", "천",
                                       "тысяч", "миллион", "миллиард", "дюжин", "половин"}) {
    if (word.starts_with(scale)) return true;
  }
  constexpr std::string_view kThousand = "千";
  if (!word.starts_with(kThousand)) return false;
  for (const std::string_view unit : {"克", "米", "瓦", "卡", "升"}) {
    if (word.substr(kThousand.size()).starts_with(unit)) return false;
  }
  return true;
}

}  // namespace

std::optional<mpq_class> FactorOf(std::string_view word) {
  static const auto* others = new std::map<std::string, mpq_class, std::less<>>{{"dozen", 12},
                                                                                {"gross", 144},
                                                                                {"score", 20},
                                                                                {"lakh", 100'000},
                                                                                {"lac", 100'000},
                                                                                {"crore", 10'000'000},
                                                                                {"tens", 10},
                                                                                {"ones", 1},
                                                                                {"halves", {1, 2}},
                                                                                {"thirds", {1, 3}},
                                                                                {"fourths", {1, 4}},
                                                                                {"fifths", {1, 5}},
                                                                                {"sixths", {1, 6}},
                                                                                {"sevenths", {1, 7}},
                                                                                {"eighths", {1, 8}},
                                                                                {"ninths", {1, 9}},
                                                                                {"tenths", {1, 10}},
                                                                                {"elevenths", {1, 11}},
                                                                                {"twelfths", {1, 12}},
                                                                                {"sixteenths", {1, 16}},
                                                                                {"twentieths", {1, 20}},
                                                                                {"hundredths", {1, 100}},
                                                                                {"thousandths", {1, 1000}},
                                                                                {"millionths", {1, 1'000'000}},
                                                                                {"billionths", {1, 1'000'000'000}}};
  const std::string lower = LowerWord(word);
  if (const auto factor = others->find(lower); factor != others->end()) return factor->second;
  const std::string singular = lower.substr(0, lower.size() - lower.ends_with('s'));
  // "scores" are those of a game.
  if (const auto factor = others->find(singular); factor != others->end() && singular != "score") return factor->second;
  if (const auto scale = Scales().find(singular); scale != Scales().end()) return mpq_class(scale->second);
  return std::nullopt;
}

bool Denies(std::string_view word) {
  static const auto* words =
      new Words{"not",      "no",        "never",   "none",    "nor",      "neither",  "cannot",   "wrong",
                "false",    "incorrect", "maybe",   "perhaps", "possibly", "probably", "unless",   "if",
                "whether",  "nobody",    "mistake", "refuse",  "refuses",  "doubt",    "doubtful", "impossible",
                "unlikely", "deny",      "denies",  "ain't",   "untrue",   "hardly",   "guess",    "suppose",
                "assume",   "anything",  "nothing", "either",  "rather"};
  const std::string lower = LowerWord(word);
  return words->contains(lower) || EndsWithAny(lower, {"n't"});
}

bool ChangesValue(std::string_view word) {
  static const auto* words = new Words{
      // Alternatives and bounds.
      "or", "but", "than", "least", "most", "minimum", "maximum", "except", "without", "below", "under", "beyond",
      "upwards", "short", "out", "vs", "versus", "nearly", "almost", "between", "excluding", "binary", "octal", "hex",
      "hexadecimal", "base",
      // Operations.
      "plus", "minus", "times", "divided", "multiplied", "factorial", "factorials", "squared", "cubed", "mod", "modulo",
      "modulus", "choose", "power", "powers", "raised", "root", "remainder", "point", "halved", "doubled", "tripled",
      "negative", "to", "by", "half", "twice", "thrice", "double", "triple", "hundredfold",
      // Factors in short.
      "k", "thou", "grand", "mil", "mill", "mille", "mio", "mln", "mn", "bil", "bln", "bn", "mrd", "tril", "tn", "trn",
      "cr", "googol", "googols", "myriad", "myriads", "couple",
      // What a number alone may be said to do.
      "isn't", "fails", "exceeds", "lacks", "seems", "misses", "does", "means", "looks", "appears", "becomes", "goes",
      "violates", "contradicts", "equals", "makes", "sometimes", "has", "was", "always", "besides", "works", "gives",
      "leaves", "needs", "comes", "ones", "alternatives"};
  const std::string lower = LowerWord(word);
  return words->contains(lower) || Denies(word) ||
         EndsWithAny(lower, {"illion", "illions", "illiard", "illiards", "fold"}) || lower.starts_with("million") ||
         lower.starts_with("millon");
}

std::optional<mpz_class> CardinalAt(std::string_view words, size_t* size) {
  mpz_class total = 0, group = 0;
  bool any = false, may_add = true;
  size_t at = 0;
  const auto letter = [&](size_t i) {
    return i < words.size() && absl::ascii_isalpha(static_cast<unsigned char>(words[i]));
  };
  *size = 0;
  while (letter(at)) {
    size_t end = at;
    while (letter(end)) ++end;
    const std::string word = LowerWord(words.substr(at, end - at));
    if (const auto cardinal = Cardinals().find(word); cardinal != Cardinals().end()) {
      // "twenty one", "two hundred five"; no "one two".
      const mpz_class below = group % 100;
      const bool fits =
          !any || may_add || (below >= 20 && below % 10 == 0 && cardinal->second < 10 && cardinal->second > 0);
      if (!fits) return std::nullopt;
      group += cardinal->second;
      may_add = false;
    } else if (const auto scale = Scales().find(word); scale != Scales().end() && any) {
      if (scale->second == 100) {
        group *= 100;
      } else {
        total += group * scale->second;
        group = 0;
      }
      may_add = true;
    } else if (word != "and" || !any || !may_add) {
      break;
    }
    if (word != "and") {
      any = true;
      *size = end;
    }
    at = end;
    while (at < words.size() && (words[at] == ' ' || words[at] == '-')) ++at;
  }
  if (!any) return std::nullopt;
  return mpz_class(total + group);
}

namespace {

struct InDigits {
  std::string digits;
  size_t end;  // of the words that say so
};

// "fifth" of "one fifth", "sixths": 5, 6; 0: it is no such word. "one": singular ones count.
int DenominatorOf(std::string_view word, bool one) {
  static const auto* all = new std::map<std::string, int, std::less<>>{
      {"half", 2},  {"third", 3},   {"quarter", 4}, {"fourth", 4}, {"fifth", 5},
      {"sixth", 6}, {"seventh", 7}, {"eighth", 8},  {"ninth", 9},  {"tenth", 10}};
  std::string lower = LowerWord(word);
  if (!one && !lower.ends_with('s')) return 0;
  if (!one) lower = lower == "halves" ? "half" : lower.substr(0, lower.size() - 1);
  const auto found = all->find(lower);
  return found == all->end() ? 0 : found->second;
}

// The cardinal, or fraction, that begins at `at` in words.
std::optional<InDigits> CardinalOrFraction(std::string_view text, size_t at) {
  size_t size = 0;
  const std::optional<mpz_class> cardinal = CardinalAt(text.substr(at), &size);
  if (!cardinal.has_value()) return std::nullopt;
  InDigits said = {cardinal->get_str(), at + size};
  const auto letter = [&](size_t i) {
    return i < text.size() && absl::ascii_isalpha(static_cast<unsigned char>(text[i]));
  };
  if (said.end + 1 >= text.size() || (text[said.end] != ' ' && text[said.end] != '-') || !letter(said.end + 1))
    return said;
  size_t end = said.end + 1;
  while (letter(end)) ++end;
  if (const int below = DenominatorOf(text.substr(said.end + 1, end - said.end - 1), *cardinal == 1)) {
    return InDigits{said.digits + "/" + std::to_string(below), end};
  }
  // "one" is a number where it is all that is said.
  if (*cardinal == 1) return std::nullopt;
  return said;
}

constexpr std::string_view kOpensText = "\\text{";

// Behind "negative": the number there. `*opened`: whether the word stands in a \text{} of its own, if there may be one.
std::optional<InDigits> Negated(std::string_view text, size_t at, bool* opened) {
  while (at < text.size() && text[at] == ' ') ++at;
  if (*opened && at < text.size() && text[at] == '}') {
    ++at;
  } else {
    *opened = false;
  }
  const bool dollar = at < text.size() && text[at] == '$';
  at += dollar;
  const std::string sign = dollar ? "$-" : "-";
  if (const auto said = CardinalOrFraction(text, at)) return InDigits{sign + said->digits, said->end};
  if (at < text.size() && text[at] >= '0' && text[at] <= '9') return InDigits{sign, at};
  return std::nullopt;
}

}  // namespace

std::string WithDigits(std::string_view text, bool (*leads_in)(std::string_view before)) {
  constexpr size_t kMostBytes = 4096;  // the last ones
  const auto letter = [&](size_t i) {
    return i < text.size() && absl::ascii_isalpha(static_cast<unsigned char>(text[i]));
  };
  size_t at = text.size() > kMostBytes ? text.size() - kMostBytes : 0;
  while (at > 0 && letter(at) && letter(at - 1)) ++at;
  std::string written(text.substr(0, at));
  size_t last = 0;  // where the last number that was written so ends
  while (at < text.size()) {
    size_t end = at;
    while (letter(end)) ++end;
    if (end == at || (at > 0 && (letter(at - 1) || text[at - 1] == '\\'))) {
      written += text[at++];
      continue;
    }
    const std::string word = LowerWord(text.substr(at, end - at));
    const bool negative = word == "negative" || word == "minus";
    bool opened = negative && written.ends_with(kOpensText);  // \text{negative }5
    const auto said = negative ? Negated(text, end, &opened) : CardinalOrFraction(text, at);
    // "four and five"
    static const auto* joints = new std::set<std::string_view>{" and ", " or ", ", ", ", and ", ", or "};
    const bool joined = last > 0 && joints->contains(text.substr(last, at - last));
    if (said.has_value() && (joined || leads_in(text.substr(0, at)))) {
      if (opened) written.resize(written.size() - kOpensText.size());
      written += said->digits;
      last = at = said->end;
    } else {
      written += text.substr(at, end - at);
      at = end;
    }
  }
  return written;
}

bool WordsBehind::TakeNumber() {
  if (state_ == State::kFree) return !compared_;
  // "5 feet 6", "5 apples of 6", "5 apples and about 6".
  static const auto* none = new Words{"of", "out", "to", "by", "per", "each", "every", "point", ""};
  return state_ == State::kNoun && words_after_noun_ > 0 && !and_ && !none->contains(last_);
}

bool WordsBehind::TakeNoun(std::string_view word, const std::string& lower) {
  constexpr int kMostAdjectives = 4;
  if (IsPlural(lower) || IsUnitWord(word) || one_) {
    state_ = State::kNoun;
    has_noun_ = true;
    return true;
  }
  const bool ascii = std::none_of(lower.begin(), lower.end(), [](char c) { return (c & 0x80) != 0; });
  if (ascii && lower.size() < 3 && lower != "us" && lower != "sq" && lower != "cu") return false;
  // Words of other scripts have plurals of their own.
  state_ = ascii ? State::kAdjective : State::kNoun;
  return ++adjectives_ <= kMostAdjectives;
}

bool WordsBehind::Take(std::string_view word) {
  const std::string lower = LowerWord(word), before = last_;
  last_ = lower;
  if (!word.empty() && (word[0] & 0x80) != 0 && MultipliesIdeograph(word)) return false;
  // "third-grade", "72-year".
  const std::string_view part = word.substr(word.rfind('-') == std::string_view::npos ? 0 : word.rfind('-') + 1);
  if (lower.ends_with('s') && lower.size() > 3 && Cardinals().contains(lower.substr(0, lower.size() - 1))) return false;
  if (Cardinals().contains(LowerWord(part))) {
    return (state_ == State::kFree && !compared_) || (state_ == State::kNoun && MayStandBeforeNumber(before));
  }
  if (state_ == State::kTimes) {
    // "72 times as many", "72 times a day".
    state_ = State::kNoun;
    return MayFollowNumber(lower);
  }
  if (state_ == State::kNoun && FactorOf(lower).has_value() && !MayStandBeforeNumber(before)) return false;
  switch (state_) {
    case State::kNumber:
      if (lower == "times") {
        state_ = State::kTimes;
        return true;
      }
      if (FactorOf(lower).has_value()) return std::exchange(factor_, true), true;
      [[fallthrough]];
    case State::kAdjective:
      if (ChangesValue(part) || ChangesValue(word) || lower == "and") return false;
      if (IsCopula(lower)) {
        if (state_ == State::kAdjective) return false;
        state_ = State::kVerb;
        return true;
      }
      // "5 more apples" are five.
      if (lower == "more" || lower == "fewer" || lower == "less") {
        state_ = State::kAdjective;
        more_ = true;
        return true;
      }
      if (state_ == State::kNumber && !IsUnitWord(word) && MayFollowNumber(lower)) {
        state_ = State::kNoun;
        return true;
      }
      return TakeNoun(word, lower);
    case State::kNoun:
      ++words_after_noun_;
      and_ |= lower == "and";
      if (IsCopula(lower)) {
        // What is said of apples is not said of how many they are; "5 it is".
        if (before != "it") state_ = has_noun_ ? State::kFree : State::kVerb;
        return true;
      }
      // "72 boys and girls"; no further amount: "boys and a girl".
      if (before == "and" && words_after_noun_ == 2 && (lower == "a" || lower == "an")) return false;
      if (lower == "times" || lower == "to" || lower == "by" || lower == "between" || lower == "most" ||
          lower == "out" || lower == "comes" || lower == "has" || lower == "needs" || lower == "leaves" ||
          lower == "makes" || lower == "gives" || lower == "goes" || lower == "does") {
        return true;  // of what it is a number, no more of the number
      }
      // "5 more apples than Tom has", "5 cm longer than the other": a difference is what is asked for.
      if (lower == "than" && has_noun_ && (more_ || before == "more" || before.ends_with("er"))) {
        state_ = State::kThan;
        return true;
      }
      if (lower == "more" && has_noun_) return true;
      if (lower == "no" && (before == "and" || before == "with")) return true;  // "and no pears"
      return !ChangesValue(part) && !ChangesValue(word) && lower != "less" && lower != "fewer" && lower != "more";
    case State::kVerb:
    case State::kPredicate:
      // "is the answer to step 3"
      if (IsAnswer(before) && (lower == "to" || lower == "of" || lower == "for" || lower == "in")) {
        state_ = State::kFree;
        return true;
      }
      state_ = State::kPredicate;
      return IsPredicate(lower);
    case State::kThan:
      // "than x" is computed with.
      state_ = State::kFree;
      compared_ = true;
      return word.size() > 1 && !ChangesValue(word);
    case State::kTimes:
      return false;
    case State::kFree:
      return !Denies(word) && lower != "too";
  }
  return false;
}

}  // namespace quartet::math
