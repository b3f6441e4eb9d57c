#include "core/tokenizer/jinja/syntax/lexer.h"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cstdint>
#include <string_view>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "core/base/status_macros.h"
#include "core/tokenizer/unicode/unicode.h"

namespace quartet::jinja {
namespace {

class Lexer {
 public:
  explicit Lexer(std::string source) : source_(std::move(source)) {}

  absl::StatusOr<std::vector<Token>> Run() {
    while (at_ < source_.size()) {
      QUARTET_RETURN_IF_ERROR(Text());
      if (at_ >= source_.size()) break;
      const char kind = source_[at_ + 1];
      at_ += 2;
      if (at_ < source_.size() && (source_[at_] == '-' || source_[at_] == '+')) ++at_;
      if (kind == '#') {
        const size_t end = source_.find("#}", at_);
        if (end == std::string::npos) return Error("a comment that does not end");
        CountLines(at_, end);
        at_ = end;
        EndTag(source_[end - 1], /*trims_line=*/true);
        continue;
      }
      Push(kind == '%' ? TokenKind::kBegin : TokenKind::kPrintBegin, "");
      QUARTET_RETURN_IF_ERROR(Tag(kind));
    }
    Push(TokenKind::kEof, "the end of the template");
    return std::move(tokens_);
  }

 private:
  absl::Status Error(const std::string& what) const {
    return absl::InvalidArgumentError(absl::StrCat("line ", line_, ": ", what));
  }
  void Push(TokenKind kind, std::string text) { tokens_.push_back({kind, std::move(text), line_}); }
  void CountLines(size_t begin, size_t end) {
    line_ += std::count(source_.begin() + begin, source_.begin() + end, '\n');
  }

  // Text up to the next tag, less the white space that the tag takes.
  absl::Status Text() {
    size_t open = at_;
    while (true) {
      open = source_.find('{', open);
      if (open == std::string::npos || open + 1 >= source_.size()) {
        open = source_.size();
        break;
      }
      if (std::string_view("%{#").find(source_[open + 1]) != std::string_view::npos) break;
      ++open;
    }
    std::string text = source_.substr(at_, open - at_);
    if (open < source_.size()) {
      const char sign = open + 2 < source_.size() ? source_[open + 2] : '\0';
      if (sign == '-') {
        text.erase(text.find_last_not_of(" \t\n\r\f\v") + 1);
      } else if (sign != '+' && source_[open + 1] != '{') {  // lstrip_blocks
        const size_t line = text.rfind('\n') + 1;
        if ((line > 0 || line_starts_) && text.find_first_not_of(" \t", line) == std::string::npos) text.erase(line);
      }
    }
    if (!text.empty()) Push(TokenKind::kText, std::move(text));
    CountLines(at_, open);
    at_ = open;
    return absl::OkStatus();
  }

  // Passes "%}" and the like; `sign` is the character before it.
  void EndTag(char sign, bool trims_line) {
    const size_t begin = at_;
    at_ += 2;
    if (sign == '-') {
      while (at_ < source_.size() && std::isspace(static_cast<unsigned char>(source_[at_]))) ++at_;
    } else if (sign != '+' && trims_line && at_ < source_.size() && source_[at_] == '\n') {
      ++at_;
    }
    CountLines(begin, at_);
    line_starts_ = source_[at_ - 1] == '\n';
  }

