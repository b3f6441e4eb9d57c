#include "scorer/rewards/math/words.h"

#include <set>
#include <string>
#include <utility>

#include "absl/strings/ascii.h"

namespace quartet::math {
namespace {

const std::set<std::string_view>& Units() {
  static const auto* names =
      new std::set<std::string_view>{"cm", "mm", "km", "kg", "mg", "ml", "ft", "hr", "min", "sec", "mph", "pct", "deg"};
  return *names;
}

}  // namespace

bool IsFunction(std::string_view word) {
  static const auto* names =
      new std::set<std::string_view>{"sin",  "cos",  "tan",  "cot", "sec", "csc", "asin", "acos",  "atan",
                                     "sinh", "cosh", "tanh", "ln",  "lg",  "log", "exp",  "arccot"};
  return names->contains(word);
}

bool IsSymbol(std::string_view name) {
  static const auto* names = new std::set<std::string_view>{
      "alpha", "beta",   "gamma", "delta", "epsilon", "zeta",    "eta", "theta", "iota", "kappa",   "lambda", "mu",
      "nu",    "xi",     "rho",   "sigma", "tau",     "upsilon", "phi", "chi",   "psi",  "omega",   "Gamma",  "Delta",
      "Theta", "Lambda", "Xi",    "Pi",    "Sigma",   "Phi",     "Psi", "Omega", "ell",  "emptyset"};
  return names->contains(name);
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
    if (token.text == "in") return "in";
    if (token.text == "equiv") return "=";
  }
  return std::nullopt;
}

std::vector<Token> JoinWords(const std::vector<Token>& tokens) {
  std::vector<Token> joined;
  for (size_t i = 0; i < tokens.size();) {
    if (tokens[i].kind == Token::Kind::kText) {
      Token token = tokens[i++];
      const std::string lower = absl::AsciiStrToLower(token.text);
      if (lower == "and" || lower == "or" || lower == "," || lower == ", and" || lower == ";") {
        token = {Token::Kind::kSign, ",", true};
      }
      // One letter is a variable, however it is set.
      if (token.kind == Token::Kind::kText && token.text.size() == 1 && absl::ascii_isalpha(token.text[0])) {
        token.kind = Token::Kind::kLetter;
      }
      if (token.kind != Token::Kind::kText || !token.text.empty()) joined.push_back(std::move(token));
      continue;
    }
    if (tokens[i].kind != Token::Kind::kLetter) {
      joined.push_back(tokens[i++]);
      continue;
    }
    std::string word;
    size_t end = i;
    do {
      word += tokens[end++].text;
    } while (tokens[end].kind == Token::Kind::kLetter && !tokens[end].space_before);
    const bool after_number = !joined.empty() && joined.back().kind == Token::Kind::kNumber;
    Token token = {Token::Kind::kEnd, word, tokens[i].space_before};
    if (word == "and" || word == "or") {
      token = {Token::Kind::kSign, ",", true};
    } else if (IsFunction(word) || word == "sqrt" || word == "pi") {
      token.kind = Token::Kind::kCommand;
    } else if (word == "inf" || word == "infinity" || word == "oo") {
      token = {Token::Kind::kCommand, "infty", true};
    } else if (word == "arcsin" || word == "arccos" || word == "arctan") {
      token = {Token::Kind::kCommand, "a" + word.substr(3), true};
    } else if (word.size() >= 4 || (after_number && Units().contains(word))) {
      token.kind = Token::Kind::kText;
    }
    if (token.kind == Token::Kind::kEnd) {
      joined.insert(joined.end(), tokens.begin() + i, tokens.begin() + end);
    } else {
      joined.push_back(std::move(token));
    }
    i = end;
  }
  // Words that follow one another are one text.
  std::vector<Token> texts;
  for (Token& token : joined) {
    if (token.kind == Token::Kind::kText && !texts.empty() && texts.back().kind == Token::Kind::kText) {
      texts.back().text += " " + token.text;
    } else {
      texts.push_back(std::move(token));
    }
  }
  return texts;
}

}  // namespace quartet::math
