#include "core/rewards/math/text/sentences.h"

#include <algorithm>
#include <set>
#include <string>

#include "absl/strings/ascii.h"
#include "core/rewards/math/grammar/words.h"
#include "core/rewards/math/vocabulary/units.h"

namespace quartet::math {
namespace {

constexpr size_t kMostBytesOfGroup = 400;
constexpr size_t npos = std::string_view::npos;

bool IsOf(std::string_view any, char c) { return any.find(c) != npos; }

std::string LowerOf(std::string_view text) {
  return absl::AsciiStrToLower(absl::string_view(text.data(), text.size()));
}

// Words that formulas in plain text have.
bool IsMathWord(std::string_view word) {
  return IsFunction(word) || word == "sqrt" || word == "pi" || word == "arcsin" || word == "arccos" ||
         word == "arctan" || word == "infinity" || word == "inf" || word == "and" || word == "or" || word == "mod";
}

class Scanner {
 public:
  Scanner(std::string_view text, bool behind_mark)
      : text_(text), behind_mark_(behind_mark), closing_(PairBrackets(text)) {}

  std::vector<std::string_view> Run() {
    while (at_ < text_.size()) Step();
    Finish();
    return std::move(found_);
  }

 private:
  char Peek(size_t ahead = 0) const { return at_ + ahead < text_.size() ? text_[at_ + ahead] : '\0'; }
  bool Digit(size_t i) const { return i < text_.size() && absl::ascii_isdigit(static_cast<unsigned char>(text_[i])); }
  bool Letter(size_t i) const { return i < text_.size() && absl::ascii_isalpha(static_cast<unsigned char>(text_[i])); }
  bool Other(size_t i) const { return i < text_.size() && (text_[i] & 0x80) != 0; }

  void Finish() {
    if (open_ && says_) found_.push_back(text_.substr(begin_, end_ - begin_));
    open_ = false;
  }

  // What stands for a value, up to `end`. `plain`: a single letter, which alone says nothing.
  void Operand(size_t end, bool plain = false, bool number = false) {
    if (open_ && !after_operator_ && !MayFollow(plain, number)) Finish();
    if (!open_) {
      open_ = true;
      says_ = false;
      begin_ = sign_ != npos && text_.find_first_not_of(' ', sign_ + 1) == at_ ? sign_ : at_;
      if (begin_ > 0 && IsOf("$", text_[begin_ - 1])) --begin_;
      if (begin_ > 0 && text_[begin_ - 1] == '\\' && text_[begin_] == '$') --begin_;
    } else if (after_operator_) {
      says_ = true;
    }
    says_ |= !plain || behind_mark_;
    after_operator_ = false;
    at_ = end_ = end;
    after_number_ = number;
  }

  // Whether what is at `at_` goes on with the value before it without a sign between.
  bool MayFollow(bool plain, bool number) const {
    const bool space = at_ > end_;
    if (number) {
      // 2 2/3
      if (!space || !after_number_) return !space;
      size_t i = at_;
      while (Digit(i)) ++i;
      return i < text_.size() && text_[i] == '/' && Digit(i + 1);
    }
    if (!space) return true;
    return Peek() == '\\' || after_number_ || (behind_mark_ && (plain || Peek() == '('));
  }

  void Operator(size_t end) {
    after_operator_ = true;
    at_ = end;
  }

