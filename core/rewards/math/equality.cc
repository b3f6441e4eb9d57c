#include "core/rewards/math/equality.h"

#include <algorithm>
#include <optional>
#include <set>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "core/rewards/math/grammar/lexer.h"
#include "core/rewards/math/grammar/parser.h"
#include "core/rewards/math/grammar/words.h"
#include "core/rewards/math/values/evaluate.h"
#include "core/rewards/math/values/names.h"
#include "core/rewards/math/values/regions.h"
#include "core/rewards/math/values/scalars.h"
#include "core/rewards/math/vocabulary/units.h"

namespace quartet::math {
namespace {

using Kind = Expression::Kind;
using List = std::vector<ExpressionPtr>;

constexpr size_t kMostElements = 200;  // of sets: each is compared with each

// What a comparison could not decide: whether two numbers are the same, or what they are.
struct Doubt {
  bool any = false;

  bool IsYes(Truth truth) {
    any |= truth == Truth::kUnknown;
    return truth == Truth::kYes;
  }
};

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
  return SameButForFactor(difference(a), difference(b), /*positive=*/!equation);
}

// A unit that is known says nothing more on one side alone; on both it must be the same. Percent and degrees are also
// what they stand for.
bool SameQuantity(const ExpressionPtr& a, const ExpressionPtr& b, Doubt* doubt) {
  const auto value = [](const ExpressionPtr& of) { return of->kind == Kind::kQuantity ? of->arguments[0] : of; };
  const auto unit = [](const ExpressionPtr& of) { return of->kind == Kind::kQuantity ? of->name : ""; };
  if (!unit(a).empty() && !unit(b).empty()) {
    if (!SameUnit(unit(a), unit(b))) return false;
  } else if (const ExpressionPtr& of = unit(a).empty() ? b : a; !SaysNothingMore(unit(of))) {
    // "1 egg"
    const ExpressionPtr& number = of->arguments[0];
    if (number->kind != Kind::kNumber || number->number != 1) return false;
  }
  if (SameExpression(value(a), value(b), doubt)) return true;
  if (SameUnit(unit(a), unit(b))) return false;
  const auto meant = [&](const ExpressionPtr& of) {
    if (unit(of) == kPercent) return Make(Kind::kDivide, "", {value(of), MakeNumber(100)});
    if (unit(of) != kDegree) return value(of);
    return Make(Kind::kDivide, "",
                {Make(Kind::kMultiply, "", {value(of), Make(Kind::kConstant, "pi", {})}), MakeNumber(180)});
  };
  const std::string& only = unit(a).empty() ? b->name : a->name;
  return (only == kPercent || only == kDegree) && SameExpression(meant(a), meant(b), doubt);
}

// Letters that are all that is said, and words: "ACB" is not "ABC", "No" is "no". Nothing where either is neither.
std::optional<bool> SameWords(const Expression& a, const Expression& b) {
  const auto letters = [](const Expression& of) { return of.kind == Kind::kMultiply ? of.name : ""; };
  const auto words = [&](const Expression& of) { return of.kind == Kind::kText ? of.name : letters(of); };
  const std::string of_a = words(a), of_b = words(b);
  if (of_a.empty() || of_b.empty()) return std::nullopt;
  if (of_a == of_b) return true;
  // Variables, unless they make a word.
  if (!letters(a).empty() && !letters(b).empty() && (MayBeReordered(of_a) || MayBeReordered(of_b))) return std::nullopt;
  return absl::AsciiStrToLower(of_a) == absl::AsciiStrToLower(of_b);
}

// What makes a set of numbers of it, where the other side is written in another way.
bool SaysRegion(const Expression& of) {
  return of.kind == Kind::kUnion || of.kind == Kind::kIntersection || of.kind == Kind::kWithout ||
         (of.kind == Kind::kRelation && of.name != "=" && of.name != "about") ||
         (of.kind == Kind::kSequence && of.name == "chain") || (of.kind == Kind::kSymbol && of.name == "mathbb R");
}

// A ratio of two is their quotient where the other is a number.
std::optional<ExpressionPtr> Quotient(const Expression& of) {
  if (of.kind != Kind::kSequence || of.name != "::" || of.arguments.size() != 2) return std::nullopt;
  for (const ExpressionPtr& part : of.arguments) {
    if (part->kind == Kind::kQuantity) return std::nullopt;
  }
  return Make(Kind::kDivide, "", of.arguments);
}

bool SameSequence(const Expression& a, const Expression& b, Doubt* doubt) {
  if (!SameInOrder(a.arguments, b.arguments, doubt)) return false;
  if (a.name == b.name) return true;
  // Infinity is never inside, whatever the bracket.
  if (a.name.size() != 2 || b.name.size() != 2 || a.arguments.size() != 2) return false;
  return (a.name[0] == b.name[0] || IsInfinite(*a.arguments[0])) &&
         (a.name[1] == b.name[1] || IsInfinite(*a.arguments[1]));
}

std::optional<ExpressionPtr> TupleOf(const Expression& of);

bool SameExpression(const ExpressionPtr& a, const ExpressionPtr& b, Doubt* doubt) {
  if (a->kind == Kind::kQuantity || b->kind == Kind::kQuantity) {
    const ExpressionPtr value_a = ValueSaid(*a).value_or(a), value_b = ValueSaid(*b).value_or(b);
    const auto ratio_a = Quotient(*value_a), ratio_b = Quotient(*value_b);
    if (ratio_a.has_value() != ratio_b.has_value()) {
      return SameQuantity(ratio_a.value_or(value_a), ratio_b.value_or(value_b), doubt);
    }
    return SameQuantity(value_a, value_b, doubt);
  }
  if (const std::optional<bool> same = SameWords(*a, *b)) return *same;
  const auto is_reals = [](const Expression& of) { return of.kind == Kind::kSymbol && of.name == "mathbb R"; };
  if (IsScalar(*a) && IsScalar(*b) && !is_reals(*a) && !is_reals(*b)) return doubt->IsYes(SameScalar(*a, *b));
  // "22/7 \approx 3.14" says both.
  const auto is_about = [](const Expression& of) {
    return of.kind == Kind::kRelation && of.name == "about" && IsRoughly(*of.arguments[1], *of.arguments[0]);
  };
  if (is_about(*a) && b->kind != Kind::kRelation && SameExpression(a->arguments[0], b, doubt)) return true;
  if (is_about(*b) && a->kind != Kind::kRelation && SameExpression(a, b->arguments[0], doubt)) return true;
  // "x = 5" is 5 where the other gives no name.
  if (b->kind != Kind::kRelation) {
    if (const auto value = ValueSaid(*a)) return SameExpression(*value, b, doubt);
  }
  if (a->kind != Kind::kRelation) {
    if (const auto value = ValueSaid(*b)) return SameExpression(a, *value, doubt);
  }
  // Sets of one element are as good as it.
  if (a->kind == Kind::kSet && a->arguments.size() == 1 && IsScalar(*b))
    return SameExpression(a->arguments[0], b, doubt);
  if (b->kind == Kind::kSet && b->arguments.size() == 1 && IsScalar(*a))
    return SameExpression(a, b->arguments[0], doubt);
  if (const auto ratio = Quotient(*a); ratio.has_value() && IsScalar(*b)) return SameExpression(*ratio, b, doubt);
  if (const auto ratio = Quotient(*b); ratio.has_value() && IsScalar(*a)) return SameExpression(a, *ratio, doubt);

  if (a->kind == Kind::kRelation && b->kind == Kind::kRelation && a->name == b->name && SameRelation(*a, *b, doubt))
    return true;
  if (SaysRegion(*a) || SaysRegion(*b)) {
    const auto region_a = RegionOf(*a), region_b = RegionOf(*b);
    if (region_a.has_value() && region_b.has_value()) return doubt->IsYes(SameRegion(*region_a, *region_b));
  }
  const std::optional<ExpressionPtr> interval_a = IntervalOf(*a), interval_b = IntervalOf(*b);
  if (interval_a.has_value() || interval_b.has_value()) {
    const ExpressionPtr left = interval_a.value_or(a), right = interval_b.value_or(b);
    if (left->kind == Kind::kRelation || right->kind == Kind::kRelation) return false;
    return SameExpression(left, right, doubt);
  }
  if (a->kind == Kind::kSequence && b->kind == Kind::kSequence && a->name != b->name) {
    // (1, 2) and a column; but a column is no row.
    const auto tuple_a = TupleOf(*a), tuple_b = TupleOf(*b);
    if (tuple_a.has_value() && b->name == "()") return SameExpression(*tuple_a, b, doubt);
    if (tuple_b.has_value() && a->name == "()") return SameExpression(a, *tuple_b, doubt);
  }
  if (a->kind != b->kind) return false;
  if (a->kind == Kind::kSymbol) return a->name == b->name;
  switch (a->kind) {
    case Kind::kSet:
    case Kind::kUnion:
    case Kind::kIntersection:
      return SameInAnyOrder(a->arguments, b->arguments, doubt);
    case Kind::kWithout:
      return SameInOrder(a->arguments, b->arguments, doubt);
    case Kind::kSequence:
      return SameSequence(*a, *b, doubt);
    default:
      return false;
  }
}

// Columns are tuples, and so are rows that stand alone: (1, 2) as a matrix.
std::optional<ExpressionPtr> TupleOf(const Expression& of) {
  if (of.kind != Kind::kSequence || of.name != "matrix") return std::nullopt;
  if (of.arguments.size() == 1) return Make(Kind::kSequence, "()", of.arguments[0]->arguments);
  List elements;
  for (const ExpressionPtr& row : of.arguments) {
    if (row->arguments.size() != 1) return std::nullopt;
    elements.push_back(row->arguments[0]);
  }
  return Make(Kind::kSequence, "()", std::move(elements));
}

// Of two formulas, with a symbol in place of what an unknown function is applied to: the same one where name and
// arguments are the same. So 2f(x + 1) is f(1 + x) + f(1 + x).
class Applications {
 public:
  explicit Applications(Doubt* doubt) : doubt_(*doubt) {}

