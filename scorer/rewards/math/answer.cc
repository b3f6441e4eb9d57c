#include "scorer/rewards/math/answer.h"

#include <algorithm>
#include <map>
#include <set>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_replace.h"
#include "core/answer_extraction/boxed.h"
#include "scorer/rewards/extract.h"
#include "scorer/rewards/math/parser.h"

namespace quartet::math {
namespace {

constexpr char kMinusSign[] = "\xE2\x88\x92";  // U+2212

// What stands between two parts of one answer: nothing, or commas, "and" and "or", and no other words.
bool Joins(std::string_view between) {
  constexpr size_t kMostBytes = 40;
  if (between.size() > kMostBytes || between.find('\n') != std::string_view::npos) return false;
  const auto letter = [](char c) { return absl::ascii_isalpha(static_cast<unsigned char>(c)); };
  bool joins = between.empty();
  for (size_t i = 0; i < between.size();) {
    if (letter(between[i])) {
      const size_t begin = i;
      while (i < between.size() && letter(between[i])) ++i;
      const std::string_view word = between.substr(begin, i - begin);
      const bool command = begin > 0 && between[begin - 1] == '\\';
      if (command && (word == "text" || word == "quad" || word == "qquad" || word == "mbox")) continue;
      if (command || (word != "and" && word != "or")) return false;
      joins = true;
    } else if (between[i] == ',' || between[i] == ';' || between[i] == '&') {
      joins = true;
      ++i;
    } else if (absl::string_view(" \t$*_~\\{}()").find(between[i]) != absl::string_view::npos) {
      ++i;
    } else {
      return false;
    }
  }
  return joins;
}

// The last part, with those before it that it is joined to, commas between them.
std::string JoinLast(std::string_view text, const std::vector<std::string_view>& parts) {
  size_t first = parts.size() - 1;
  while (first > 0) {
    const size_t from = parts[first - 1].data() + parts[first - 1].size() - text.data();
    const size_t to = parts[first].data() - text.data();
    std::string_view between = text.substr(from, to - from);
    // The brackets and commands around the parts themselves.
    if (!between.empty() && between.front() == '}') between.remove_prefix(1);
    for (const std::string_view box : {"\\boxed{", "\\fbox{"}) {
      if (between.size() >= box.size() && between.substr(between.size() - box.size()) == box) {
        between.remove_suffix(box.size());
      }
    }
    if (!Joins(between)) break;
    --first;
  }
  std::string joined;
  for (size_t i = first; i < parts.size(); ++i) {
    if (i > first) joined += " , ";
    joined += parts[i];
  }
  return joined;
}

// Contents of $...$, $$...$$, \(...\), \[...\], from left to right; $...$ on one line.
std::vector<std::string_view> Formulas(std::string_view text) {
  std::vector<std::string_view> formulas;
  // What is not closed once is not closed later: in the text, and for $ and \\( in the line, which ends there.
  std::map<std::string_view, size_t> open_until;
  for (size_t i = 0; i < text.size();) {
    if (text[i] == '\\' && i + 1 < text.size() && text[i + 1] == '$') {
      i += 2;
      continue;
    }
    std::string_view close;
    if (text.substr(i, 2) == "$$") {
      close = "$$";
    } else if (text.substr(i, 2) == "\\[") {
      close = "\\]";
    } else if (text.substr(i, 2) == "\\(") {
      close = "\\)";
    } else if (text[i] == '$') {
      close = "$";
    } else {
      ++i;
      continue;
    }
    const size_t begin = i + close.size();
    const bool inline_only = close == "$" || close == "\\)";
    const size_t limit = inline_only ? std::min(text.find('\n', begin), text.size()) : text.size();
    const bool hopeless = begin < open_until[close];
    const std::string_view rest = hopeless ? "" : text.substr(begin, limit - begin);
    size_t end = rest.find(close);
    while (close == "$" && end != std::string_view::npos && end > 0 && rest[end - 1] == '\\') {
      end = rest.find(close, end + 1);
    }
    if (end == std::string_view::npos) {
      if (!hopeless) open_until[close] = limit;
      i = begin;
      continue;
    }
    const std::string_view content = rest.substr(0, end);
    end += begin;
    if (!StripSpace(content).empty()) formulas.push_back(content);
    i = end + close.size();
  }
  return formulas;
}

bool IsDigit(std::string_view text, size_t i) {
  return i < text.size() && absl::ascii_isdigit(static_cast<unsigned char>(text[i]));
}
bool IsLetter(std::string_view text, size_t i) {
  return i < text.size() && absl::ascii_isalpha(static_cast<unsigned char>(text[i]));
}

// Where the digits begin, with points, commas and fractions, that end at `end`.
size_t BeginOfDigits(std::string_view text, size_t end) {
  const auto inside = [&](size_t i) {
    return IsDigit(text, i) || ((text[i] == '.' || text[i] == ',' || text[i] == '/') && IsDigit(text, i + 1));
  };
  size_t begin = end;
  while (begin > 0 && inside(begin - 1)) --begin;
  return begin;
}

bool RemoveSuffix(std::string_view* text, std::string_view suffix) {
  if (!text->ends_with(suffix)) return false;
  text->remove_suffix(suffix.size());
  return true;
}

// Where "1.6e-19", "2^10" or "1.6 x 10^{-19}" begins, whose last digits begin at `begin`; `begin`: they are no
// exponent.
size_t BeginOfPower(std::string_view text, size_t begin) {
  std::string_view before = text.substr(0, begin);
  if (!RemoveSuffix(&before, "-")) RemoveSuffix(&before, "+");
  if ((before.ends_with('e') || before.ends_with('E')) && IsDigit(before, before.size() - 2)) {
    return BeginOfDigits(text, before.size() - 1);
  }
  if (!RemoveSuffix(&before, "{")) RemoveSuffix(&before, "(");
  if ((!RemoveSuffix(&before, "^") && !RemoveSuffix(&before, "**")) || !IsDigit(before, before.size() - 1)) {
    return begin;
  }
  const size_t base = BeginOfDigits(text, before.size());
  if (before.substr(base) != "10") return base;
  before = StripSpace(before.substr(0, base));
  for (const std::string_view times : {"x", "X", "*", "\xC3\x97", "\xC2\xB7", "\\times", "\\cdot"}) {
    if (!RemoveSuffix(&before, times)) continue;
    before = StripSpace(before);
    const size_t end = before.data() + before.size() - text.data();
    return IsDigit(text, end - 1) ? BeginOfDigits(text, end) : base;
  }
  return base;
}

// The last number that is no part of a word, with a fraction, a power or an exponent; empty: there is none.
std::string_view LastNumber(std::string_view text) {
  for (size_t end = text.size(); end > 0;) {
    if (!IsDigit(text, end - 1)) {
      --end;
      continue;
    }
    const size_t digits = BeginOfDigits(text, end);
    size_t begin = BeginOfPower(text, digits);
    if (begin > 0 && IsLetter(text, begin - 1)) {
      end = begin;
      continue;
    }
    const std::string_view lead = text.substr(begin, digits - begin);
    if (const size_t open = lead.find_first_of("{("); open != std::string_view::npos) {
      end += text.substr(end, 1) == (lead[open] == '{' ? "}" : ")");
    }
    if (begin > 0 && text[begin - 1] == '-' &&
        (begin == 1 || (!IsLetter(text, begin - 2) && !IsDigit(text, begin - 2)))) {
      --begin;
    }
    return text.substr(begin, end - begin);
  }
  return {};
}

// Boxes, else formulas, else nothing; `*end` is where the last of them ends.
std::string LastFormula(std::string_view text, size_t* end) {
  std::vector<std::string_view> parts = BoxedContents(text);
  if (parts.empty()) parts = Formulas(text);
  if (parts.empty()) return "";
  *end = parts.back().data() + parts.back().size() - text.data();
  return JoinLast(text, parts);
}

// Of "Final answer: $46$, not $60$." the first formula, with those that it is joined to. Empty where the sentence, or
// the line, has none.
std::string FirstOfSentence(std::string_view text) {
  const std::vector<std::string_view> all = Formulas(text);
  if (all.empty()) return "";
  const std::string_view before = text.substr(0, all[0].data() - text.data());
  if (before.find_first_of("0123456789") != std::string_view::npos || before.find(". ") != std::string_view::npos)
    return "";
  std::vector<std::string_view> parts = {all[0]};
  for (size_t i = 1; i < all.size(); ++i) {
    const char* const from = parts.back().data() + parts.back().size();
    if (!Joins({from, static_cast<size_t>(all[i].data() - from)})) break;
    parts.push_back(all[i]);
  }
  return JoinLast(text, parts);
}

// Such as a response that is nothing but its answer.
bool IsFormula(std::string_view text) {
  constexpr size_t kMostBytes = 256;
  if (text.size() > kMostBytes) return false;
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
  return parsed.has_value() && std::none_of(parsed->begin(), parsed->end(), [](const auto& element) {
           return element->kind == Expression::Kind::kText;
         });
}

}  // namespace

std::string AnswerIn(std::string_view response) {
  // The minus sign and powers, as a model may write them outside of formulas.
  const std::string text_of = absl::StrReplaceAll(WithPlainPowers(response), {{kMinusSign, "-"}});
  const std::string_view text = text_of;
  size_t end = 0;
  if (!BoxedContents(text).empty()) return LastFormula(text, &end);
  if (IsFormula(StripSpace(text)) && Formulas(text).empty()) return std::string(StripSpace(text));
  if (const size_t at = absl::AsciiStrToLower(absl::string_view(text.data(), text.size())).rfind("final answer");
      at != std::string::npos) {
    const std::string_view behind = text.substr(at + 12);
    if (std::string first = FirstOfSentence(behind); !first.empty()) return first;
    if (std::string final = AnswerIn(behind); !final.empty()) return final;
  }
  std::string formula = LastFormula(text, &end);
  const std::string_view number = LastNumber(text);
  // Whichever comes later.
  if (!number.empty() && number.data() >= text.data() + end) return std::string(number);
  return formula;
}

std::string AnswerOfLabel(std::string_view label) {
  size_t end;
  const std::string formula = LastFormula(label, &end);
  return formula.empty() ? std::string(StripSpace(label)) : formula;
}

}  // namespace quartet::math