  void Step() {
    const char c = Peek();
    if (Digit(at_) || (c == '.' && Digit(at_ + 1) && !Digit(at_ - 1))) return Number();
    if (Letter(at_) || Other(at_)) return Word();
    if (c == '\\') return Command();
    if (c == '(' || c == '[' || c == '{' || c == '|') return Group(at_, 1);
    if (c == ' ' || c == '\t' || c == '$' || c == '*') {
      const bool power = c == '*' && open_ && (Digit(at_ + 1) || Letter(at_ + 1) || Peek(1) == '*' || Peek(1) == ' ') &&
                         !(Peek(1) == '*' && !Digit(at_ + 2));
      if (power) return Operator(at_ + (Peek(1) == '*' ? 2 : 1));
      if (c == '*') Finish();
      ++at_;
      return;
    }
    if (c == '\n') {
      Finish();
      ++at_;
      return;
    }
    if (c == '+' || c == '-') {
      const bool spaced = behind_mark_ && Peek(1) == ' ' && (Digit(at_ + 2) || Peek(2) == '\\');
      const bool begins = !open_ && at_ + 1 < text_.size() && (spaced || !IsOf(" \n", Peek(1))) &&
                          (at_ == 0 || (!Letter(at_ - 1) && !Digit(at_ - 1) && !Other(at_ - 1)));
      if (begins) sign_ = at_;
      if (open_)
        Operator(at_ + 1);
      else
        ++at_;
      return;
    }
    if (open_ && IsOf("/^=<>_", c)) return Operator(at_ + 1);
    if (open_ && c == '!' && at_ == end_ && Peek(1) == '=') return Operator(at_ + 2);
    // What follows a value closely.
    const bool factorial = c == '!' && (IsOf(")/*+-^=", Peek(1)) || Peek(1) == ' ') && Peek(1) != '\0';
    if (open_ && at_ == end_ && (c == '\'' || c == '%' || (factorial && GoesOn(at_ + 1)))) {
      end_ = ++at_;
      return;
    }
    if (open_ && c == ':' && Digit(at_ + 1 + (Peek(1) == ' ')) && after_number_) return Operator(at_ + 1);
    if (behind_mark_ && open_ && (c == ',' || c == ';') && !after_operator_) return Operator(at_ + 1);
    Finish();
    ++at_;
  }

  // Whether an operator follows.
  bool GoesOn(size_t i) const {
    while (i < text_.size() && text_[i] == ' ') ++i;
    return i < text_.size() && IsOf("+-*/^=)", text_[i]);
  }

  void Number() {
    size_t end = at_;
    while (true) {
      while (Digit(end) || (end < text_.size() && IsOf(".,", text_[end]) && Digit(end + 1))) ++end;
      // 1\,234 and 1{,}234
      size_t separator = 0;
      for (const std::string_view thin : {"\\,", "{,}", ",\\!"}) {
        if (text_.substr(end, thin.size()) == thin && Digit(end + thin.size())) separator = thin.size();
      }
      if (separator == 0) break;
      end += separator;
    }
    // 1.6e-19
    if (end < text_.size() && IsOf("eE", text_[end])) {
      size_t exponent = end + 1;
      if (exponent < text_.size() && IsOf("+-", text_[exponent])) ++exponent;
      const size_t digits = exponent;
      while (Digit(exponent)) ++exponent;
      if (exponent > digits && !Letter(exponent)) end = exponent;
    }
    // "3rd", and what is no number but part of a name.
    size_t word = end;
    while (Letter(word) || (word > end && Digit(word))) ++word;
    const std::string letters = LowerOf(text_.substr(end, word - end));
    const bool names = letters.size() >= 2 && !IsUnitWord(letters) && !IsMathWord(letters) &&
                       (letters.size() > 3 || letters == "st" || letters == "nd" || letters == "rd" || letters == "th");
    // "2. So", at the beginning of a line.
    size_t before = at_;
    while (before > 0 && IsOf(" \t#*", text_[before - 1])) --before;
    const bool begins_line = (before == 0 && !behind_mark_) || text_[before - 1] == '\n';
    const bool enumerates = begins_line && end + 1 < text_.size() && IsOf(".)", text_[end]) && text_[end + 1] == ' ' &&
                            (end + 2 < text_.size() && text_[end + 2] != '\n');
    if (names || enumerates) {
      Finish();
      at_ = names ? word : end + 1;
      return;
    }
    Operand(end, false, true);
  }

