#include "core/rewards/rules/plain_text.h"

#include <algorithm>
#include <iterator>
#include <optional>

#include "core/tokenizer/unicode/unicode.h"

namespace quartet {
namespace {

// What looks alike, or is TeX's own word for it.
constexpr struct {
  char32_t first, last;
  std::string_view plain;
} kPlain[] = {
    {0xab, 0xab, "\""},
    {0xb0, 0xb0, "^\\circ "},
    {0xb7, 0xb7, "\\cdot "},
    {0xba, 0xba, "^\\circ "},
    {0xbb, 0xbb, "\""},
    {0xbc, 0xbc, "\\frac{1}{4}"},
    {0xbd, 0xbd, "\\frac{1}{2}"},
    {0xbe, 0xbe, "\\frac{3}{4}"},
    {0xd7, 0xd7, "\\times "},
    {0xf7, 0xf7, "/"},
    {0x200b, 0x200d, ""},  // of no width
    {0x2010, 0x2013, "-"},
    {0x2018, 0x2019, "'"},
    {0x201c, 0x201f, "\""},
    {0x2044, 0x2044, "/"},
    {0x2060, 0x2060, ""},
    {0x2103, 0x2103, "^\\circ C"},
    {0x2109, 0x2109, "^\\circ F"},
    {0x2153, 0x2153, "\\frac{1}{3}"},
    {0x2154, 0x2154, "\\frac{2}{3}"},
    {0x2155, 0x2155, "\\frac{1}{5}"},
    {0x2156, 0x2156, "\\frac{2}{5}"},
    {0x2157, 0x2157, "\\frac{3}{5}"},
    {0x2158, 0x2158, "\\frac{4}{5}"},
    {0x2159, 0x2159, "\\frac{1}{6}"},
    {0x215a, 0x215a, "\\frac{5}{6}"},
    {0x215b, 0x215b, "\\frac{1}{8}"},
    {0x215c, 0x215c, "\\frac{3}{8}"},
    {0x215d, 0x215d, "\\frac{5}{8}"},
    {0x215e, 0x215e, "\\frac{7}{8}"},
    {0x2212, 0x2212, "-"},
    {0x2215, 0x2215, "/"},
    {0x2248, 0x2248, "\\approx "},
    {0x22c5, 0x22c5, "\\cdot "},
    {0x3001, 0x3001, ","},
    {0x3002, 0x3002, "."},
    {0x300a, 0x3011, "\""},
    {0xfe0f, 0xfe0f, ""},
    {0xfe63, 0xfe63, "-"},
    {0xfeff, 0xfeff, ""},
    {0xffe5, 0xffe5, "¥"},
};

// The digit or minus sign that `c` writes as an exponent.
std::optional<char> Superscript(char32_t c) {
  if (c == 0xb2 || c == 0xb3) return static_cast<char>('0' + (c - 0xb0));
  if (c == 0xb9) return '1';
  if (c == 0x2070 || (c >= 0x2074 && c <= 0x2079)) return static_cast<char>('0' + (c - 0x2070));
  if (c == 0x207b) return '-';
  return std::nullopt;
}

// The first digit of the ten that `c` is one of.
std::optional<char32_t> ZeroOf(char32_t c) {
  for (const char32_t zero : {U'\u0660', U'\u06f0', U'\u0966', U'\u09e6'}) {
    if (c >= zero && c < zero + 10) return zero;
  }
  return std::nullopt;
}

constexpr std::string_view kSpaces[] = {" ",   "\t",  "\r",  "\n",  "~",       "\\,",
                                        "\\!", "\\;", "\\:", "\\ ", "\\qquad", "\\quad"};
constexpr std::string_view kStyles[] = {"\\textbf",       "\\textit",     "\\textrm", "\\textsf", "\\texttt",
                                        "\\text",         "\\mathbf",     "\\mathrm", "\\mathsf", "\\mathit",
                                        "\\mathtt",       "\\boldsymbol", "\\bm",     "\\mbox",   "\\hbox",
                                        "\\operatorname", "\\underline",  "\\emph",   "\\boxed",  "\\fbox"};

}  // namespace

std::pair<char32_t, size_t> CharOf(std::string_view text, size_t at) {
  const size_t bytes = CharBytes(text, at);
  if (at + bytes > text.size()) return {0xfffd, 1};
  return {CharAt(text, at), bytes};
}

bool IsIdeograph(char32_t c) {
  return (c >= 0x3040 && c <= 0x30ff) || (c >= 0x3400 && c <= 0x9fff) || (c >= 0xac00 && c <= 0xd7a3);
}

std::string Plain(std::string_view text) {
  std::string plain;
  std::string exponent;
  const auto end_exponent = [&] {
    if (!exponent.empty()) plain += "^{" + exponent + "}";
    exponent.clear();
  };
  for (size_t at = 0; at < text.size();) {
    const auto [c, bytes] = CharOf(text, at);
    const std::string_view as_it_is = text.substr(at, bytes);
    at += bytes;
    if (const std::optional<char> digit = Superscript(c)) {
      exponent += *digit;
      continue;
    }
    end_exponent();
    const auto* row = c < 0x80 ? std::end(kPlain)
                               : std::find_if(std::begin(kPlain), std::end(kPlain),
                                              [c = c](const auto& r) { return c >= r.first && c <= r.last; });
    if (row != std::end(kPlain)) {
      plain += row->plain;
    } else if (c >= 0xff01 && c <= 0xff5e) {
      plain += static_cast<char>(c - 0xfee0);
    } else if (const std::optional<char32_t> zero = ZeroOf(c)) {
      plain += static_cast<char>('0' + (c - *zero));
    } else if (c >= 0x80 && IsWhiteSpace(c)) {
      plain += c == 0x85 || c == 0x2028 || c == 0x2029 ? '\n' : ' ';
    } else {
      plain += as_it_is;
    }
  }
  end_exponent();
  return plain;
}

bool Consume(std::string_view* text, std::string_view prefix) {
  if (text->substr(0, prefix.size()) != prefix) return false;
  text->remove_prefix(prefix.size());
  return true;
}

bool ConsumeAny(std::string_view* text, std::span<const std::string_view> prefixes) {
  return std::ranges::any_of(prefixes, [&](std::string_view prefix) { return Consume(text, prefix); });
}

bool SkipSpaces(std::string_view* text) {
  const size_t before = text->size();
  while (ConsumeAny(text, kSpaces)) {
  }
  return text->size() < before;
}

bool ConsumeStyle(std::string_view* text) {
  std::string_view in = *text;
  if (Consume(&in, "\\textcolor{") || Consume(&in, "\\color{")) {
    const size_t name = in.find_first_not_of("abcdefghijklmnopqrstuvwxyz");
    if (name == std::string_view::npos || in[name] != '}') return false;
    in.remove_prefix(name + 1);
  } else if (!ConsumeAny(&in, kStyles)) {
    return false;
  }
  SkipSpaces(&in);
  if (!Consume(&in, "{")) return false;
  *text = in;
  return true;
}

}  // namespace quartet
