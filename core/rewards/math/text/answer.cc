#include "core/rewards/math/text/answer.h"

#include <algorithm>
#include <optional>
#include <set>
#include <vector>

#include "absl/strings/ascii.h"
#include "core/rewards/boxed.h"
#include "core/rewards/extract.h"
#include "core/rewards/math/grammar/parser.h"
#include "core/rewards/math/grammar/signs.h"
#include "core/rewards/math/text/amends.h"
#include "core/rewards/math/text/around.h"
#include "core/rewards/math/text/formulas.h"
#include "core/rewards/math/text/sentences.h"
#include "core/rewards/math/vocabulary/value_words.h"

namespace quartet::math {
namespace {

constexpr size_t kNowhere = std::string_view::npos;
constexpr size_t kMostBytesBehindMark = 4096;
constexpr int kMostMarks = 16;  // the last ones

size_t EndIn(std::string_view text, std::string_view part) { return part.data() + part.size() - text.data(); }

// Such as a response that is nothing but its answer.
bool IsFormula(std::string_view text) {
  constexpr size_t kMostBytesOfFormula = 256;
  if (text.size() > kMostBytesOfFormula) return false;
  // Other short words would be taken for products of variables.
  static const auto* const known =
      new std::set<std::string_view>{"sqrt", "pi", "sin", "cos", "tan", "ln", "log", "exp", "inf", "and", "or"};
  for (size_t i = 0; i < text.size(); ++i) {
    const size_t begin = i;
    while (i < text.size() && absl::ascii_isalpha(static_cast<unsigned char>(text[i]))) ++i;
    const bool command = begin > 0 && text[begin - 1] == '\\';
    if (i - begin >= 2 && !command && !known->contains(text.substr(begin, i - begin))) return false;
  }
  const auto parsed = Parse(text);
  return parsed.has_value() && std::none_of(parsed->elements.begin(), parsed->elements.end(), [](const auto& element) {
           return element->kind == Expression::Kind::kText;
         });
}

// Where the sentence that begins `text` ends: before ". ", "! " or the line's end. "3.5" and "eq. (3)" end none.
std::string_view Sentence(std::string_view text) {
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '\n') return text.substr(0, i);
    if ((text[i] == '.' || text[i] == '!' || text[i] == '?') &&
        (i + 1 == text.size() || text[i + 1] == ' ' || text[i + 1] == '\n' || text[i + 1] == '*')) {
      return text.substr(0, i);
    }
  }
  return text;
}

// Where the sentence begins that `at` is in.
size_t SentenceAround(std::string_view text, size_t at) {
  for (; at > 0 && text[at - 1] != '\n'; --at) {
    if (at >= 2 && text[at - 1] == ' ' && std::string_view(".!?").find(text[at - 2]) != kNowhere) break;
  }
  return at;
}

int CountWords(std::string_view text) {
  int words = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    const auto letter = [&](size_t at) { return absl::ascii_isalpha(static_cast<unsigned char>(text[at])) != 0; };
    words += letter(i) && (i == 0 || !letter(i - 1));
  }
  return words;
}

// What says where the answer is.
struct Mark {
  size_t begin, end;
  bool colon;  // "Answer:", a heading, ####: nothing but the answer follows in its line
  bool final;  // "final answer", ####
  bool says;   // "is", "must be", a colon: the answer follows at once
};

// What is right behind "answer" at `end`, up to where the answer begins.
std::optional<Mark> MarkAt(std::string_view text, const std::string& lower, size_t begin, size_t end) {
  Mark mark = {begin, end, false, false, true};
  mark.final = begin >= 6 && lower.compare(begin - 6, 6, "final ") == 0;
  const auto take = [&](std::string_view word) {
    if (lower.compare(mark.end, word.size(), word) != 0) return false;
    mark.end += word.size();
    return true;
  };
  take("**");
  for (const std::string_view says : {" is", " would be", " must be", " should be", " will be", " equals", " ="}) {
    if (!take(says)) continue;
    // "isn't"
    if (mark.end < text.size() && absl::ascii_isalpha(static_cast<unsigned char>(text[mark.end]))) return std::nullopt;
    take(":");
    return mark;
  }
  take(" ");
  if (take(":") || take("\xEF\xBC\x9A") || (mark.end < text.size() && text[mark.end] == '\n')) {
    mark.colon = true;
    return mark;
  }
  mark.says = false;
  if (mark.final) return mark;
  return std::nullopt;
}

// From the first to the last.
std::vector<Mark> Marks(std::string_view text) {
  const std::string lower = absl::AsciiStrToLower(absl::string_view(text.data(), text.size()));
  constexpr std::string_view kAnswer = "answer", kHashes = "#### ";
  std::vector<Mark> marks;
  for (size_t i = 0; i < text.size(); ++i) {
    if (lower.compare(i, kAnswer.size(), kAnswer) == 0) {
      if (const auto mark = MarkAt(text, lower, i, i + kAnswer.size())) marks.push_back(*mark);
    } else if (text[i] == '#' && (i == 0 || text[i - 1] == '\n') && lower.compare(i, kHashes.size(), kHashes) == 0) {
      marks.push_back({i, i + kHashes.size(), true, true, true});
    }
  }
  return marks;
}

