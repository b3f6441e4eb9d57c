#include "scorer/rewards/math/equality.h"

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <vector>

#include "absl/strings/ascii.h"
#include "core/base/splitmix64.h"
#include "scorer/rewards/math/evaluate.h"
#include "scorer/rewards/math/lexer.h"
#include "scorer/rewards/math/parser.h"

namespace quartet::math {
namespace {

using Kind = Expression::Kind;
using List = std::vector<ExpressionPtr>;

constexpr int kPoints = 6;
constexpr int kEnoughPoints = 3;
constexpr int kCloseBits = 256;
constexpr size_t kMostElements = 200;  // of sets: each is compared with each

// --- scalars ---

bool HasDecimal(const Expression& of) {
  return of.decimal ||
         std::any_of(of.arguments.begin(), of.arguments.end(), [](const auto& a) { return HasDecimal(*a); });
}

// Values in (0.5, 3), where most functions are defined; the same for the same name.
std::map<std::string, mpq_class> Point(const std::set<std::string>& symbols, int number) {
  std::map<std::string, mpq_class> point;
  for (const std::string& symbol : symbols) {
    uint64_t state = 0x9E3779B97F4A7C15u * (number + 1);
    for (const char c : symbol) state = SplitMixFinalise(state ^ static_cast<unsigned char>(c));
    mpq_class value(static_cast<unsigned long>(500'000 + state % 2'500'000), 1'000'000ul);
    value.canonicalize();
    point[symbol] = value;
  }
  return point;
}

// Whether a rounded number and another are as close as the digits say: 6 behind the point, or 3 that count.
bool Close(const Expression& a, const Expression& b, const std::map<std::string, mpq_class>& point) {
  const std::optional<Ball> ball_a = Enclose(a, point, kCloseBits), ball_b = Enclose(b, point, kCloseBits);
  if (!ball_a.has_value() || !ball_b.has_value() || ball_a->is_infinite() || ball_b->is_infinite()) return false;
  Ball difference, distance, allowed;
  acb_sub(difference.get(), ball_a->get(), ball_b->get(), kCloseBits);
  acb_abs(distance.real(), difference.get(), kCloseBits);
  acb_abs(allowed.real(), ball_b->get(), kCloseBits);
  arb_mul_ui(allowed.real(), allowed.real(), 1000, kCloseBits);
  if (!arb_is_zero(allowed.real()) && arf_cmp_si(arb_midref(allowed.real()), 1) > 0) arb_one(allowed.real());
  arb_div_ui(allowed.real(), allowed.real(), 2'000'000, kCloseBits);
  return arb_le(distance.real(), allowed.real());
}

// What a comparison could not decide: whether two numbers are the same, or what they are.
struct Doubt {
  bool any = false;
};

bool SameScalar(const Expression& a, const Expression& b, Doubt* doubt) {
  std::set<std::string> symbols;
  CollectSymbols(a, &symbols);
  CollectSymbols(b, &symbols);
  if (symbols.empty()) {
    const Truth same = SameNumber(a, b, {});
    if (same == Truth::kYes || ((HasDecimal(a) || HasDecimal(b)) && Close(a, b, {}))) return true;
    doubt->any |= same == Truth::kUnknown;
    return false;
  }
  int agreed = 0;
  for (int i = 0; i < kPoints && agreed < kEnoughPoints; ++i) {
    const Truth same = SameNumber(a, b, Point(symbols, i));
    if (same == Truth::kNo) return false;
    agreed += same == Truth::kYes;  // else not defined here: another point
  }
  doubt->any |= agreed < kEnoughPoints;
  return agreed == kEnoughPoints;
}

// --- structures ---

bool SameExpression(const ExpressionPtr& a, const ExpressionPtr& b, Doubt* doubt);

bool SameInOrder(const List& a, const List& b, Doubt* doubt) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [doubt](const auto& one, const auto& other) { return SameExpression(one, other, doubt); });
}

// Each of either has its like in the other.
bool SameInAnyOrder(const List& a, const List& b, Doubt* doubt) {
  if (a.size() > kMostElements || b.size() > kMostElements) return false;
  const auto covers = [doubt](const List& all, const List& others) {
    return std::all_of(all.begin(), all.end(), [&](const auto& one) {
      return std::any_of(others.begin(), others.end(),
                         [&](const auto& other) { return SameExpression(one, other, doubt); });
    });
  };
  return covers(a, b) && covers(b, a);
}

bool IsScalar(const Expression& of) {
  switch (of.kind) {
    case Kind::kSequence:
    case Kind::kSet:
    case Kind::kUnion:
    case Kind::kWithout:
    case Kind::kRelation:
      return false;
    default:
      return std::all_of(of.arguments.begin(), of.arguments.end(), [](const auto& a) { return IsScalar(*a); });
  }
}

bool IsName(const Expression& of) {
  // x, x_1, f(x), |AB|, "area": what an equation gives a value to, without a number of its own.
  if (of.kind == Kind::kNumber || of.kind == Kind::kConstant) return false;
  if (of.kind == Kind::kSequence) {
    return std::all_of(of.arguments.begin(), of.arguments.end(), [](const auto& a) { return IsName(*a); });
  }
  if (of.kind == Kind::kMultiply || of.kind == Kind::kDivide || of.kind == Kind::kFunction) {
    return std::any_of(of.arguments.begin(), of.arguments.end(), [](const auto& a) { return IsName(*a); });
  }
  return of.kind == Kind::kSymbol || of.kind == Kind::kText;
}

bool IsConstant(const Expression& of) {
  std::set<std::string> symbols;
  CollectSymbols(of, &symbols);
  return symbols.empty() && IsScalar(of);
}

bool IsInfinite(const Expression& of) {
  const std::optional<Ball> value = Enclose(of, {}, kCloseBits);
  return value.has_value() && value->is_infinite();
}

// The interval of an inequality about a name; nothing of what is none.
std::optional<ExpressionPtr> IntervalOf(const Expression& of, Doubt* doubt) {
  static const ExpressionPtr infinity = Make(Kind::kConstant, "oo", {});
  static const ExpressionPtr minus_infinity = Make(Kind::kMultiply, "", {MakeNumber(-1), infinity});
  const auto strict = [](const Expression& relation) { return relation.name == "<"; };
  const auto is_inequality = [](const Expression& e) {
    return e.kind == Kind::kRelation && (e.name == "<" || e.name == "<=");
  };
  if (of.kind == Kind::kRelation && of.name == "in") return of.arguments[1];
  if (is_inequality(of)) {
    const bool open = strict(of);
    if (IsName(*of.arguments[0]) && !IsName(*of.arguments[1])) {
      return Make(Kind::kSequence, open ? "()" : "(]", {minus_infinity, of.arguments[1]});
    }
    if (IsName(*of.arguments[1]) && !IsName(*of.arguments[0])) {
      return Make(Kind::kSequence, open ? "()" : "[)", {of.arguments[0], infinity});
    }
  }
  if (of.kind == Kind::kSequence && of.name == "chain" && of.arguments.size() == 2) {
    const Expression *low = of.arguments[0].get(), *high = of.arguments[1].get();
    if (!is_inequality(*low) || !is_inequality(*high)) return std::nullopt;
    // a > x > b comes as x < a, b < x.
    if (!SameExpression(low->arguments[1], high->arguments[0], doubt)) std::swap(low, high);
    if (!SameExpression(low->arguments[1], high->arguments[0], doubt) || !IsName(*low->arguments[1]))
      return std::nullopt;
    return Make(Kind::kSequence, std::string(strict(*low) ? "(" : "[") + (strict(*high) ? ")" : "]"),
                {low->arguments[0], high->arguments[1]});
  }
  return std::nullopt;
}

// The left side less the right one: where they are the same but for a factor, equations have the same solutions; so
// have inequalities, where it is positive.
bool SameRelation(const Expression& a, const Expression& b, Doubt* doubt) {
  if (SameExpression(a.arguments[0], b.arguments[0], doubt) && SameExpression(a.arguments[1], b.arguments[1], doubt))
    return true;
  const bool equation = a.name == "=" || a.name == "!=";
  if (!equation && a.name != "<" && a.name != "<=") return false;
  if (equation && SameExpression(a.arguments[0], b.arguments[1], doubt) &&
      SameExpression(a.arguments[1], b.arguments[0], doubt)) {
    return true;
  }
  for (const Expression* e : {&a, &b}) {
    if (!IsScalar(*e->arguments[0]) || !IsScalar(*e->arguments[1])) return false;
  }
  const auto difference = [](const Expression& e) {
    return Make(Kind::kAdd, "", {e.arguments[0], Make(Kind::kMultiply, "", {MakeNumber(-1), e.arguments[1]})});
  };
  std::set<std::string> symbols, others;
  CollectSymbols(a, &symbols);
  CollectSymbols(b, &others);
  if (symbols != others || symbols.empty()) return false;
  const ExpressionPtr of_a = difference(a), of_b = difference(b);
  std::optional<Ball> ratio;
  int agreed = 0;
  for (int i = 0; i < kPoints; ++i) {
    const auto point = Point(symbols, i);
    const std::optional<Ball> value_a = Enclose(*of_a, point, kCloseBits), value_b = Enclose(*of_b, point, kCloseBits);
    if (!value_a.has_value() || !value_b.has_value() || acb_contains_zero(value_b->get())) continue;
    Ball here;
    acb_div(here.get(), value_a->get(), value_b->get(), kCloseBits);
    if (!acb_is_finite(here.get()) || acb_rel_accuracy_bits(here.get()) < kCloseBits / 4) continue;
    if (ratio.has_value() && !acb_overlaps(here.get(), ratio->get())) return false;
    ratio = here;
    ++agreed;
  }
  return agreed >= kEnoughPoints &&
         (equation ? !acb_contains_zero(ratio->get()) : ratio->is_real() && arb_is_positive(ratio->real()));
}

bool SameExpression(const ExpressionPtr& a, const ExpressionPtr& b, Doubt* doubt) {
  if (IsScalar(*a) && IsScalar(*b)) {
    if (a->kind == Kind::kText && b->kind == Kind::kText) return a->name == b->name;
    return SameScalar(*a, *b, doubt);
  }
  // "x = 5" is 5 where the other gives no name.
  const auto is_value = [](const Expression& e) {
    return e.kind == Kind::kRelation && e.name == "=" &&
           (IsName(*e.arguments[0]) || (IsConstant(*e.arguments[0]) && IsConstant(*e.arguments[1])));
  };
  if (is_value(*a) && b->kind != Kind::kRelation) return SameExpression(a->arguments[1], b, doubt);
  if (is_value(*b) && a->kind != Kind::kRelation) return SameExpression(a, b->arguments[1], doubt);
  // Sets of one element are as good as it.
  if (a->kind == Kind::kSet && a->arguments.size() == 1 && IsScalar(*b))
    return SameExpression(a->arguments[0], b, doubt);
  if (b->kind == Kind::kSet && b->arguments.size() == 1 && IsScalar(*a))
    return SameExpression(a, b->arguments[0], doubt);

  if (a->kind == Kind::kRelation && b->kind == Kind::kRelation && a->name == b->name && SameRelation(*a, *b, doubt))
    return true;
  const std::optional<ExpressionPtr> interval_a = IntervalOf(*a, doubt), interval_b = IntervalOf(*b, doubt);
  if (interval_a.has_value() || interval_b.has_value()) {
    const ExpressionPtr left = interval_a.value_or(a), right = interval_b.value_or(b);
    if (left->kind == Kind::kRelation || right->kind == Kind::kRelation) return false;
    return SameExpression(left, right, doubt);
  }
  if (a->kind != b->kind) return false;
  switch (a->kind) {
    case Kind::kSet:
    case Kind::kUnion:
      return SameInAnyOrder(a->arguments, b->arguments, doubt);
    case Kind::kWithout:
      return SameInOrder(a->arguments, b->arguments, doubt);
    case Kind::kSequence: {
      if (!SameInOrder(a->arguments, b->arguments, doubt)) return false;
      if (a->name == b->name) return true;
      // Infinity is never inside, whatever the bracket.
      if (a->name.size() != 2 || b->name.size() != 2 || a->arguments.size() != 2) return false;
      return (a->name[0] == b->name[0] || IsInfinite(*a->arguments[0])) &&
             (a->name[1] == b->name[1] || IsInfinite(*a->arguments[1]));
    }
    default:
      return false;
  }
}

// --- texts ---

// The tokens, without what has no meaning; text as its letters.
std::string Canonical(std::string_view text) {
  std::string canonical;
  const auto tokens = Tokenize(text);
  if (!tokens.has_value()) {
    for (const char c : text) {
      if (!absl::ascii_isspace(static_cast<unsigned char>(c))) canonical += c;
    }
    return canonical;
  }
  for (const Token& token : *tokens) {
    if (token.kind == Token::Kind::kCommand) canonical += '\\';
    for (const char c : token.text) {
      if (!absl::ascii_isspace(static_cast<unsigned char>(c))) canonical += c;
    }
  }
  while (!canonical.empty() && (canonical.back() == '.' || canonical.back() == ',')) canonical.pop_back();
  // A choice: (B) is B.
  if (canonical.size() == 3 && canonical[0] == '(' && canonical[2] == ')' && absl::ascii_isupper(canonical[1])) {
    canonical = canonical.substr(1, 1);
  }
  return canonical;
}

bool SameFormula(std::string_view left, std::string_view right, LetterE e, Doubt* doubt) {
  const auto a = Parse(left, e), b = Parse(right, e);
  if (!a.has_value() || !b.has_value()) return false;
  if (a->size() == 1 && b->size() == 1) return SameExpression((*a)[0], (*b)[0], doubt);
  // A list without brackets is a set; "x = 1, 2" gives both.
  const auto elements = [](const List& list) {
    if (list.size() > 1) return list;
    ExpressionPtr one = list[0];
    if (one->kind == Kind::kRelation && one->name == "=" && IsName(*one->arguments[0])) one = one->arguments[1];
    if (one->kind == Kind::kSet) return one->arguments;
    return List{one};
  };
  if (SameInAnyOrder(elements(*a), elements(*b), doubt)) return true;
  // (x, y) = 1, 2 and (1, 2).
  const auto tuple = [](const List& list) {
    return list.size() == 1 && list[0]->kind == Kind::kSequence && list[0]->name == "()" ? list[0]->arguments : list;
  };
  return (a->size() == 1) != (b->size() == 1) && SameInOrder(tuple(*a), tuple(*b), doubt);
}

// Whether "2e-1" and the like is in it.
bool MayHaveExponent(std::string_view text) {
  for (size_t at = text.find('e'); at != std::string_view::npos; at = text.find('e', at + 1)) {
    if (at > 0 && absl::ascii_isdigit(static_cast<unsigned char>(text[at - 1]))) return true;
  }
  return false;
}

bool Same(std::string_view left, std::string_view right, Doubt* doubt) {
  const std::string canonical_left = Canonical(left), canonical_right = Canonical(right);
  if (canonical_left.empty() || canonical_right.empty()) return false;
  if (canonical_left == canonical_right) return true;
  if (SameFormula(left, right, LetterE::kExponent, doubt)) return true;
  return (MayHaveExponent(left) || MayHaveExponent(right)) && SameFormula(left, right, LetterE::kEuler, doubt);
}

}  // namespace

Truth Compare(std::string_view left, std::string_view right) {
  Doubt doubt;
  return Same(left, right, &doubt) ? Truth::kYes : doubt.any ? Truth::kUnknown : Truth::kNo;
}

}  // namespace quartet::math