  // Nothing where there are too many to compare each with each.
  std::optional<ExpressionPtr> Named(const ExpressionPtr& of) {
    List arguments;
    bool changed = false;
    for (const ExpressionPtr& argument : of->arguments) {
      const std::optional<ExpressionPtr> named = Named(argument);
      if (!named.has_value()) return std::nullopt;
      changed |= *named != argument;
      arguments.push_back(*named);
    }
    if (of->kind != Kind::kApply) {
      if (!changed) return of;
      auto copy = std::make_shared<Expression>(*of);
      copy->arguments = std::move(arguments);
      return copy;
    }
    constexpr size_t kMost = 30;
    size_t at = 0;
    while (at < known_.size() && !(known_[at].first == of->name && SameInOrder(known_[at].second, arguments, &doubt_)))
      ++at;
    if (at == kMost) return std::nullopt;
    if (at == known_.size()) known_.emplace_back(of->name, std::move(arguments));
    return Make(Kind::kSymbol, absl::StrCat("#", at, " ", of->name), {});
  }

  bool Name(Formula* formula) {
    for (ExpressionPtr& element : formula->elements) {
      const std::optional<ExpressionPtr> named = Named(element);
      if (!named.has_value()) return false;
      element = *named;
    }
    return true;
  }

 private:
  Doubt& doubt_;
  std::vector<std::pair<std::string, List>> known_;
};

// --- answers ---

// What is said by inequalities and intervals that "or" or "and" joins.
std::optional<Region> RegionSaid(const Formula& formula) {
  using Joint = Formula::Joint;
  const bool all = std::all_of(formula.elements.begin(), formula.elements.end(),
                               [](const auto& e) { return SaysRegion(*e) || e->kind == Kind::kSequence; });
  const bool any =
      std::any_of(formula.elements.begin(), formula.elements.end(), [](const auto& e) { return SaysRegion(*e); });
  if (!all || !any) return std::nullopt;
  if (formula.elements.size() == 1) return RegionOf(*formula.elements[0]);
  if (formula.joint == Joint::kOr) return UnionOf(formula.elements);
  // "x > 2, x \\neq 3" is all of it, "x < 2, x > 3" is not said.
  const bool excepts = std::any_of(formula.elements.begin(), formula.elements.end(), [](const auto& e) {
    return e->kind == Kind::kRelation && (e->name == "!=" || e->name == "notin");
  });
  return formula.joint == Joint::kAnd || excepts ? IntersectionOf(formula.elements) : std::nullopt;
}

// An inequality that is still to be solved for its name, as the one of the question is.
bool IsUnsolved(const Expression& of) {
  const bool chain = of.kind == Kind::kSequence && of.name == "chain";
  if (chain || (of.kind == Kind::kRelation && (of.name == "<" || of.name == "<="))) {
    const auto is_size = [](const ExpressionPtr& side) {
      return side->kind == Kind::kFunction && side->name == "abs" && IsName(*side->arguments[0]);
    };
    return !IntervalOf(of).has_value() && std::ranges::none_of(of.arguments, is_size);
  }
  return std::ranges::any_of(of.arguments, [](const ExpressionPtr& part) { return IsUnsolved(*part); });
}
bool IsUnsolved(const Formula& formula) {
  return std::ranges::any_of(formula.elements, [](const ExpressionPtr& element) { return IsUnsolved(*element); });
}

bool SameFormula(const Formula& a, const Formula& b, Doubt* doubt) {
  const List &of_a = a.elements, &of_b = b.elements;
  if (of_a.size() == 1 && of_b.size() == 1) return SameExpression(of_a[0], of_b[0], doubt);
  if (const auto region_a = RegionSaid(a), region_b = RegionSaid(b); region_a.has_value() || region_b.has_value()) {
    const auto left = region_a.has_value() || of_a.size() > 1 ? region_a : RegionOf(*of_a[0]),
               right = region_b.has_value() || of_b.size() > 1 ? region_b : RegionOf(*of_b[0]);
    if (left.has_value() && right.has_value()) return doubt->IsYes(SameRegion(*left, *right));
  }
  // A list without brackets is a set; "x = 1, 2" gives both.
  const auto elements = [](const List& list) {
    if (list.size() > 1) return list;
    const Expression& only = *list[0];
    const bool in = only.kind == Kind::kRelation && only.name == "in" && IsName(*only.arguments[0]);
    const ExpressionPtr one = in ? only.arguments[1] : ValueSaid(only).value_or(list[0]);
    return one->kind == Kind::kSet ? one->arguments : List{one};
  };
  if (SameInAnyOrder(elements(of_a), elements(of_b), doubt)) return true;
  // (x, y) = 1, 2 and (1, 2).
  const auto tuple = [](const List& list) {
    return list.size() == 1 && list[0]->kind == Kind::kSequence && list[0]->name == "()" ? list[0]->arguments : list;
  };
  return (of_a.size() == 1) != (of_b.size() == 1) && SameInOrder(tuple(of_a), tuple(of_b), doubt);
}

// The tokens, without what has no meaning; text as its letters. Space is left where it parts two numbers: 2 3 is
// not 23.
std::string Canonical(std::string_view text) {
  std::string canonical;
  bool parted = false;
  const auto add = [&](char c) {
    if (absl::ascii_isspace(static_cast<unsigned char>(c))) {
      parted = true;
      return;
    }
    const auto is_digit = [](char x) { return absl::ascii_isdigit(static_cast<unsigned char>(x)); };
    if (parted && !canonical.empty() && is_digit(canonical.back()) && is_digit(c)) canonical += ' ';
    canonical += c;
    parted = false;
  };
  const auto tokens = Tokenize(text);
  if (!tokens.has_value()) {
    for (const char c : text) add(c);
    return canonical;
  }
  for (const Token& token : *tokens) {
    // \mid is |.
    if (token.kind == Token::Kind::kCommand && token.text != "|") canonical += '\\';
    for (const char c : token.text) add(c);
    parted = true;
  }
  while (!canonical.empty() && (canonical.back() == '.' || canonical.back() == ',')) canonical.pop_back();
  // A choice: (B) is B.
  if (canonical.size() == 3 && canonical[0] == '(' && canonical[2] == ')' && absl::ascii_isupper(canonical[1])) {
    canonical = canonical.substr(1, 1);
  }
  return canonical;
}

// Whether "2e-1" and the like is in it.
bool MayHaveExponent(std::string_view text) {
  for (size_t at = text.find('e'); at != std::string_view::npos; at = text.find('e', at + 1)) {
    if (at > 0 && absl::ascii_isdigit(static_cast<unsigned char>(text[at - 1]))) return true;
  }
  return false;
}

// `left` is the label.
bool Same(std::string_view left, std::string_view right, Doubt* doubt) {
  const std::string canonical_left = Canonical(left), canonical_right = Canonical(right);
  if (canonical_left.empty() || canonical_right.empty()) return false;
  if (canonical_left == canonical_right) return true;
  bool understood = false;
  const auto same = [&](LetterE e) {
    auto a = Parse(left, e), b = Parse(right, e);
    Applications applications(doubt);
    if (!a.has_value() || !b.has_value() || !applications.Name(&*a) || !applications.Name(&*b)) return false;
    understood = true;
    if (IsUnsolved(*b) && !IsUnsolved(*a)) return false;
    return SameFormula(*a, *b, doubt);
  };
  if (same(LetterE::kExponent)) return true;
  if ((MayHaveExponent(left) || MayHaveExponent(right)) && same(LetterE::kEuler)) return true;
  doubt->any |= !understood;
  return false;
}

}  // namespace

Truth Compare(std::string_view label, std::string_view answer) {
  Doubt doubt;
  return Same(label, answer, &doubt) ? Truth::kYes : doubt.any ? Truth::kUnknown : Truth::kNo;
}

}  // namespace quartet::math