// Of what is no formula: an answer that is given, and not understood.
constexpr std::string_view kNotUnderstood = "?";

struct Found {
  std::string text;
  size_t begin, end;  // of it in its text
};

// The first formula of `text`, with those that it is joined to, or stretch of mathematics, whichever comes first.
std::optional<Found> First(std::string_view text) {
  const std::vector<std::string_view> formulas = Formulas(text);
  const auto begins = [&](std::string_view part) { return static_cast<size_t>(part.data() - text.data()); };
  const std::string_view before = formulas.empty() ? text : text.substr(0, begins(formulas[0]));
  const std::vector<std::string_view> stretches = Stretches(before, /*behind_mark=*/true);
  for (const std::string_view stretch : stretches) {
    return Found{std::string(stretch), begins(stretch), EndIn(text, stretch)};
  }
  if (formulas.empty()) return std::nullopt;
  size_t last = 0;
  std::string joined = JoinFirst(text, formulas, &last);
  return Found{std::move(joined), begins(formulas[0]), EndIn(text, formulas[last])};
}

// `value`, which ends at `end`, with the factor behind it; kNotUnderstood where something else stands there.
std::string WithFactor(std::string_view text, size_t end, const std::string& value) {
  std::string_view behind = text.substr(end);
  if (behind.starts_with("\\)") || behind.starts_with("\\]") || behind.starts_with("$$")) behind.remove_prefix(2);
  const std::optional<std::string> factor = FactorBehind(behind, value);
  return factor.has_value() ? value + *factor : std::string(kNotUnderstood);
}

// The last formulas, or stretches of mathematics behind them, that are neither denied nor number something: where their
// sentence says that they are its value, else kNotUnderstood. "" where there are none.
std::string Last(std::string_view text) {
  std::vector<std::string_view> formulas = Formulas(text), stretches = Stretches(text, /*behind_mark=*/false);
  const auto begins = [&](std::string_view part) { return static_cast<size_t>(part.data() - text.data()); };
  size_t sentence = kNowhere;  // of the last value that is none of its sentence's; where it begins
  constexpr int kMostTries = 64;
  for (int tries = 0; tries < kMostTries; ++tries) {
    while (!formulas.empty() && IsDeniedAt(text, begins(formulas.back()))) formulas.pop_back();
    const bool plain =
        !stretches.empty() && (formulas.empty() || begins(stretches.back()) >= EndIn(text, formulas.back()));
    std::vector<std::string_view>& parts = plain ? stretches : formulas;
    if (parts.empty()) return sentence == kNowhere ? "" : std::string(kNotUnderstood);
    size_t first = parts.size() - 1;
    const size_t last = begins(parts.back());
    if (plain && (IsDeniedAt(text, last) || IsReferenceAt(text, last))) {
      parts.pop_back();
      continue;
    }
    if (sentence != kNowhere && last < sentence) return std::string(kNotUnderstood);
    std::string joined = JoinLast(text, parts, &first);
    const size_t begin = begins(parts[first]), end = EndIn(text, parts.back());
    const bool relates =
        joined.find_first_of("=<>") != std::string::npos || joined.find("\\equiv") != std::string::npos;
    const std::string_view before = text.substr(0, begin);
    if (relates ? !IsDenied(before) : LeadsIn(before)) {
      return WithFactor(text, end, joined);
    }
    if (sentence == kNowhere) sentence = SentenceAround(text, begin);
    parts.resize(first);
  }
  return std::string(kNotUnderstood);
}

