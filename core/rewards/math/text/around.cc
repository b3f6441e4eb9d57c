#include "core/rewards/math/text/around.h"

#include <algorithm>
#include <set>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "core/rewards/math/text/amends.h"
#include "core/rewards/math/vocabulary/leading_words.h"
#include "core/rewards/math/vocabulary/units.h"
#include "core/rewards/math/vocabulary/value_words.h"

namespace quartet::math {
namespace {

constexpr size_t kMostBytesAround = 400;
using Set = std::set<std::string, std::less<>>;

bool OneOf(std::string_view any, char c) { return any.find(c) != std::string_view::npos; }
bool AsciiLetter(char c) { return absl::ascii_isalpha(static_cast<unsigned char>(c)); }
bool AsciiDigit(char c) { return absl::ascii_isdigit(static_cast<unsigned char>(c)); }
bool InWord(char c) { return AsciiLetter(c) || (c & 0x80) != 0; }

// Commands that only set what is beside them, and those that conclude.
bool IsLayout(std::string_view command) {
  static const auto* all = new Set{"text",
                                   "textbf",
                                   "textit",
                                   "textrm",
                                   "mathbf",
                                   "mathrm",
                                   "mathsf",
                                   "mathit",
                                   "boldsymbol",
                                   "bm",
                                   "mbox",
                                   "hbox",
                                   "large",
                                   "Large",
                                   "LARGE",
                                   "huge",
                                   "Huge",
                                   "displaystyle",
                                   "left",
                                   "right",
                                   "bigl",
                                   "bigr",
                                   "big",
                                   "Big",
                                   "quad",
                                   "qquad",
                                   "hspace",
                                   "color",
                                   "textcolor",
                                   "rm",
                                   "bf",
                                   "it",
                                   "tt",
                                   "underline",
                                   "emph",
                                   "begin",
                                   "end",
                                   "hfill",
                                   "boxed",
                                   "fbox",
                                   "blacksquare",
                                   "square",
                                   "checkmark",
                                   "therefore",
                                   "because",
                                   "Rightarrow",
                                   "rightarrow",
                                   "implies",
                                   "to",
                                   "longrightarrow",
                                   "Longrightarrow",
                                   "iff",
                                   "approx",
                                   "equiv",
                                   "dollar",
                                   "nonumber",
                                   "notag",
                                   "Box",
                                   "qed",
                                   "label",
                                   "tag",
                                   "mathbb",
                                   "pounds",
                                   "euro"};
  return all->contains(command);
}

// Of `before`, the clause that it ends with.
std::string_view LastClause(std::string_view before) {
  if (before.size() > kMostBytesAround) before.remove_prefix(before.size() - kMostBytesAround);
  for (size_t i = before.size(); i-- > 0;) {
    const char c = before[i];
    const bool spaced = i + 1 == before.size() || OneOf(" \n*$", before[i + 1]);
    if (c == '\n' || c == ';' || ((c == ',' || c == '.' || c == '!' || c == '?' || c == ':') && spaced)) {
      // "approx." and "Rs." end no sentence.
      if (c == '.' && i > 0 && InWord(before[i - 1]) && before.substr(0, i).ends_with("Rs")) continue;
      return before.substr(i + 1);
    }
    if (before.substr(i).starts_with(" then ")) return before.substr(i + 6);
    if (before.substr(i).starts_with("\xE2\x80\x94")) return before.substr(i + 3);  // a dash
    if (before.substr(i).starts_with("\xE3\x80\x82") || before.substr(i).starts_with("\xEF\xBC\x8C"))
      return before.substr(i + 3);
  }
  return before;
}

std::vector<std::string> WordsOf(std::string_view text) {
  std::vector<std::string> words;
  for (size_t i = 0; i < text.size();) {
    size_t end = i;
    while (end < text.size() && (AsciiLetter(text[end]) || (text[end] == '\'' && end > i))) ++end;
    if (end == i) {
      ++i;
      continue;
    }
    const bool command = i > 0 && text[i - 1] == '\\';
    if (!command) words.push_back(absl::AsciiStrToLower(absl::string_view(text.data() + i, end - i)));
    i = end;
  }
  return words;
}

// Takes what only decorates off the end: spaces, brackets and marks that open, currencies.
std::string_view WithoutOpeners(std::string_view before) {
  while (!before.empty()) {
    if (OneOf(" \t$*#([{_~\"'`&", before.back())) {
      before.remove_suffix(1);
      if (!before.empty() && before.back() == '\\') before.remove_suffix(1);
      continue;
    }
    if (before.ends_with("\\,") || before.ends_with("\\;") || before.ends_with("\\:") || before.ends_with("\\!") ||
        before.ends_with("\\\\")) {
      before.remove_suffix(2);
      continue;
    }
    static const std::vector<std::string_view> currencies = {"\xE2\x82\xAC", "\xC2\xA3", "\xC2\xA5", "\xE2\x82\xB9",
                                                             "USD",          "Rs.",      "Rs"};
    const auto money = std::find_if(currencies.begin(), currencies.end(),
                                    [&](std::string_view sign) { return before.ends_with(sign); });
    if (money != currencies.end()) {
      before.remove_suffix(money->size());
      continue;
    }
    size_t begin = before.size();
    while (begin > 0 && AsciiLetter(before[begin - 1])) --begin;
    if (begin > 0 && begin < before.size() && before[begin - 1] == '\\' && IsLayout(before.substr(begin))) {
      before = before.substr(0, begin - 1);
      continue;
    }
    break;
  }
  return before;
}

// Whether a word denies or doubts what the clause says; not one of a relative clause: "those that are not sold are".
bool AnyDenies(const std::vector<std::string>& words) {
  const auto relative = [](const std::string& word) { return word == "that" || word == "who" || word == "which"; };
  for (size_t i = 0; i < words.size(); ++i) {
    if (!Denies(words[i])) continue;
    static const auto* verbs =
        new Set{"is", "are", "was", "were", "does", "do", "did", "can", "must", "will", "would", "should", "be"};
    // "the pieces not taken are"
    const bool attribute = words[i] == "not" && i > 1 && i + 2 < words.size() && !verbs->contains(words[i - 1]);
    const bool in_relative =
        i + 3 < words.size() && i >= 2 && (relative(words[i - 1]) || relative(words[i - 2])) && words[0] != "it";
    if (!in_relative && !attribute) return true;
  }
  return false;
}

// Whether the clause that begins `behind` takes back what was said, or says another value beside it.
bool TakesBack(std::string_view behind) {
  constexpr size_t kNear = 30;
  if (DeniesInChinese(behind.substr(0, kNear)) || Retracts(behind)) return true;
  size_t i = 0;
  while (i < behind.size() && !InWord(behind[i]) && !AsciiDigit(behind[i]) && behind[i] != '\\') ++i;
  const std::vector<std::string> words = WordsOf(behind.substr(i, 80));
  if (i == behind.size() || words.empty()) return i < behind.size() && AsciiDigit(behind[i]);
  if (AsciiDigit(behind[i])) return true;
  static const auto* back =
      new Set{"or",    "no",    "maybe", "perhaps", "possibly", "unless", "if",    "wrong",  "plus",
              "minus", "times", "never", "wait",    "actually", "and",    "false", "divided"};
  const auto* second = words.size() > 1 ? &words[1] : nullptr;
  const bool denies = words[0] == "not" || (words[0] == "but" && second != nullptr);
  if (denies) {
    // "not 6" says no more of the value.
    size_t at = behind.find(words[0] == "not" ? "not" : "but");
    at = behind.find_first_of("0123456789\\", at);
    return at == std::string_view::npos || (words[0] == "but" && *second != "not") ||
           WordsOf(behind.substr(0, at)).size() > 2;
  }
  if (words[0] == "and" && second != nullptr && words.size() > 3)
    return AsciiDigit(behind[std::min(behind.size() - 1, i + 4)]);
  return back->contains(words[0]);
}

// Denials and the like right before a box, which says of itself that it is the answer.
bool UnboxedBy(const std::vector<std::string>& words) {
  if (words.empty()) return false;
  std::vector<std::string> last(words.end() - static_cast<ptrdiff_t>(std::min<size_t>(4, words.size())), words.end());
  while (last.size() > 1 && (IsFillerWord(last.back()) || last.back() == "equal" || last.back() == "be")) {
    last.pop_back();
  }
  const std::string& word = last.back();
  const std::string before = last.size() > 1 ? last[last.size() - 2] : "";
  static const auto* none =
      new Set{"not",    "cannot", "never",  "negative", "minus",   "plus",  "times",   "least", "most",  "than",
              "twice",  "thrice", "double", "triple",   "half",    "under", "over",    "below", "above", "between",
              "nearly", "almost", "except", "but",      "without", "nor",   "neither", "or",    "by"};
  static const auto* of = new Set{"half",   "root",       "square",    "cube",     "third",    "quarter", "factorial",
                                  "log",    "reciprocal", "inverse",   "negative", "multiple", "out",     "power",
                                  "double", "triple",     "logarithm", "percent",  "opposite"};
  if (none->contains(word) || word.ends_with("n't")) return true;
  if (word == "of") return of->contains(before);
  return word == "to" && (before == "up" || before == "close" || before == "not" || before == "next");
}

// Whether `behind` leaves the value before it as it is.
bool Leaves(std::string_view behind, bool after_unit, bool one) {
  behind = behind.substr(0, kMostBytesAround);
  WordsBehind words(after_unit, one);
  bool upright = false;  // in \text{}, or behind a formula's end
  for (size_t i = 0; i < behind.size();) {
    const char c = behind[i];
    if (InWord(c)) {
      if (behind.substr(i).starts_with("\xE2\x80\x94") || behind.substr(i).starts_with("\xE2\x80\x93")) {
        return words.MayEnd() && !TakesBack(behind.substr(i + 3));
      }
      size_t end = i;
      while (end < behind.size() &&
             (InWord(behind[end]) || (OneOf("'-", behind[end]) && end + 1 < behind.size() && InWord(behind[end + 1]))))
        ++end;
      const std::string_view word = behind.substr(i, end - i);
      static const auto* clauses = new Set{"because", "since", "as",    "so",   "which", "when",     "who",
                                           "where",   "while", "after", "thus", "hence", "therefore"};
      if (clauses->contains(absl::AsciiStrToLower(absl::string_view(word.data(), word.size())))) {
        return words.MayEnd() && !Retracts(behind.substr(end));
      }
      if (DeniesInChinese(word)) return false;
      if (word.starts_with("\xE3\x80\x82")) return words.MayEnd() && !Retracts(behind.substr(end));
      // "and not 6"
      const std::string_view rest = behind.substr(end);
      if ((word == "and" || word == "but" || word == "not") && (word == "not" || rest.starts_with(" not "))) {
        return words.MayEnd() && !TakesBack(behind.substr(word == "not" ? i : end));
      }
      static const auto* subjects = new Set{"so", "thus", "hence", "therefore", "it", "we", "she", "he", "they"};
      if (word == "and") {
        const std::vector<std::string> next = WordsOf(rest.substr(0, 16));
        if (!next.empty() && subjects->contains(next[0])) return words.MayEnd();
      }
      if (word == "that" && words.HasNoun()) return words.MayEnd();
      // "\text{ m}", "$5$ m"
      if (word.size() == 1 && upright && IsUnitLetter(word[0]) && words.MayEnd()) {
        words.TakeUnit();
      } else if (!words.Take(word)) {
        return false;
      }
      i = end;
    } else if (c == '\n' || c == '=' ||
               (c == '<' && i + 1 < behind.size() &&
                (behind[i + 1] == '/' || behind[i + 1] == '|' || AsciiLetter(behind[i + 1])))) {
      return words.MayEnd() && !Retracts(behind.substr(i + 1));
    } else if (c == '.' || c == '!') {
      if (i + 1 == behind.size() || OneOf(" \n*$)\"'\\", behind[i + 1]) || (behind[i + 1] & 0x80) != 0)
        return words.MayEnd() && !Retracts(behind.substr(i + 1));
      if (c == '!' || !AsciiLetter(behind[i + 1])) return false;
      ++i;
    } else if (OneOf(",;:(", c) ||
               (c == '-' && i > 0 && behind[i - 1] == ' ' && i + 1 < behind.size() && behind[i + 1] == ' ')) {
      return words.MayEnd() && !TakesBack(behind.substr(i + 1));
    } else if (AsciiDigit(c)) {
      if (!words.TakeNumber()) return false;
      while (i < behind.size() && (AsciiDigit(behind[i]) || OneOf(".,", behind[i])) &&
             !behind.substr(i).starts_with(". "))
        ++i;
    } else if (c == '\\') {
      size_t end = i + 1;
      while (end < behind.size() && AsciiLetter(behind[end])) ++end;
      const std::string_view command = behind.substr(i + 1, end - i - 1);
      if (command.empty() ? !(end < behind.size() && OneOf(",;:!)]}% \\$", behind[end]))
                          : !IsLayout(command) && command != "circ")
        return false;
      if (command == "end" || command == "begin" || command == "tag" || command == "label" || command == "approx")
        return words.MayEnd();
      upright |= command == "text" || command == "mathrm" || command == "rm" || (command.empty() && behind[end] == ')');
      i = command.empty() ? end + 1 : end;
    } else if (c == '^' &&
               (behind.substr(i + 1).starts_with("\\circ") || behind.substr(i + 1).starts_with("{\\circ}"))) {
      ++i;
    } else if (c == '^' && words.HasNoun()) {
      size_t end = i + 1;
      while (end < behind.size() && (AsciiDigit(behind[end]) || OneOf("{}-", behind[end]))) ++end;
      i = end;
    } else if (c == '/' && i + 2 < behind.size() && AsciiLetter(behind[i + 1]) &&
               (upright || AsciiLetter(behind[i + 2])) && !words.AtNumber()) {
      if (!words.Take("per")) return false;
      ++i;
    } else if (OneOf(" \t$*_~})]\"'`{&%#|", c) && !behind.substr(i).starts_with("%%")) {
      upright |= c == '$';
      ++i;
    } else {
      return false;
    }
  }
  return words.MayEnd();
}

}  // namespace

bool LeadsIn(std::string_view before) {
  const std::string_view plain = WithoutOpeners(before);
  const std::string_view clause = LastClause(plain);
  if (!plain.empty() && OneOf("=:", plain.back()))
    return !AnyDenies(WordsOf(LastClause(plain.substr(0, plain.size() - 1))));
  const std::string_view rest = WithoutOpeners(clause);
  if (rest.empty()) return true;
  if (rest.ends_with("=>") || rest.ends_with("->")) return true;
  if ((rest.back() & 0x80) != 0) {
    static const std::vector<std::string_view> say = {"是", "为", "為", "得", "有", "等于",
                                                      "共", "案", "了", "は", "→",  "⇒"};
    return rest.find("不") == std::string_view::npos && !DeniesInChinese(rest) && !BoundsInChinese(rest) &&
           std::any_of(say.begin(), say.end(), [&](std::string_view word) { return rest.ends_with(word); });
  }
  if (!AsciiLetter(rest.back())) return false;
  size_t begin = rest.size();
  while (begin > 0 && AsciiLetter(rest[begin - 1])) --begin;
  if (begin > 0 && rest[begin - 1] == '\\') return IsLayout(rest.substr(begin));
  std::vector<std::string> words = WordsOf(rest);
  if (AnyDenies(words)) return false;
  // "the answer plus one", "the answer to the previous question"
  if (const auto answer = std::ranges::find(words, "answer"); answer != words.end() && answer + 1 != words.end()) {
    static const auto* changes = new Set{"plus", "minus", "times", "mod", "modulo", "squared"};
    if (changes->contains(answer[1]) || std::ranges::find(words, "previous") != words.end()) return false;
  }
  while (!words.empty() && IsFillerWord(words.back())) words.pop_back();
  if (words.empty()) return true;
  const std::string last = words.back();
  const std::string second = words.size() > 1 ? words[words.size() - 2] : "";
  if (last == "be") return MayBe(second);
  // "adds up to", "up to"
  if (last == "to" && second == "up") return words.size() > 2 && words[words.size() - 3].starts_with("add");
  static const auto* doubts = new Set{"could", "might", "may", "can"};
  // "5 hours to drive 300": no value of its sentence.
  if (second == "to" && words.size() > 2 && !SaysValue(words[words.size() - 3])) return false;
  return (SaysValue(last) && !doubts->contains(second)) || SaysValueWith(second, last);
}

std::optional<std::string> FactorBehind(std::string_view behind, std::string_view value) {
  const size_t digit = value.find_last_of("0123456789");
  const std::string_view unit = digit == std::string_view::npos ? value : value.substr(digit + 1);
  const bool after_unit =
      value.find('$') != std::string_view::npos || std::any_of(unit.begin(), unit.end(), AsciiLetter);
  const bool one = value.ends_with('1') && (value.size() == 1 || OneOf(" =$", value[value.size() - 2]));
  size_t begin = 0;
  while (begin < behind.size() && OneOf(" $*~)", behind[begin])) ++begin;
  for (const std::string_view text : {"\\text{", "\\mathrm{"}) {
    if (behind.substr(begin).starts_with(text)) begin += text.size();
  }
  while (begin < behind.size() && behind[begin] == ' ') ++begin;
  size_t end = begin;
  while (end < behind.size() && AsciiLetter(behind[end])) ++end;
  std::string_view factor = after_unit ? "" : behind.substr(begin, end - begin);
  if (!FactorOf(factor).has_value()) factor = "";
  if (!Leaves(factor.empty() ? behind : behind.substr(end), after_unit, one)) return std::nullopt;
  return factor.empty() ? "" : absl::StrCat(" ", absl::string_view(factor.data(), factor.size()));
}

bool IsDenied(std::string_view before) { return AnyDenies(WordsOf(LastClause(before))); }

std::optional<std::string> FactorAround(std::string_view text, std::string_view first_box, std::string_view last_box) {
  const size_t end_of_last = last_box.data() + last_box.size() - text.data();
  std::string_view before = text.substr(0, first_box.data() - text.data()), behind = text.substr(end_of_last);
  before = before.substr(0, before.rfind('\\'));
  constexpr size_t kNear = 24;
  std::string_view near = before.substr(before.size() - std::min(before.size(), kNear));
  for (const std::string_view end : {"。", "，", "\n", ".", ","}) {
    if (const size_t at = near.rfind(end); at != std::string_view::npos) near.remove_prefix(at + end.size());
  }
  if (DeniesInChinese(near)) return std::nullopt;
  if (!behind.empty()) behind.remove_prefix(1);  // the brace
  const size_t line = before.rfind('\n') == std::string_view::npos ? 0 : before.rfind('\n') + 1;
  std::string_view plain = WithoutOpeners(before.substr(line));
  // A list's mark, and a title.
  const bool mark = ((plain == "-" || plain == "+") && !before.ends_with(plain)) ||
                    plain.find_first_not_of("#>") == std::string_view::npos;
  if (!mark) {
    const char last = plain.back();
    if (last == '-' || last == '>') {
      // "=>", and a dash between words.
      const size_t tag = plain.rfind('<');
      const bool is_tag = last == '>' && tag != std::string_view::npos && tag + 1 < plain.size() &&
                          std::all_of(plain.begin() + static_cast<ptrdiff_t>(tag) + 1, plain.end() - 1,
                                      [](char c) { return AsciiLetter(c) || OneOf("_/", c); });
      const bool arrow = last == '>' && plain.size() > 1 && OneOf("=-", plain[plain.size() - 2]);
      const bool dash = last == '-' && plain.size() > 2 && plain[plain.size() - 2] == ' ' && before.ends_with(' ') &&
                        AsciiLetter(plain[plain.size() - 3]);
      if (!arrow && !dash && !is_tag) return std::nullopt;
    } else if (OneOf("+*/^<!|", last) || AsciiDigit(last) ||
               (last == '.' && plain.size() > 1 && AsciiDigit(plain[plain.size() - 2]) && before.ends_with('.'))) {
      return std::nullopt;
    } else if (last == ')' || last == ']' || last == '}') {
      // Behind text and the end of a formula; no factor.
      size_t open = plain.size();
      int depth = 0;
      while (open > 0) {
        const char c = plain[--open];
        depth += OneOf(")]}", c) ? 1 : OneOf("([{", c) ? -1 : 0;
        if (depth == 0) break;
      }
      const bool closes_formula = plain.size() >= 2 && plain[plain.size() - 2] == '\\';
      size_t name = open;
      while (name > 0 && AsciiLetter(plain[name - 1])) --name;
      const bool styled = name > 0 && plain[name - 1] == '\\' && IsLayout(plain.substr(name, open - name));
      const std::string_view inside = plain.substr(open, plain.size() - open);
      const bool letter = inside.size() == 3 && AsciiLetter(inside[1]) && (open == 0 || plain[open - 1] == ' ');
      const bool words = last != '}' && before.ends_with(' ') && WordsOf(inside).size() > 1;
      if (!closes_formula && !styled && !letter && !words) return std::nullopt;
      if (styled && UnboxedBy(WordsOf(plain.substr(open)))) return std::nullopt;
    } else if (AsciiLetter(last)) {
      size_t word = plain.size();
      while (word > 0 && (AsciiLetter(plain[word - 1]) || plain[word - 1] == '\'')) --word;
      if (word > 0 && plain[word - 1] == '\\') return std::nullopt;
      const bool single = plain.size() - word == 1 && plain.back() != 'a' && plain.back() != 'I';
      if (single || UnboxedBy(WordsOf(LastClause(plain)))) return std::nullopt;
    }
  }
  // A letter at once is a factor.
  std::string_view first = behind;
  if (!first.empty() && AsciiLetter(first[0]) && (first.size() == 1 || !AsciiLetter(first[1]))) return std::nullopt;
  // "\boxed{5}!$" is no exclamation.
  if (behind.size() > 1 && behind[0] == '!' && OneOf("$+-*/)=\\", behind[1])) return std::nullopt;
  return FactorBehind(behind, first_box.data() == last_box.data() ? first_box : "");
}

}  // namespace quartet::math
