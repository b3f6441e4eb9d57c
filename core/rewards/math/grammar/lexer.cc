#include "core/rewards/math/grammar/lexer.h"

#include <algorithm>
#include <array>
#include <utility>

#include "absl/strings/ascii.h"
#include "core/rewards/math/grammar/signs.h"
#include "core/rewards/math/vocabulary/units.h"

namespace quartet::math {
namespace {

constexpr size_t kMostBytes = 8 << 10;

bool IsDigit(char c) { return c >= '0' && c <= '9'; }
bool IsLetter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }
bool IsSpace(char c) { return c == ' ' || (c >= '\t' && c <= '\r'); }

template <size_t n>
bool IsOneOf(const std::array<std::string_view, n>& names, std::string_view name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

// Commands that only look.
constexpr std::array<std::string_view, 19> kNothing = {
    "left",   "right",    "big",          "Big",       "bigg", "Bigg", "bigl", "bigr",   "Bigl", "Bigr",
    "limits", "nolimits", "displaystyle", "textstyle", "rm",   "bf",   "it",   "middle", "hline"};
constexpr std::array<std::string_view, 4> kSpaces = {"quad", "qquad", "space", "nobreakspace"};
constexpr std::array<std::string_view, 10> kTexts = {"text", "textbf", "textit",       "textrm", "textnormal",
                                                     "mbox", "hbox",   "operatorname", "textsf", "mathrm"};
// Their argument means what it does without them.
constexpr std::array<std::string_view, 9> kStyles = {"mathbf",     "mathit", "mathsf", "boldsymbol", "bm",
                                                     "mathnormal", "boxed",  "fbox",   "underline"};

constexpr std::pair<std::string_view, std::string_view> kSameCommands[] = {
    {"dfrac", "frac"},
    {"tfrac", "frac"},
    {"cfrac", "frac"},
    {"le", "leq"},
    {"ge", "geq"},
    {"leqslant", "leq"},
    {"geqslant", "geq"},
    {"ne", "neq"},
    {"cdot", "times"},
    {"ast", "times"},
    {"dbinom", "binom"},
    {"tbinom", "binom"},
    {"lt", "less"},
    {"gt", "greater"},
    {"varnothing", "emptyset"},
    {"wedge", "land"},
    {"vee", "lor"},
    {"backslash", "setminus"},
    {"colon", "colon"},
    {"arcsin", "asin"},
    {"arccos", "acos"},
    {"arctan", "atan"},
    {"lbrace", "{"},
    {"rbrace", "}"},
    {"vert", "|"},
    {"lvert", "|"},
    {"rvert", "|"},
    {"mid", "|"},
    {"lbrack", "["},
    {"rbrack", "]"},
    {"leqq", "leq"},
    {"geqq", "geq"},
    {"tg", "tan"},
    {"varphi", "phi"},
    {"vartheta", "theta"},
    {"varepsilon", "epsilon"},
    {"div", "divide"},
    {"overrightarrow", "vec"},
    {"widehat", "hat"},
    {"bmod", "pmod"},
    {"mod", "pmod"},
    {"percent", "%"},
    {"pounds", "pound"},
    {"texteuro", "euro"},
    {"R", "reals"},
    {"arsinh", "asinh"},
    {"arcosh", "acosh"},
    {"artanh", "atanh"},
    {"arcsinh", "asinh"},
    {"arccosh", "acosh"},
    {"arctanh", "atanh"},
    {"dotsb", "dots"},
    {"measuredangle", "angle"},
};

class Lexer {
 public:
  Lexer(std::string text, LetterE e) : text_(std::move(text)), e_(e) {}

  std::optional<std::vector<Token>> Run() {
    while (at_ < text_.size()) {
      const char c = text_[at_];
      if (IsSpace(c) || c == '~') {
        space_ = true;
        ++at_;
      } else if (c == '\\') {
        if (!Command()) return std::nullopt;
      } else if (IsDigit(c) || (c == '.' && at_ + 1 < text_.size() && IsDigit(text_[at_ + 1]))) {
        Number();
      } else if ((c == 'x' || c == 'X') && TimesPowerOfTen()) {
        Add(Token::Kind::kCommand, "times");
        ++at_;
      } else if ((View(3) == "a.m" || View(3) == "p.m") && !tokens_.empty() &&
                 tokens_.back().kind == Token::Kind::kNumber) {
        Add(Token::Kind::kText, c == 'a' ? "am" : "pm");
        at_ += View(4).ends_with('.') ? 4 : 3;
      } else if (IsLetter(c)) {
        Add(Token::Kind::kLetter, std::string(1, c));
        ++at_;
      } else if (c == '$') {
        Dollar();
      } else if (const std::string_view pair = View(2); pair == "<=" || pair == ">=" || pair == "!=") {
        Add(Token::Kind::kSign, std::string(pair));
        at_ += 2;
      } else if (View(3) == "{,}" || View(4) == "{, }") {
        at_ += View(3) == "{,}" ? 3 : 4;  // of a number: those are taken with it
      } else if (View(2) == "{}") {
        at_ += 2;
      } else if (View(2) == "**") {
        Add(Token::Kind::kSign, "^");
        at_ += 2;
      } else {
        if (c == '(' || c == '[' || c == '{') ++depth_;
        if (c == ')' || c == ']' || c == '}') --depth_;
        Add(Token::Kind::kSign, std::string(1, c));
        ++at_;
      }
    }
    Add(Token::Kind::kEnd, "");
    return std::move(tokens_);
  }

 private:
  std::string_view View(size_t n) const { return std::string_view(text_).substr(at_, n); }

  void Add(Token::Kind kind, std::string text) {
    tokens_.push_back({kind, std::move(text), std::exchange(space_, false), std::exchange(gap_, false)});
  }

  // A mark of formulas, or, where there is but this one, of money.
  void Dollar() {
    if (at_ + 1 < text_.size() && IsDigit(text_[at_ + 1]) && text_.find('$') == text_.rfind('$')) {
      Add(Token::Kind::kCommand, "dollar");
    }
    ++at_;
  }

  // Whether `text_` at `at` has exactly three digits.
  bool Group(size_t at) const {
    return at + 3 <= text_.size() && IsDigit(text_[at]) && IsDigit(text_[at + 1]) && IsDigit(text_[at + 2]) &&
           (at + 3 == text_.size() || !IsDigit(text_[at + 3]));
  }

  // Length of the separator of thousands at `at_`, or 0. A comma inside brackets separates elements.
  size_t Separator() const {
    for (const std::string_view separator :
         {"{,}", "{, }", " {,}", "{,} ", " {, }", ",\\! ", ",\\!", "\\,", ",", " "}) {
      if (separator == "," && depth_ != 0) continue;
      if (View(separator.size()) == separator) return separator.size();
    }
    return 0;
  }

  void Number() {
    std::string digits;
    bool grouped = false;
    while (at_ < text_.size() && IsDigit(text_[at_])) digits += text_[at_++];
    while (!digits.empty() && (digits.size() <= 3 || grouped)) {
      const size_t skip = Separator();
      if (skip == 0 || !Group(at_ + skip)) break;
      digits += text_.substr(at_ + skip, 3);
      at_ += skip + 3;
      grouped = true;
    }
    if (at_ + 1 < text_.size() && text_[at_] == '.' && (IsDigit(text_[at_ + 1]) || Repeated(at_ + 1).has_value())) {
      digits += text_[at_++];
      while (at_ < text_.size() && IsDigit(text_[at_])) digits += text_[at_++];
      if (const auto repeated = Repeated(at_)) {
        ((digits += '(') += repeated->first) += ')';
        at_ = repeated->second;
      }
    } else if (View(1) == ".") {
      ++at_;  // ends a sentence, or says nothing
    }
    const bool euler = e_ == LetterE::kEuler && View(1) == "e" && digits.find('.') == std::string::npos;
    if (const size_t length = euler ? 0 : Exponent(at_)) {
      digits += 'e';
      digits += text_.substr(at_ + 1, length - 1);
      at_ += length;
    }
    Add(Token::Kind::kNumber, std::move(digits));
    at_ += Ordinal();
  }

  // How long what makes "7th" of 7 is, as LaTeX may have it; 0: nothing does.
  size_t Ordinal() const {
    std::string_view rest = View(30);
    size_t braces = 0;
    const auto take = [&rest](std::string_view what) {
      if (!rest.starts_with(what)) return false;
      rest.remove_prefix(what.size());
      return true;
    };
    take("^");
    for (const std::string_view command : {"{\\text{", "{\\mathrm{", "\\text{", "\\textsuperscript{", "{"}) {
      if (!take(command)) continue;
      braces = std::count(command.begin(), command.end(), '{');
      break;
    }
    if (!take("th") && !take("st") && !take("nd") && !take("rd")) return 0;
    if (braces == 0 && !rest.empty() && IsLetter(rest[0])) return 0;
    while (braces > 0 && take("}")) --braces;
    return braces > 0 ? 0 : View(30).size() - rest.size();
  }

  // The digits that repeat behind a decimal point, and where they end: \overline{16}, \bar{6}, \dot{1}4\dot{2}.
  std::optional<std::pair<std::string, size_t>> Repeated(size_t at) const {
    std::string digits;
    const auto take = [&](std::string_view open, std::string_view close) {
      if (text_.compare(at, open.size(), open) != 0) return false;
      size_t end = at + open.size();
      while (end < text_.size() && IsDigit(text_[end])) ++end;
      if (end == at + open.size() || text_.compare(end, close.size(), close) != 0) return false;
      digits += text_.substr(at + open.size(), end - at - open.size());
      at = end + close.size();
      return true;
    };
    if (take("\\overline{", "}") || take("\\bar{", "}")) return std::pair(digits, at);
    if (!take("\\dot{", "}")) return std::nullopt;
    const auto one = std::pair(digits, at);
    while (at < text_.size() && IsDigit(text_[at])) digits += text_[at++];
    return take("\\dot{", "}") ? std::pair(digits, at) : one;
  }

  // How long the exponent is that begins at `at`, such as "e-19"; 0: there is none.
  size_t Exponent(size_t at) const {
    size_t end = at;
    if (end >= text_.size() || (text_[end] != 'e' && text_[end] != 'E')) return 0;
    ++end;
    if (end < text_.size() && (text_[end] == '-' || text_[end] == '+')) ++end;
    const size_t digits = end;
    while (end < text_.size() && IsDigit(text_[end])) ++end;
    const bool fraction = end + 1 < text_.size() && text_[end] == '.' && IsDigit(text_[end + 1]);
    return end == digits || fraction ? 0 : end - at;
  }

  // Whether the letter at `at_` is a sign for times: "1.6 x 10^-19".
  bool TimesPowerOfTen() const {
    if (tokens_.empty() || tokens_.back().kind != Token::Kind::kNumber) return false;
    size_t at = at_ + 1;
    while (at < text_.size() && IsSpace(text_[at])) ++at;
    return text_.compare(at, 3, "10^") == 0 || text_.compare(at, 4, "10**") == 0;
  }

  // Whether \times stands before what is marked as a vector.
  bool VectorFollows() const {
    std::string_view rest = std::string_view(text_).substr(at_);
    constexpr std::string_view kLeft = "\\left";
    while (!rest.empty() && (IsSpace(rest[0]) || rest[0] == '(' || rest[0] == '{' || rest.starts_with(kLeft))) {
      rest.remove_prefix(rest.starts_with(kLeft) ? kLeft.size() : 1);
    }
    constexpr std::string_view kVectors[] = {"\\vec",     "\\overrightarrow", "\\hat", "\\widehat",
                                             "\\mathbf{", "\\boldsymbol",     "\\bm{"};
    return std::any_of(std::begin(kVectors), std::end(kVectors),
                       [rest](std::string_view mark) { return rest.starts_with(mark); });
  }

  bool Command() {
    ++at_;
    if (at_ == text_.size()) return true;
    if (!IsLetter(text_[at_])) {
      const char c = text_[at_++];
      if (c == ',' || c == ';' || c == ':' || c == '!' || c == ' ' || c == '\n') {
        space_ = true;
      } else if (c == '{' || c == '}' || c == '|') {
        depth_ += c == '{' ? 1 : c == '}' ? -1 : 0;
        Add(Token::Kind::kCommand, std::string(1, c));
      } else if (c == '\\') {
        Add(Token::Kind::kCommand, "\\");
      } else if (c == '$') {
        Add(Token::Kind::kCommand, "dollar");
      } else if (c != '(' && c != ')' && c != '[' && c != ']') {
        Add(Token::Kind::kSign, std::string(1, c));
      }
      return true;
    }
    std::string name;
    while (at_ < text_.size() && IsLetter(text_[at_])) name += text_[at_++];
    // \quad that a letter follows without a space between.
    for (const std::string_view space : {"qquad", "quad"}) {
      if (name.size() > space.size() && name.compare(0, space.size(), space) == 0) {
        at_ -= name.size() - space.size();
        name = space;
      }
    }
    if (name == "times" && VectorFollows()) name = "cross";
    for (const auto& [other, same] : kSameCommands) {
      if (name == other) {
        name = same;
        break;
      }
    }
    if (IsOneOf(kSpaces, name)) {
      space_ = true;
      gap_ |= name.ends_with("quad");
    } else if (name == "%") {
      Add(Token::Kind::kSign, "%");
    } else if (name == "circ" || name == "degree") {
      // 90^\circ, 90^{\circ}; what composes functions stands for itself.
      const size_t before = tokens_.size();
      if (!tokens_.empty() && tokens_.back().text == "^") tokens_.pop_back();
      if (tokens_.size() > 1 && tokens_.back().text == "{" && tokens_[tokens_.size() - 2].text == "^" &&
          View(1) == "}") {
        tokens_.resize(tokens_.size() - 2);
        --depth_;
        ++at_;
      }
      const bool degrees = name == "degree" || tokens_.size() < before ||
                           (!tokens_.empty() && tokens_.back().kind == Token::Kind::kNumber);
      Add(Token::Kind::kCommand, degrees ? "degree" : "circ");
    } else if (name == "prime") {
      // y^\prime, y^{\prime\prime}
      if (!tokens_.empty() && tokens_.back().text == "{" && tokens_.size() > 1 &&
          tokens_[tokens_.size() - 2].text == "^") {
        tokens_.resize(tokens_.size() - 2);
        --depth_;
        Add(Token::Kind::kSign, "'");
        for (; View(6) == "\\prime" || View(1) == " "; at_ += View(1) == " " ? 1 : 6) {
          if (View(1) != " ") Add(Token::Kind::kSign, "'");
        }
        if (View(1) != "}") return false;
        ++at_;
      } else {
        if (!tokens_.empty() && tokens_.back().text == "^") tokens_.pop_back();
        Add(Token::Kind::kSign, "'");
      }
    } else if (IsOneOf(kNothing, name)) {
      if ((name == "left" || name == "right") && View(1) == ".") ++at_;
    } else if (IsOneOf(kTexts, name)) {
      return Text();
    } else if (!IsOneOf(kStyles, name) || (name == "underline" && tokens_.size() > 1 && tokens_.back().text == "{" &&
                                           tokens_[tokens_.size() - 2].text == "^")) {
      // n^{\underline{k}} is no power.

      Add(Token::Kind::kCommand, std::move(name));
    }
    return true;
  }

  // What follows \text.
  bool Text() {
    while (at_ < text_.size() && IsSpace(text_[at_])) ++at_;
    if (View(1) != "{") return true;
    size_t end = at_ + 1;
    for (int depth = 1; end < text_.size(); ++end) {
      if (text_[end] == '{') ++depth;
      if (text_[end] == '}' && --depth == 0) break;
    }
    if (end == text_.size()) return false;
    const std::string content = text_.substr(at_ + 1, end - at_ - 1);
    const bool has_digit = std::any_of(content.begin(), content.end(), IsDigit);
    const bool is_unit = !content.empty() && !IsDigit(content[0]) && ReadUnit(content).has_value() &&
                         !tokens_.empty() && tokens_.back().kind == Token::Kind::kNumber;
    if (has_digit && !is_unit) {
      // What is said in it, as if it were not set as text.
      text_.replace(at_, end + 1 - at_, " " + content + " ");
      return true;
    }
    at_ = end + 1;
    Add(Token::Kind::kText, std::string(absl::StripAsciiWhitespace(content)));
    return true;
  }

  std::string text_;
  const LetterE e_;
  size_t at_ = 0;
  int depth_ = 0;  // of brackets
  bool space_ = false, gap_ = false;
  std::vector<Token> tokens_;
};

}  // namespace

std::optional<std::vector<Token>> Tokenize(std::string_view latex, LetterE e) {
  if (latex.size() > kMostBytes) return std::nullopt;
  std::string plain = WithPlainSigns(latex);
  // Text that was escaped once too often. In matrices \\\\ begins a row.
  if (plain.find("\\begin") == std::string::npos) {
    for (size_t at = 0; (at = plain.find("\\\\", at)) != std::string::npos; ++at) {
      if (at + 2 < plain.size() && IsLetter(plain[at + 2])) plain.erase(at, 1);
    }
  }
  return Lexer(std::move(plain), e).Run();
}

}  // namespace quartet::math
