#include "core/rewards/math/vocabulary/units.h"

#include <map>
#include <set>
#include <unordered_map>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "core/rewards/math/vocabulary/value_words.h"

namespace quartet::math {
namespace {

constexpr size_t kMostBytesOfUnit = 80;
constexpr char kUnknown = '?';  // before the name of a unit that is neither known nor a plural

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
             {"yuan"},
             {"yen"},
             {"baht"},
             {"won"},
             {"peso"},
             {"ruble", "rouble"},
             {"rupiah"},
             {"rand"},
             {"franc"},
             {"penny", "pence", "pennies"},
             {"week", "wk", "wks"},
             {"month", "mos"},
             {"decade"},
             {"century", "centuries"},
             {"acre"},
             {"hectare"},
             {"ton", "tonne"},
             {"cup"},
             {"pint"},
             {"quart"},
             {"tablespoon", "tbsp"},
             {"teaspoon", "tsp"},
             {"radian", "rad"},
             {"mph"},
             {"kph", "kmph", "kmh"},
             {"rpm"},
             {"calorie", "cal"},
             {"kcal"},
             {"atm"},
             {"mmHg", "mmhg"},
             {"dB", "db", "decibel"},
             {"pt", "pts"},
             {"piece", "pcs"},
             {"page", "pp"},
             {"kilo"},
             {"BTU", "btu"},
         }) {
      for (const char* name : names) (*all)[name] = *names.begin();
    }
    return all;
  }();
  return *spellings;
}

// A sign as the International System of Units has it: kPa, \mu m, MeV.
bool IsSign(std::string_view word) {
  for (const std::string_view micro : {"µ", "μ", "micro"}) {
    if (word.starts_with(micro)) return IsSign(word.substr(micro.size()));
  }
  static const auto* signs = new std::set<std::string_view>{
      "m",  "s",  "g",  "h",  "L",  "l", "Hz",  "J",   "N",  "W",   "V",   "A",  "K",    "Pa", "mol", "eV",
      "C",  "F",  "T",  "Wb", "H",  "B", "b",   "cal", "Wh", "bar", "lm",  "lx", "cd",   "sr", "Bq",  "Sv",
      "Gy", "au", "AU", "ly", "pc", "u", "amu", "ha",  "Da", "ohm", "min", "eq", "torr", "D",  "R",   "G"};
  if (signs->contains(word)) return true;
  constexpr std::string_view kPrefixes = "fpnumcdhkMGTP";
  return word.size() >= 2 && kPrefixes.find(word[0]) != std::string_view::npos && signs->contains(word.substr(1));
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
    if (!words_.MayEnd() && !unit_.name.empty()) unit_.name.insert(0, 1, kUnknown);
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
    if (word != "%" && !IsSign(word) && !IsRaise(lower) &&
        !words_.Take(text_.substr(at_, 3) == "(s)" ? word + "s" : word)) {
      return false;
    }
    if (lower == "per") {
      sign_ = -1;
    } else if (lower == "square" || lower == "sq") {
      next_power_ = 2;
    } else if (lower == "cubic" || lower == "cu") {
      next_power_ = 3;
    } else if (IsRaise(lower)) {
      return Raise(lower == "squared" ? 2 : 3);
    } else if (const auto factor = powers_.empty() ? FactorOf(lower) : std::nullopt) {
      unit_.factor *= *factor;
    } else if (lower != "of" && lower != "a" && lower != "an" && lower != "the") {
      last_ = Spelled(word);
      powers_[last_] += last_power_ = sign_ * next_power_;
      sign_ = next_power_ = 1;
    }
    return true;
  }

  static bool IsRaise(const std::string& lower) { return lower == "squared" || lower == "cubed"; }

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
  WordsBehind words_;
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

bool SameUnit(std::string_view a, std::string_view b) {
  const auto known = [](std::string_view name) { return name.substr(name.starts_with(kUnknown)); };
  return known(a) == known(b);
}

bool SaysNothingMore(std::string_view unit) { return !unit.starts_with(kUnknown); }

bool IsUnitWord(std::string_view word) {
  if (word.size() < 2) return false;
  const std::string lower = absl::AsciiStrToLower(absl::string_view(word.data(), word.size()));
  return Spellings().contains(lower) || Spellings().contains(Singular(lower)) || FactorOf(word).has_value();
}

bool IsUnitLetter(char letter) { return absl::string_view("mgshlACFJKLNTVW").find(letter) != absl::string_view::npos; }

}  // namespace quartet::math
