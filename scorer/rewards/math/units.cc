#include "scorer/rewards/math/units.h"

#include <map>
#include <set>
#include <unordered_map>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace quartet::math {
namespace {

constexpr size_t kMostBytesOfUnit = 80;

// Names of units in one spelling: of each line the first.
const std::unordered_map<std::string, std::string>& Spellings() {
  static const auto* spellings = [] {
    auto* all = new std::unordered_map<std::string, std::string>;
    for (const auto& names : std::initializer_list<std::initializer_list<const char*>>{
             {"cm", "centimeter", "centimetre"},
             {"mm", "millimeter", "millimetre"},
             {"km", "kilometer", "kilometre", "kms"},
             {"m", "meter", "metre"},
             {"in", "inch", "inches"},
             {"ft", "foot", "feet"},
             {"yd", "yard", "yds"},
             {"mi", "mile"},
             {"g", "gram", "gm"},
             {"kg", "kilogram", "kgs"},
             {"mg", "milligram"},
             {"pound", "lb", "lbs"},
             {"oz", "ounce"},
             {"s", "second", "sec", "secs"},
             {"min", "minute", "mins"},
             {"h", "hour", "hr", "hrs"},
             {"day", "days"},
             {"year", "yr", "yrs"},
             {"L", "l", "liter", "litre"},
             {"mL", "ml", "milliliter", "millilitre"},
             {"Hz", "hz", "hertz"},
             {"J", "joule"},
             {"kJ", "kilojoule"},
             {"N", "newton"},
             {"W", "watt"},
             {"kW", "kilowatt"},
             {"V", "volt"},
             {"A", "ampere", "amp"},
             {"K", "kelvin"},
             {"Pa", "pascal"},
             {"mol", "mole"},
             {"ohm", "ohms"},
             {"C", "celsius"},
             {"F", "fahrenheit"},
             {"degree", "deg", "degs"},
             {"%", "percent", "pct", "percentage"},
             {"am"},
             {"pm"},
             {"dollar", "usd", "bucks", "buck"},
             {"cent", "cents"},
             {"euro", "eur"},
             {"rupee", "rs", "inr"},
             {"gal", "gallon"},
             {"unit"},
         }) {
      for (const char* name : names) (*all)[name] = *names.begin();
    }
    return all;
  }();
  return *spellings;
}

unsigned long NumberOf(const std::string& word) {
  static const auto* numbers = new std::unordered_map<std::string, unsigned long>{{"hundred", 100},
                                                                                  {"thousand", 1000},
                                                                                  {"million", 1'000'000},
                                                                                  {"billion", 1'000'000'000},
                                                                                  {"trillion", 1'000'000'000'000},
                                                                                  {"dozen", 12}};
  for (const std::string& name : {word, word.substr(0, word.size() - word.ends_with('s'))}) {
    if (const auto number = numbers->find(name); number != numbers->end()) return number->second;
  }
  return 0;
}

// Whether it says something about the number, not of what it is one.
bool IsNoUnit(const std::string& lower) {
  static const auto* words = new std::set<std::string>{
      "is",     "are",    "was",    "were",    "isn't",   "aren't",  "not",   "no",    "never",
      "or",     "and",    "but",    "if",      "maybe",   "than",    "less",  "more",  "fewer",
      "minus",  "plus",   "times",  "over",    "when",    "where",   "wrong", "false", "incorrect",
      "except", "unless", "either", "neither", "perhaps", "divided", "mod",   "to"};
  return words->contains(lower) || lower.ends_with("n't");
}

std::string Singular(const std::string& word) {
  if (word.size() > 4 && word.ends_with("ies")) return word.substr(0, word.size() - 3) + "y";
  for (const char* ending : {"xes", "ches", "shes", "sses"}) {
    if (word.ends_with(ending)) return word.substr(0, word.size() - 2);
  }
  if (word.size() > 3 && word.ends_with('s') && !word.ends_with("ss")) return word.substr(0, word.size() - 1);
  return word;
}

std::string Spelled(const std::string& word) {
  const auto& spellings = Spellings();
  const std::string lower = absl::AsciiStrToLower(word);
  for (const std::string& name : {word, lower, Singular(lower)}) {
    if (const auto known = spellings.find(name); known != spellings.end()) return known->second;
  }
  return word.size() <= 2 ? word : Singular(lower);
}

// Words and signs of `text`: letters, "/" , "^" with its whole number.
class UnitReader {
 public:
  explicit UnitReader(std::string_view text) : text_(text) {}

  std::optional<Unit> Run() {
    while (at_ < text_.size()) {
      const char c = text_[at_];
      if (text_.substr(at_, 3) == "(s)") {
        at_ += 3;
      } else if (IsLetter(c) || (c & 0x80) != 0 || c == '%') {
        if (!Word()) return std::nullopt;
      } else if (c == '/') {
        sign_ = -1;
        ++at_;
      } else if (c == '^') {
        ++at_;
        if (!Power()) return std::nullopt;
      } else if (c == '\\') {
        if (!Command()) return std::nullopt;
      } else if (absl::string_view(" ~.-*'{}()$\t\n").find(c) != absl::string_view::npos) {
        ++at_;
      } else {
        return std::nullopt;
      }
    }
    if (next_power_ != 1 || sign_ != 1) return std::nullopt;  // of nothing
    unit_.name = Name();
    return unit_;
  }

 private:
  static bool IsLetter(char c) { return absl::ascii_isalpha(static_cast<unsigned char>(c)); }

  bool Word() {
    std::string word;
    if (text_[at_] == '%') word = text_[at_++];
    // The points of "a.m." and the apostrophe of "isn't" are inside of words.
    while (word != "%" && at_ < text_.size() &&
           (IsLetter(text_[at_]) || (text_[at_] & 0x80) != 0 ||
            ((text_[at_] == '\'' || text_[at_] == '.') && at_ + 1 < text_.size() && IsLetter(text_[at_ + 1])))) {
      if (text_[at_] != '.') word += text_[at_];
      ++at_;
    }
    const std::string lower = absl::AsciiStrToLower(word);
    if (IsNoUnit(lower)) return false;
    if (lower == "per") {
      sign_ = -1;
    } else if (lower == "square" || lower == "sq") {
      next_power_ = 2;
    } else if (lower == "cubic" || lower == "cu") {
      next_power_ = 3;
    } else if (lower == "squared" || lower == "cubed") {
      return Raise(lower == "squared" ? 2 : 3);
    } else if (const unsigned long number = powers_.empty() ? NumberOf(lower) : 0) {
      unit_.factor *= number;
    } else if (lower != "of" && lower != "a" && lower != "an" && lower != "the") {
      last_ = Spelled(word);
      powers_[last_] += last_power_ = sign_ * next_power_;
      sign_ = next_power_ = 1;
    }
    return true;
  }

  bool Raise(int power) {
    if (last_.empty() || power == 0) return false;
    powers_[last_] += last_power_ * (power - 1);
    last_power_ = 0;
    return true;
  }

  bool Power() {
    while (at_ < text_.size() && (text_[at_] == '{' || text_[at_] == ' ')) ++at_;
    size_t end = at_;
    while (end < text_.size() && (text_[end] == '-' || absl::ascii_isdigit(static_cast<unsigned char>(text_[end])))) {
      ++end;
    }
    int power = 0;
    constexpr int kLargest = 20;
    if (!absl::SimpleAtoi(absl::string_view(text_.data() + at_, end - at_), &power) || power > kLargest ||
        power < -kLargest) {
      return false;
    }
    at_ = end;
    return Raise(power);
  }

  // Signs for times, spaces and styles.
  bool Command() {
    size_t end = at_ + 1;
    while (end < text_.size() && IsLetter(text_[end])) ++end;
    static const auto* known = new std::set<std::string_view>{"\\cdot", "\\times", "\\text", "\\mathrm", "\\rm"};
    if (end == at_ + 1) {
      if (end == text_.size() || absl::string_view(" ,;!:").find(text_[end]) == absl::string_view::npos) return false;
      ++end;
    } else if (!known->contains(text_.substr(at_, end - at_))) {
      return false;
    }
    at_ = end;
    return true;
  }

  std::string Name() const {
    std::string name;
    for (const auto& [word, power] : powers_) {
      if (power == 0 || word == "unit") continue;
      if (word == kPercent) return std::string(kPercent);
      if (!name.empty()) name += ' ';
      name += word;
      if (power != 1) absl::StrAppend(&name, "^", power);
    }
    return name;
  }

  const std::string_view text_;
  size_t at_ = 0;
  Unit unit_;
  std::map<std::string, int> powers_;
  std::string last_;
  int last_power_ = 0;
  int sign_ = 1, next_power_ = 1;  // of the next word
};

}  // namespace

std::optional<Unit> ReadUnit(std::string_view words) {
  if (words.size() > kMostBytesOfUnit) return std::nullopt;
  return UnitReader(words).Run();
}

bool IsNumberWord(std::string_view word) {
  return NumberOf(absl::AsciiStrToLower(absl::string_view(word.data(), word.size()))) != 0;
}

bool IsUnitWord(std::string_view word) {
  if (word.size() < 2) return false;
  const std::string lower = absl::AsciiStrToLower(absl::string_view(word.data(), word.size()));
  return Spellings().contains(lower) || Spellings().contains(Singular(lower)) || IsNumberWord(lower);
}

bool IsUnitLetter(char letter) { return absl::string_view("mgshlACFJKLNTVW").find(letter) != absl::string_view::npos; }

}  // namespace quartet::math