  absl::Status Tag(char kind) {
    const std::string close = kind == '%' ? "%}" : "}}";
    int depth = 0;  // of { } within an expression
    while (true) {
      while (at_ < source_.size() && std::isspace(static_cast<unsigned char>(source_[at_]))) {
        line_ += source_[at_++] == '\n';
      }
      if (at_ >= source_.size()) return Error("a tag that does not end");
      const char c = source_[at_];
      const bool signed_end = (c == '-' || c == '+') && source_.compare(at_ + 1, 2, close) == 0;
      if (signed_end || (depth == 0 && source_.compare(at_, 2, close) == 0)) {
        Push(kind == '%' ? TokenKind::kEnd : TokenKind::kPrintEnd, close);
        at_ += signed_end;
        EndTag(signed_end ? c : '\0', kind == '%');
        return absl::OkStatus();
      }
      if (std::isalpha(static_cast<unsigned char>(c)) || c == '_') {
        const size_t begin = at_;
        while (at_ < source_.size() &&
               (std::isalnum(static_cast<unsigned char>(source_[at_])) || source_[at_] == '_')) {
          ++at_;
        }
        Push(TokenKind::kName, source_.substr(begin, at_ - begin));
      } else if (std::isdigit(static_cast<unsigned char>(c))) {
        const size_t begin = at_;
        const auto digits = [&] {
          while (at_ < source_.size() && std::isdigit(static_cast<unsigned char>(source_[at_]))) ++at_;
        };
        digits();
        bool is_float = false;
        const auto digit_at = [&](size_t at) {
          return at < source_.size() && std::isdigit(static_cast<unsigned char>(source_[at]));
        };
        if (at_ < source_.size() && source_[at_] == '.' && digit_at(at_ + 1)) {
          is_float = true;
          ++at_;
          digits();
        }
        if (at_ < source_.size() && (source_[at_] == 'e' || source_[at_] == 'E')) {
          const size_t sign = at_ + 1 < source_.size() && (source_[at_ + 1] == '-' || source_[at_ + 1] == '+') ? 1 : 0;
          if (digit_at(at_ + 1 + sign)) {
            is_float = true;
            at_ += 1 + sign;
            digits();
          }
        }
        Push(is_float ? TokenKind::kFloat : TokenKind::kInt, source_.substr(begin, at_ - begin));
      } else if (c == '\'' || c == '"') {
        QUARTET_RETURN_IF_ERROR(String(c));
      } else {
        size_t size = 1;
        for (const char* two : {"==", "!=", "<=", ">=", "//", "**"}) {
          if (source_.compare(at_, 2, two) == 0) size = 2;
        }
        const std::string text = source_.substr(at_, size);
        if (size == 1 && std::string_view("+-*/%~<>=()[]{},.:|").find(c) == std::string_view::npos) {
          return Error(absl::StrCat("the character '", text, "' is not known in an expression"));
        }
        if (c == '{') ++depth;
        if (c == '}') --depth;
        Push(TokenKind::kOperator, text);
        at_ += size;
      }
    }
  }

  absl::Status String(char quote) {
    std::string value;
    const int line = line_;
    for (++at_;; ++at_) {
      if (at_ >= source_.size()) return Error("a string that does not end");
      const char c = source_[at_];
      if (c == quote) break;
      line_ += c == '\n';
      if (c != '\\') {
        value += c;
        continue;
      }
      if (++at_ >= source_.size()) return Error("a string that does not end");
      const char escaped = source_[at_];
      constexpr std::string_view kFrom = "ntrabfv\\'\"", kTo = "\n\t\r\a\b\f\v\\'\"";
      const size_t known = kFrom.find(escaped);
      if (known != std::string_view::npos) {
        value += kTo[known];
      } else if (escaped == '\n') {
        ++line_;
      } else if (escaped == 'x' || escaped == 'u') {
        const size_t digits = escaped == 'x' ? 2 : 4;
        uint32_t code = 0;
        const char* begin = source_.data() + at_ + 1;
        const char* end = std::min(begin + digits, source_.data() + source_.size());
        const auto parsed = std::from_chars(begin, end, code, 16);
        if (parsed.ptr != begin + digits || (code >= 0xd800 && code < 0xe000)) return Error("a bad escape in a string");
        AppendUtf8(code, &value);
        at_ += digits;
      } else {
        return Error(absl::StrCat("the escape \\", std::string(1, escaped), " in a string is not supported"));
      }
    }
    ++at_;
    tokens_.push_back({TokenKind::kString, std::move(value), line});
    return absl::OkStatus();
  }

  const std::string source_;
  size_t at_ = 0;
  int line_ = 1;
  bool line_starts_ = true;
  std::vector<Token> tokens_;
};

}  // namespace

absl::StatusOr<std::vector<Token>> Tokenize(std::string source) { return Lexer(std::move(source)).Run(); }

}  // namespace quartet::jinja
