#include "core/rewards/rules/plain_text.h"

#include <algorithm>

#include "core/tokenizer/unicode/unicode.h"

namespace quartet {
namespace {

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