  void Word() {
    // Digits are part of a word of Latin letters ("item3"), not of other ones.
    size_t end = at_;
    if (Other(at_)) {
      while (Other(end)) ++end;
    } else {
      while (Letter(end) ||
             (end > at_ && (Digit(end) || (text_[end == text_.size() ? at_ : end] == '\'' && Letter(end + 1)))))
        ++end;
    }
    const std::string_view word = text_.substr(at_, end - at_);
    const std::string lower = LowerOf(word);
    if (word.size() == 1) {
      // A letter is a variable where mathematics is around it: "x = 2", "2x", but not "a 5" or "I".
      size_t next = end;
      while (next < text_.size() && text_[next] == ' ') ++next;
      const bool touches = open_ && (at_ == end_ || after_operator_);
      const bool begins =
          next < text_.size() && (IsOf("=+-*/^<>_\\", text_[next]) || (next == end && text_[next] == '('));
      if ((word == "x" || word == "X") && open_ && after_number_ &&
          (text_.substr(next, 3) == "10^" || text_.substr(next, 4) == "10**")) {
        return Operator(end);  // 1.6 x 10^-19
      }
      const bool article = (word == "a" || word == "A" || word == "I") && next > end && !begins;
      if (!article && (touches || begins || (after_number_ && open_) || behind_mark_))
        return Operand(end, /*plain=*/true);
    } else if (IsMathWord(lower) && lower != "and" && lower != "or" && lower != "mod") {
      return Operand(end, /*plain=*/lower != "pi" && lower.substr(0, 3) != "inf");
    } else if (open_ && !after_operator_ && behind_mark_ && (lower == "and" || lower == "or")) {
      return Operator(end);
    } else if (open_ && !after_operator_ && !(lower == "in" && end < text_.size() && text_[end] == ' ') &&
               (after_number_ || after_unit_) &&
               (IsUnitWord(word) || lower == "per" || lower == "square" || lower == "cubic" || lower == "squared" ||
                lower == "cubed" || lower == "factorial" || lower == "sq")) {
      end_ = at_ = end;
      after_unit_ = true;
      return;
    } else if (open_ && word.size() <= 3 && at_ == end_ && Letter(at_) &&
               std::none_of(word.begin(), word.end(), [](char c) { return IsOf("aeiou", c) || (c & 0x80) != 0; })) {
      return Operand(end, /*plain=*/true);  // 2xy
    }
    Finish();
    after_unit_ = false;
    at_ = end;
  }

  void Command() {
    size_t end = at_ + 1;
    while (Letter(end)) ++end;
    const std::string_view name = text_.substr(at_ + 1, end - at_ - 1);
    if (name.empty()) {
      if (Peek(1) == '{') return Group(at_ + 1, 2);
      if (open_ && (Peek(1) == '%')) {
        end_ = at_ += 2;
        return;
      }
      if (IsOf(",;:! ", Peek(1))) {
        at_ += 2;
        return;
      }
      if (Peek(1) == '$') {
        ++at_;
        return;
      }
      Finish();
      at_ += 2;
      return;
    }
    static const auto* operators = new std::set<std::string_view>{
        "times", "cdot", "div", "divide", "pm", "mp", "leq", "geq",  "le",       "ge",    "neq", "ne",
        "in",    "cup",  "cap", "approx", "lt", "gt", "mod", "bmod", "setminus", "equiv", "quad"};
    if (operators->contains(name)) {
      if (open_) return Operator(end);
      if (name == "pm" || name == "mp") return Operand(end, /*plain=*/true);
      at_ = end;
      return;
    }
    // With its arguments.
    const bool index = end < text_.size() && text_[end] == '[' && name == "sqrt";
    size_t i = index ? Closing(end, kMostBytesOfGroup) : end;
    if (i == npos) i = end;
    while (i < text_.size() && (text_[i] == '{' || (text_[i] == ' ' && i + 1 < text_.size() && text_[i + 1] == '{'))) {
      const size_t brace = text_[i] == '{' ? i : i + 1;
      const size_t close = Closing(brace, kMostBytesOfGroup);
      if (close == npos) break;
      i = close;
    }
    Operand(i, false, false);
    if (name == "frac" || name == "dfrac" || name == "circ" || name == "text" || name == "mathrm") after_number_ = true;
    if (name == "left" || name == "right" || name == "sqrt" || name == "frac" || IsFunction(name)) {
      // \left( and \sqrt 2: what follows belongs to it.
      after_operator_ = i == end && name != "right";
    }
  }

  // Behind the bracket that closes the one at `open`, of any kind, as intervals have them; npos: none does within
  // `most` bytes and the paragraph.
  size_t Closing(size_t open, size_t most) const {
    return closing_[open] == 0 || closing_[open] - open > most ? npos : closing_[open];
  }