// What follows a mark in its line; "" where that is no mathematics. `*words`: what it says in place of it.
std::string Behind(std::string_view text, const Mark& mark, std::string* words) {
  std::string_view rest = text.substr(mark.end, kMostBytesBehindMark);
  // A heading's answer is below it; formulas may begin in the next line.
  size_t begin = 0;
  while (begin < rest.size() && std::string_view(" :*_#\t\n").find(rest[begin]) != kNowhere) ++begin;
  rest.remove_prefix(begin);
  const bool display = rest.starts_with("\\[") || rest.starts_with("$$");
  std::string_view line = display ? rest : rest.substr(0, rest.find('\n'));
  if (rest.starts_with("not ")) return "";
  const std::string_view before_mark = text.substr(0, mark.begin);
  if (IsDenied(before_mark) || IsOfAnother(before_mark)) return std::string(kNotUnderstood);
  // "(A) 5", of several answers that were to choose from.
  if (line.size() > 4 && line[0] == '(' && absl::ascii_isupper(static_cast<unsigned char>(line[1])) &&
      line.substr(2, 2) == ") " && First(line.substr(4)).has_value()) {
    begin += 4;
    line.remove_prefix(4);
  }
  const std::optional<Found> first = First(line);
  const std::string_view sentence = Sentence(line);
  if (first.has_value()) {
    const std::string_view before = line.substr(0, first->begin);
    const bool hashes = text.compare(mark.begin, 1, "#") == 0;
    // "The largest $n$ is 34": the last of what one is after the other.
    size_t next = first->end;
    while (next < line.size() && std::string_view("$*) ").find(line[next]) != kNowhere) ++next;
    const bool at_once = mark.colon && CountWords(before) == 0;
    const size_t at = mark.end + begin + first->begin;
    const bool named = line.substr(next, 3) == "is " && !IsDeniedAt(line, next + 3);
    if (!named && (at_once || (!hashes && LeadsIn(text.substr(0, at)))) && !IsReferenceAt(text, at)) {
      return WithFactor(line, first->end, first->text);
    }
    if (hashes) return "";
    if (std::string last = Last(sentence); !last.empty()) return last;
  }
  constexpr size_t kMostBytesOfWords = 80;
  const std::string_view said = StripSpace(sentence);
  if (!said.empty() && said.size() <= kMostBytesOfWords) *words = std::string(said);
  while (!words->empty() && std::string_view("*_ ").find(words->back()) != kNowhere) words->pop_back();
  return "";
}

// What is in the last <answer></answer>, or "".
std::string_view LastAnswerElement(std::string_view text) {
  constexpr std::string_view kBegin = "<answer>";
  const size_t end = text.rfind("</answer>");
  const size_t begin = end == kNowhere ? kNowhere : text.rfind(kBegin, end);
  if (begin == kNowhere) return "";
  return StripSpace(text.substr(begin + kBegin.size(), end - begin - kBegin.size()));
}

}  // namespace

std::string AnswerIn(std::string_view response) {
  const std::string plain = WithDigits(WithPlainSigns(response), LeadsIn);
  std::string_view text = plain;
  constexpr std::string_view kThoughtEnds = "</think>";
  if (const size_t thought = text.rfind(kThoughtEnds); thought != kNowhere) {
    text.remove_prefix(thought + kThoughtEnds.size());
  }
  std::vector<std::string_view> boxes = BoxedContents(text);
  if (const std::string_view said = LastAnswerElement(text);
      !said.empty() && (boxes.empty() || boxes.back().data() < said.data() + said.size())) {
    const size_t begin = static_cast<size_t>(said.data() - text.data());
    if (IsDenied(text.substr(0, text.rfind('<', begin))) ||
        Retracts(text.substr(text.find('>', begin + said.size())))) {
      return std::string(kNotUnderstood);
    }
    text = said;
    boxes = BoxedContents(text);
  }
  const size_t end_of_boxes = boxes.empty() ? 0 : EndIn(text, boxes.back());
  if (boxes.empty() && IsFormula(StripSpace(text)) && Formulas(text).empty()) return std::string(StripSpace(text));
  const std::vector<Mark> marks = Marks(text);
  std::string last_words;
  int tried = 0;
  for (auto mark = marks.rbegin(); mark != marks.rend() && mark->begin >= end_of_boxes && tried < kMostMarks; ++mark) {
    if (!boxes.empty() && !(mark->final && mark->says)) continue;
    ++tried;
    std::string words;
    std::string said = Behind(text, *mark, &words);
    if (!said.empty()) return said;
    if (boxes.empty() && mark->colon && !words.empty() && text[mark->begin] != '#') return words;
    if (last_words.empty()) last_words = words;
  }
  if (!boxes.empty()) {
    size_t first = 0;
    const std::string joined = JoinLast(text, boxes, &first);
    for (size_t box = first; box > 0; --box) {
      const size_t end = EndIn(text, boxes[box - 1]), begin = static_cast<size_t>(boxes[box].data() - text.data());
      if (!IsGuess(text.substr(end, text.rfind('\\', begin) - end))) break;
      if (StripSpace(boxes[box - 1]) != StripSpace(boxes[first])) return std::string(kNotUnderstood);
    }
    const std::optional<std::string> factor = FactorAround(text, boxes[first], boxes.back());
    return factor.has_value() ? joined + *factor : std::string(kNotUnderstood);
  }
  if (std::string last = Last(text); !last.empty()) return last;
  return last_words;
}

std::string AnswerOfLabel(std::string_view label) {
  const std::string digits = WithDigits(label, LeadsIn);
  std::vector<std::string_view> parts = BoxedContents(digits);
  if (parts.empty()) parts = Formulas(digits);
  return parts.empty() ? std::string(StripSpace(digits)) : JoinLast(digits, parts);
}

}  // namespace quartet::math
