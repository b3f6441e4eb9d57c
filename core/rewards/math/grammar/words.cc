#include "core/rewards/math/grammar/words.h"

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <utility>

#include "absl/strings/ascii.h"
#include "core/rewards/math/vocabulary/units.h"

namespace quartet::math {
namespace {

bool IsLetterOrText(const Token& token) {
  return token.kind == Token::Kind::kLetter || token.kind == Token::Kind::kText;
}

// Parts of speech that separate, functions, constants; kEnd: none of them.
Token Meaning(const std::string& word) {
  if (word == "and" || word == "or") return {Token::Kind::kCommand, word, true};
  if (IsFunction(word) || word == "sqrt" || word == "pi") return {Token::Kind::kCommand, word};
  if (word == "inf" || word == "infinity" || word == "oo") return {Token::Kind::kCommand, "infty"};
  if (word == "arcsin" || word == "arccos" || word == "arctan") return {Token::Kind::kCommand, "a" + word.substr(3)};
  if (word == "mod") return {Token::Kind::kCommand, "pmod"};
  return {Token::Kind::kEnd, ""};
}

// Between two elements of an answer, or its sides.
bool IsBoundary(const Token& token) {
  if (token.kind == Token::Kind::kEnd || RelationOf(token).has_value()) return true;
  if (token.kind == Token::Kind::kSign) return std::string_view(",;:|&").find(token.text) != std::string_view::npos;
  return token.kind == Token::Kind::kCommand &&
         (token.text == "and" || token.text == "or" || token.text == "land" || token.text == "lor" ||
          token.text == "{" || token.text == "}" || token.text == "|" || token.text == "approx");
}

// Which tokens bound what is beside them: the above, and brackets that are beside one themselves.
std::vector<bool> Boundaries(const std::vector<Token>& tokens) {
  std::vector<bool> bounds(tokens.size());
  const auto sign = [&](size_t i, std::string_view any) {
    return tokens[i].kind == Token::Kind::kSign && any.find(tokens[i].text) != std::string_view::npos;
  };
  for (size_t i = 0; i < tokens.size(); ++i) {
    bounds[i] = IsBoundary(tokens[i]) || (sign(i, "([") && (i == 0 || bounds[i - 1]));
  }
  for (size_t i = tokens.size(); i-- > 0;) {
    if (sign(i, ")]")) bounds[i] = bounds[i + 1];
    if (sign(i, ".")) bounds[i] = bounds[i + 1];
  }
  return bounds;
}

bool IsVowel(char c) { return absl::string_view("aeiouAEIOU").find(c) != absl::string_view::npos; }

// Letters without space between, as one word.
struct Run {
  std::string letters;
  size_t end;  // of its tokens
};
Run RunAt(const std::vector<Token>& tokens, size_t begin) {
  Run run = {tokens[begin].text, begin + 1};
  while (tokens[run.end].kind == Token::Kind::kLetter && !tokens[run.end].space_before)
    run.letters += tokens[run.end++].text;
  return run;
}

// Words instead of letters where they have a meaning of their own; texts of one letter are the letter but behind a
// number, where it may be a unit.
std::vector<Token> WithMeanings(const std::vector<Token>& tokens) {
  std::vector<Token> meant;
  for (size_t i = 0; i < tokens.size();) {
    const bool space = tokens[i].space_before, gap = tokens[i].gap_before;
    if (!IsLetterOrText(tokens[i])) {
      meant.push_back(tokens[i++]);
      continue;
    }
    const bool is_text = tokens[i].kind == Token::Kind::kText;
    std::string word = tokens[i].text;
    size_t end = i + 1;
    if (is_text) {
      while (!word.empty() && word.front() == ' ') word.erase(0, 1);
    } else {
      const Run run = RunAt(tokens, i);
      word = run.letters;
      end = run.end;
    }
    // "5 squared", of a number.
    if (!meant.empty() && meant.back().kind == Token::Kind::kNumber) {
      const std::string lower = absl::AsciiStrToLower(word);
      if (lower == "squared" || lower == "cubed") {
        meant.push_back({Token::Kind::kSign, "^"});
        meant.push_back({Token::Kind::kNumber, lower == "squared" ? "2" : "3"});
        i = end;
        continue;
      }
      if (lower == "factorial") {
        meant.push_back({Token::Kind::kSign, "!"});
        i = end;
        continue;
      }
    }
    const bool after_name = !meant.empty() && meant.back().kind == Token::Kind::kCommand && IsMark(meant.back().text);
    const bool behind_value =
        !meant.empty() && (meant.back().kind == Token::Kind::kNumber || meant.back().text == "degree" ||
                           meant.back().kind == Token::Kind::kText || meant.back().text == "/" ||
                           ((meant.back().text == "times" || meant.back().text == "-") && meant.size() > 1 &&
                            meant[meant.size() - 2].kind == Token::Kind::kText));
    // Seconds are no secant.
    const bool is_unit = behind_value && word == "sec";
    Token token = is_unit ? Token{Token::Kind::kText, word} : Meaning(is_text ? absl::AsciiStrToLower(word) : word);
    if (is_text && token.kind == Token::Kind::kEnd) {
      const std::string lower = absl::AsciiStrToLower(word);
      if (lower == "," || lower == ";") token = {Token::Kind::kSign, ","};
      if (lower == ", and" || lower == ", or") token = {Token::Kind::kCommand, lower.substr(2)};
      if (word.size() == 1 && absl::ascii_isalpha(static_cast<unsigned char>(word[0])) &&
          !(behind_value && IsUnitLetter(word[0]))) {
        token = {Token::Kind::kLetter, word};
      }
      if (token.kind == Token::Kind::kEnd && !word.empty()) token = {Token::Kind::kText, word};
    }
    // Minutes are no minimum.
    if (token.kind != Token::Kind::kCommand && IsOperator(word) && !behind_value &&
        tokens[end].kind == Token::Kind::kSign && tokens[end].text == "(") {
      token = {Token::Kind::kCommand, word};
    }
    if (token.kind == Token::Kind::kEnd && !is_text && word.size() >= 3 &&
        IsFunction(word.substr(0, word.size() - 1))) {
      // "sinx"
      meant.push_back({Token::Kind::kCommand, word.substr(0, word.size() - 1), space, gap});
      token = {Token::Kind::kLetter, word.substr(word.size() - 1)};
    }
    if (token.kind == Token::Kind::kEnd && !is_text && !after_name &&
        (word.size() >= 4 || word == "men" || word == "sum" || word == "gcd" || word == "lcm" || word == "max" ||
         word == "ans")) {
      token = {Token::Kind::kText, word};
    }
    if (token.kind == Token::Kind::kEnd) {
      if (!is_text) meant.insert(meant.end(), tokens.begin() + i, tokens.begin() + end);
    } else {
      token.space_before = space || token.space_before;
      token.gap_before = gap;
      meant.push_back(std::move(token));
    }
    i = end;
  }
  return meant;
}

// Whether plain letters behind a number, such as "cm" or "apples", are no variables. Right behind it some signs for
// units are: 3mg, 2in.
bool IsWordBehindNumber(const std::string& letters, bool space) {
  static const auto* variables = new std::set<std::string_view>{"mg", "gm", "in", "am", "pm", "ml", "mi", "rs"};
  if (letters.size() < 2 || (!space && variables->contains(letters))) return false;
  if (IsUnitWord(letters)) return true;
  return letters.size() >= 3 && std::any_of(letters.begin(), letters.end(), IsVowel) &&
         !std::is_sorted(letters.begin(), letters.end());
}

}  // namespace

bool IsFunction(std::string_view word) {
  static const auto* names = new std::set<std::string_view>{
      "sin",    "cos",  "tan",  "cot",  "sec", "csc", "asin", "acos", "atan",  "arcsec", "arccsc",
      "arccot", "sinh", "cosh", "tanh", "ln",  "lg",  "log",  "exp",  "asinh", "acosh",  "atanh"};
  return names->contains(word);
}

bool IsOperator(std::string_view word) {
  static const auto* names =
      new std::set<std::string_view>{"max", "min", "gcd", "lcm", "det", "dim", "deg",  "arg", "ker",
                                     "Re",  "Im",  "Pr",  "Var", "Cov", "tr",  "rank", "sgn", "adj"};
  return names->contains(word);
}

std::string_view InverseOf(std::string_view function) {
  static const auto* inverses = new std::map<std::string_view, std::string_view>{
      {"sin", "asin"},   {"cos", "acos"},   {"tan", "atan"},   {"cot", "arccot"}, {"sec", "arcsec"},
      {"csc", "arccsc"}, {"sinh", "asinh"}, {"cosh", "acosh"}, {"tanh", "atanh"}};
  const auto inverse = inverses->find(function);
  return inverse == inverses->end() ? "" : inverse->second;
}

bool IsSymbol(std::string_view name) {
  static const auto* names = new std::set<std::string_view>{
      "alpha", "beta",   "gamma", "delta", "epsilon", "zeta",    "eta", "theta", "iota", "kappa",    "lambda", "mu",
      "nu",    "xi",     "rho",   "sigma", "tau",     "upsilon", "phi", "chi",   "psi",  "omega",    "Gamma",  "Delta",
      "Theta", "Lambda", "Xi",    "Pi",    "Sigma",   "Phi",     "Psi", "Omega", "ell",  "emptyset", "hbar"};
  return names->contains(name);
}

bool IsMark(std::string_view command) {
  static const auto* marks = new std::set<std::string_view>{"vec", "hat",  "bar",   "overline", "tilde",
                                                            "dot", "ddot", "angle", "triangle", "widetilde"};
  return marks->contains(command);
}

std::optional<std::string> RelationOf(const Token& token) {
  if (token.kind == Token::Kind::kSign) {
    for (const char* sign : {"=", "<", ">", "<=", ">=", "!="}) {
      if (token.text == sign) return token.text;
    }
  }
  if (token.kind == Token::Kind::kCommand) {
    if (token.text == "leq") return "<=";
    if (token.text == "geq") return ">=";
    if (token.text == "less") return "<";
    if (token.text == "greater") return ">";
    if (token.text == "neq") return "!=";
    if (token.text == "in" || token.text == "notin") return token.text;
    if (token.text == "equiv") return "=";
  }
  return std::nullopt;
}

bool MayBeReordered(std::string_view letters) {
  return std::all_of(letters.begin(), letters.end(),
                     [](char c) { return absl::ascii_islower(static_cast<unsigned char>(c)) && !IsVowel(c); });
}

std::vector<Token> JoinWords(const std::vector<Token>& tokens) {
  const std::vector<Token> meant = WithMeanings(tokens);
  const std::vector<bool> bounds = Boundaries(meant);
  std::vector<Token> joined;
  for (size_t i = 0; i < meant.size();) {
    if (!IsLetterOrText(meant[i])) {
      joined.push_back(meant[i++]);
      continue;
    }
    size_t end = i;
    int runs = 0;
    bool words = false;
    std::string all;
    while (IsLetterOrText(meant[end])) {
      const bool is_text = meant[end].kind == Token::Kind::kText;
      const Run run = is_text ? Run{meant[end].text, end + 1} : RunAt(meant, end);
      if (!all.empty()) all += ' ';
      all += run.letters;
      words |= is_text || (run.letters.size() >= 2 && std::any_of(run.letters.begin(), run.letters.end(), IsVowel));
      ++runs;
      end = run.end;
    }
    const bool space = meant[i].space_before, gap = meant[i].gap_before;
    const bool alone = (i == 0 || bounds[i - 1]) && bounds[end];
    const bool single_run = runs == 1 && meant[i].kind == Token::Kind::kLetter;
    const Token* const last = joined.empty() ? nullptr : &joined.back();
    if (alone && single_run && all.size() >= 2) {
      joined.push_back({Token::Kind::kLetters, all, space, gap});
    } else if (alone && words && !single_run) {
      joined.push_back({Token::Kind::kText, all, space, gap});
    } else if (last != nullptr && meant[i].kind == Token::Kind::kLetter &&
               (last->kind == Token::Kind::kNumber || last->text == "degree" || last->text == ")" ||
                last->text == "}")) {
      // Behind a value: its unit, or variables.
      const Run run = RunAt(meant, i);
      const bool quotient = space && run.letters.size() == 1 && IsUnitLetter(run.letters[0]) &&
                            (last->kind == Token::Kind::kNumber || last->text == "}") && meant[run.end].text == "/" &&
                            meant[run.end + 1].kind == Token::Kind::kLetter && IsUnitLetter(meant[run.end + 1].text[0]);
      const bool scale = last->text == "degree" && (run.letters == "C" || run.letters == "F");
      if (quotient || scale ||
          (space || last->kind == Token::Kind::kNumber ? IsWordBehindNumber(run.letters, space) : false)) {
        joined.push_back({Token::Kind::kText, runs == 1 || quotient ? run.letters : all, space, gap});
        i = runs == 1 || quotient ? run.end : end;
        continue;
      }
      joined.insert(joined.end(), meant.begin() + i, meant.begin() + run.end);
      i = run.end;
      continue;
    } else if (last != nullptr && last->text == "/" && meant[i].kind == Token::Kind::kLetter && joined.size() >= 2 &&
               joined[joined.size() - 2].kind == Token::Kind::kText) {
      // Units below others.
      const Run run = RunAt(meant, i);
      joined.push_back({Token::Kind::kText, run.letters, space, gap});
      i = run.end;
      continue;
    } else if (meant[i].kind == Token::Kind::kText) {
      // With the words that follow: "miles per hour".
      std::string text = meant[i].text;
      for (end = i + 1; IsLetterOrText(meant[end]);) {
        const bool is_text = meant[end].kind == Token::Kind::kText;
        const Run run = is_text ? Run{meant[end].text, end + 1} : RunAt(meant, end);
        if (run.letters.size() < 2) break;
        text += ' ' + run.letters;
        end = run.end;
      }
      joined.push_back({Token::Kind::kText, text, space, gap});
    } else {
      joined.insert(joined.end(), meant.begin() + i, meant.begin() + end);
    }
    i = end;
  }
  return joined;
}

}  // namespace quartet::math