  static std::vector<size_t> PairBrackets(std::string_view text) {
    std::vector<size_t> closing(text.size()), open;
    for (size_t i = 0; i < text.size(); ++i) {
      if (IsOf("([{", text[i])) open.push_back(i);
      if (text[i] == '\n' && i + 1 < text.size() && text[i + 1] == '\n') open.clear();
      if (!IsOf(")]}", text[i]) || open.empty()) continue;
      closing[open.back()] = i + 1;
      open.pop_back();
    }
    return closing;
  }

  // (3, 4), [2, 5), \{1, 2\}, |x - 4|: where no words are in it.
  void Group(size_t bracket, size_t length) {
    const bool bars = text_[bracket] == '|';
    size_t close = npos;
    if (!bars) {
      close = Closing(bracket, kMostBytesOfGroup);
    } else if (Peek(1) != ' ' && Peek(1) != '|') {
      close = text_.substr(0, std::min(text_.size(), bracket + 80)).find('|', bracket + 1);
      if (close != npos) close = text_[close - 1] == ' ' ? npos : close + 1;
    }
    if (close == npos || HasWords(text_.substr(bracket + 1, close - bracket - 2))) {
      Finish();
      at_ += length;
      return;
    }
    Operand(close, false, false);
  }

  static bool HasWords(std::string_view inside) {
    bool any = false;
    for (size_t i = 0; i < inside.size();) {
      const auto letter = [&](size_t at) {
        return at < inside.size() &&
               (absl::ascii_isalpha(static_cast<unsigned char>(inside[at])) || (inside[at] & 0x80));
      };
      any |= !IsOf(" \n", inside[i]);
      if (!letter(i)) {
        ++i;
        continue;
      }
      const size_t begin = i;
      while (letter(i)) ++i;
      const std::string_view word = inside.substr(begin, i - begin);
      if ((begin == 0 || inside[begin - 1] != '\\') && word.size() > 1 && !IsMathWord(LowerOf(word)) &&
          !IsUnitWord(word) && (word.size() > 2 || !MayBeReordered(word))) {
        return true;
      }
    }
    return !any;
  }

  const std::string_view text_;
  const bool behind_mark_;
  const std::vector<size_t> closing_;  // behind the bracket that closes the one there; 0: none
  std::vector<std::string_view> found_;
  size_t at_ = 0;
  bool open_ = false;            // a stretch is, from `begin_` to `end_`
  bool says_ = false;            // it is more than a letter
  bool after_operator_ = false;  // which is behind `end_`
  bool after_number_ = false, after_unit_ = false;
  size_t begin_ = 0, end_ = 0;
  size_t sign_ = npos;  // of a sign that may begin one
};

// The word that ends right before `at`, but for spaces and opening marks.
std::string WordBefore(std::string_view text, size_t at, size_t* begin) {
  size_t end = at;
  while (end > 0 && IsOf(" \t$*(\\[{~", text[end - 1])) --end;
  if (end > 0 && text[end - 1] == '.') --end;  // eq. 3
  *begin = end;
  while (*begin > 0 &&
         (absl::ascii_isalpha(static_cast<unsigned char>(text[*begin - 1])) || text[*begin - 1] == '\'')) {
    --*begin;
  }
  return LowerOf(text.substr(*begin, end - *begin));
}

}  // namespace

std::vector<std::string_view> Stretches(std::string_view text, bool behind_mark) {
  return Scanner(text, behind_mark).Run();
}

bool IsDeniedAt(std::string_view text, size_t at) {
  size_t begin;
  std::string word = WordBefore(text, at, &begin);
  if (word == "to") word = WordBefore(text, begin, &begin);
  if (word == "equal") word = WordBefore(text, begin, &begin);
  return word == "not" || word.ends_with("n't");
}

bool IsReferenceAt(std::string_view text, size_t at) {
  static const auto* words = new std::set<std::string>{
      "eq",     "eqn",   "equation", "step",  "steps",   "case",     "part",     "section",  "sec",  "figure",
      "fig",    "table", "theorem",  "lemma", "problem", "question", "example",  "chapter",  "page", "exercise",
      "method", "note",  "ref",      "line",  "option",  "footnote", "approach", "solution", "hint"};
  size_t begin;
  return words->contains(WordBefore(text, at, &begin));
}

}  // namespace quartet::math
