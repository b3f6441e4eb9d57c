#include "core/rewards/math/values/points.h"

#include <algorithm>
#include <iterator>
#include <optional>

#include "core/base/splitmix64.h"
#include "core/rewards/math/values/evaluate.h"
#include "core/rewards/math/values/power_of_ten.h"
#include "core/rewards/math/values/scalars.h"

namespace quartet::math {
namespace {

using Kind = Expression::Kind;

// How the values of a point are drawn.
struct Draw {
  enum class Size { kSmall, kMixed, kWhole };  // in (0.5, 3); up to some power of 10; whole numbers
  Size size;
  bool signs;  // either, else positive
};
// Positive ones first, where most functions are real. Whole ones for what is real there alone, such as (-1)^n.
constexpr Draw kDraws[] = {
    {Draw::Size::kSmall, false}, {Draw::Size::kSmall, false}, {Draw::Size::kSmall, false}, {Draw::Size::kMixed, true},
    {Draw::Size::kMixed, true},  {Draw::Size::kMixed, true},  {Draw::Size::kMixed, true},  {Draw::Size::kMixed, true},
    {Draw::Size::kMixed, true},  {Draw::Size::kMixed, true},  {Draw::Size::kMixed, true},  {Draw::Size::kMixed, false},
    {Draw::Size::kMixed, false}, {Draw::Size::kMixed, false}, {Draw::Size::kWhole, false}, {Draw::Size::kWhole, false},
    {Draw::Size::kWhole, false}, {Draw::Size::kWhole, true},  {Draw::Size::kWhole, true},  {Draw::Size::kWhole, true},
    {Draw::Size::kSmall, false}, {Draw::Size::kSmall, false}, {Draw::Size::kSmall, false},
};

mpq_class Drawn(const Draw& draw, uint64_t bits) {
  const auto take = [&bits](uint64_t below) {
    const uint64_t taken = bits % below;
    bits /= below;
    return static_cast<unsigned long>(taken);
  };
  const bool negative = take(2) == 1 && draw.signs;
  mpq_class value;
  if (draw.size == Draw::Size::kWhole) {
    constexpr uint64_t kLargestWhole = 12;
    value = mpq_class(take(kLargestWhole) + 1);
  } else if (draw.size == Draw::Size::kSmall) {
    value = mpq_class(500'000 + take(2'500'000), 1'000'000ul);
  } else {
    // (0, 1), (0, 10), (0, 100), (0, 1000), to 6 digits.
    const unsigned long scales[] = {1'000'000, 100'000, 10'000, 1'000};
    const unsigned long scale = scales[take(4)];
    value = mpq_class(1 + take(999'999), scale);
  }
  value.canonicalize();
  return negative ? mpq_class(-value) : value;
}

uint64_t HashOf(const std::string& symbol, int number) {
  uint64_t state = 0x9E3779B97F4A7C15u * (number + 1);
  for (const char c : symbol) state = SplitMixFinalise(state ^ static_cast<unsigned char>(c));
  return state;
}

// --- around the numbers of an expression ---

constexpr size_t kMostNumbers = 10;
constexpr size_t kMostSizes = 32;
constexpr int kLadder = 12;
constexpr int kMostBitsOfSize = 4000;
constexpr int kStylesOfSize = 12;  // of values around a size; half of them negative
constexpr int kMostFurther = 800;

// Whether it may be of one form here and of another there.
bool MayHavePieces(const Expression& of) {
  if (of.kind == Kind::kFunction && !IsConstant(of)) return true;
  const bool root = of.kind == Kind::kPower && !IsConstant(*of.arguments[0]) &&
                    !(of.arguments[1]->kind == Kind::kNumber && of.arguments[1]->number.get_den() == 1);
  return root || std::any_of(of.arguments.begin(), of.arguments.end(), [](const auto& a) { return MayHavePieces(*a); });
}

// The size of what has no variables, roughly; nothing where it is 0, or beyond kMostBitsOfSize.
std::optional<mpq_class> SizeOf(const Expression& of) {
  constexpr int kBits = 64;
  const std::optional<Ball> value = Enclose(of, {}, kBits, Among::kReal);
  if (!value.has_value() || value->is_infinite()) return std::nullopt;
  const arf_srcptr middle = arb_midref(value->real());
  if (arf_is_zero(middle) || arf_cmpabs_2exp_si(middle, kMostBitsOfSize) > 0 ||
      arf_cmpabs_2exp_si(middle, -kMostBitsOfSize) < 0) {
    return std::nullopt;
  }
  fmpq_t rational;
  fmpq_init(rational);
  arf_get_fmpq(rational, middle);
  mpq_class size;
  fmpq_get_mpq(size.get_mpq_t(), rational);
  fmpq_clear(rational);
  return abs(size);
}

void Add(const mpq_class& size, size_t most, std::vector<mpq_class>* sizes) {
  if (sizes->size() < most && std::find(sizes->begin(), sizes->end(), size) == sizes->end()) sizes->push_back(size);
}

void CollectSizes(const Expression& of, std::vector<mpq_class>* sizes) {
  if (IsConstant(of)) {
    if (const std::optional<mpq_class> size = SizeOf(of)) Add(*size, kMostNumbers, sizes);
  }
  for (const ExpressionPtr& argument : of.arguments) CollectSizes(*argument, sizes);
}

mpq_class RootOf(const mpq_class& of) {
  // To 20 bits behind the point.
  constexpr int kPlaces = 20;
  mpz_class root = (of.get_num() << (2 * kPlaces)) / of.get_den();
  mpz_sqrt(root.get_mpz_t(), root.get_mpz_t());
  mpq_class value(root, mpz_class(1) << kPlaces);
  value.canonicalize();
  return value;
}

int Log10(const mpq_class& of) {
  return (static_cast<int>(mpz_sizeinbase(of.get_num_mpz_t(), 2)) -
          static_cast<int>(mpz_sizeinbase(of.get_den_mpz_t(), 2))) *
         0.30103;
}

std::vector<mpq_class> SizesAround(const Expression& a, const Expression& b) {
  std::vector<mpq_class> sizes;
  CollectSizes(a, &sizes);
  CollectSizes(b, &sizes);
  Add(1, kMostNumbers + 1, &sizes);
  const std::vector<mpq_class> numbers = sizes;
  // Beyond and between them.
  const auto [least, most] = std::minmax_element(numbers.begin(), numbers.end());
  const int low = Log10(*least) - 1, high = Log10(*most) + 2;
  const int step = (high - low) / kLadder + 1;
  for (int exponent = high; exponent >= low; exponent -= step) Add(PowerOfTen(exponent), kMostSizes, &sizes);
  for (const mpq_class& number : numbers) {
    if (const mpq_class root = RootOf(number); root > 0) Add(root, kMostSizes, &sizes);
  }
  for (const mpq_class& one : numbers) {
    for (const mpq_class& other : numbers) Add(one / other, kMostSizes, &sizes);
  }
  for (const mpq_class& one : numbers) {
    for (const mpq_class& other : numbers) Add(one * other, kMostSizes, &sizes);
  }
  return sizes;
}

mpq_class Around(const mpq_class& size, int style, uint64_t bits) {
  mpq_class part(1 + bits % 999'999, 1'000'000ul);
  part.canonicalize();
  mpz_class whole;
  mpz_fdiv_q(whole.get_mpz_t(), size.get_num_mpz_t(), size.get_den_mpz_t());
  const unsigned long few = bits / 1'000'000 % 4;
  mpq_class value;
  switch (style / 2) {
    case 0:
      value = size * (1 + part);
      break;
    case 1:
      value = size / (1 + part);
      break;
    case 2:
      value = size + part;
      break;
    case 3:
      value = size - part;
      break;
    case 4:
      value = whole + few;
      break;
    default:
      value = whole - few;
      break;
  }
  return style % 2 == 0 ? value : mpq_class(-value);
}

}  // namespace

std::set<std::string> SymbolsOf(const Expression& a, const Expression& b) {
  std::set<std::string> symbols;
  CollectSymbols(a, &symbols);
  CollectSymbols(b, &symbols);
  return symbols;
}

Points::Points(const Expression& a, const Expression& b) {
  const std::set<std::string> symbols = SymbolsOf(a, b);
  symbols_ = {symbols.begin(), symbols.end()};
  if (symbols.empty() || !(MayHavePieces(a) || MayHavePieces(b))) return;
  sizes_ = SizesAround(a, b);
  further_ = std::min<int>(kMostFurther, sizes_.size() * kStylesOfSize * symbols_.size());
}

int Points::first_count() { return std::size(kDraws); }

Values Points::at(int number) const {
  Values point;
  const int further = number - first_count();
  for (size_t i = 0; i < symbols_.size(); ++i) {
    const uint64_t bits = HashOf(symbols_[i], number);
    if (further < 0) {
      point[symbols_[i]] = Drawn(kDraws[number], bits);
      continue;
    }
    // One after the other is at each size in each style, with the others anywhere.
    const bool leads = further % symbols_.size() == i;
    const uint64_t place = leads ? further / symbols_.size() : bits >> 32;
    point[symbols_[i]] =
        Around(sizes_[place / kStylesOfSize % sizes_.size()], place % kStylesOfSize, SplitMixFinalise(bits));
  }
  return point;
}

}  // namespace quartet::math
