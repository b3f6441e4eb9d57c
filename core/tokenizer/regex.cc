#include "core/tokenizer/regex.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <cctype>
#include <cstdint>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "core/base/logging.h"
#include "core/base/status_macros.h"
#include "core/tokenizer/unicode.h"

namespace quartet {
namespace {

struct FreeCode {
  void operator()(pcre2_code* code) const { pcre2_code_free(code); }
};
struct FreeMatchData {
  void operator()(pcre2_match_data* data) const { pcre2_match_data_free(data); }
};
struct FreeContext {
  void operator()(pcre2_match_context* context) const { pcre2_match_context_free(context); }
};
using Code = std::unique_ptr<pcre2_code, FreeCode>;

Code CompilePcre(const std::string& pattern, int* error, size_t* offset) {
  // Oniguruma's Ruby syntax: ^ and $ stand at every line, a dot does not match a line feed.
  return Code(pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pattern.data()), pattern.size(),
                            PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C, error, offset, nullptr));
}

bool Compiles(const std::string& pattern) {
  int error;
  size_t offset;
  return CompilePcre(pattern, &error, &offset) != nullptr;
}

// The same expression for PCRE2: white space and word characters are other sets there, and \p{Han} means script
// extensions.
absl::StatusOr<std::string> Translate(std::string_view pattern) {
  const auto unsupported = [&](std::string_view what) {
    return absl::InvalidArgumentError(absl::StrCat("the pattern \"", std::string(pattern), "\" uses ",
                                                   std::string(what), ", which is not supported"));
  };
  std::string out;
  int class_depth = 0;
  for (size_t i = 0; i < pattern.size(); ++i) {
    const char c = pattern[i];
    if (c != '\\') {
      if (c == '[') {
        if (class_depth > 0 && pattern.substr(i, 2) != "[:") return unsupported("a class within a class");
        if (class_depth > 0) {
          const size_t end = pattern.find(":]", i);
          if (end == std::string_view::npos) return unsupported("[ within a class");
          out.append(pattern.substr(i, end + 2 - i));
          i = end + 1;
          continue;
        }
        ++class_depth;
        out += c;
        if (i + 1 < pattern.size() && pattern[i + 1] == '^') out += pattern[++i];
        continue;
      }
      if (class_depth > 0 && c == ']') --class_depth;
      if (class_depth > 0 && pattern.substr(i, 2) == "&&") return unsupported("&& within a class");
      if (class_depth == 0 && pattern.substr(i, 2) == "(?") {
        size_t at = i + 2;
        while (at < pattern.size() && (std::isalpha(static_cast<unsigned char>(pattern[at])) || pattern[at] == '-')) {
          if (pattern[at] != 'i' && pattern[at] != '-')
            return unsupported(absl::StrCat("(?", std::string(1, pattern[at])));
          ++at;
        }
      }
      out += c;
      continue;
    }
    if (++i == pattern.size()) return unsupported("a backslash at the end");
    const char escaped = pattern[i];
    switch (escaped) {
      case 's':
        out += "\\p{White_Space}";
        break;
      case 'S':
        out += "\\P{White_Space}";
        break;
      case 'w':
        out += class_depth > 0 ? "\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}" : "[\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}]";
        break;
      case 'W':
        if (class_depth > 0) return unsupported("\\W within a class");
        out += "[^\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}]";
        break;
      case 'p':
      case 'P': {
        const size_t end = pattern.find('}', i);
        if (i + 1 >= pattern.size() || pattern[i + 1] != '{' || end == std::string_view::npos) {
          return unsupported("\\p without {}");
        }
        std::string name(pattern.substr(i + 2, end - i - 2));
        bool negated = escaped == 'P';
        if (!name.empty() && name[0] == '^') {
          negated = !negated;
          name.erase(0, 1);
        }
        if (name.size() > 2 && Compiles(absl::StrCat("\\p{sc:", name, "}"))) name = absl::StrCat("sc:", name);
        out += absl::StrCat(negated ? "\\P{" : "\\p{", name, "}");
        i = end;
        break;
      }
      default:
        // Letters and digits that both syntaxes read alike; the rest would be guessing.
        if (std::isalnum(static_cast<unsigned char>(escaped)) &&
            std::string_view("dDbBAzZrntfvaex0").find(escaped) == std::string_view::npos) {
          return unsupported(absl::StrCat("\\", std::string(1, escaped)));
        }
        out += '\\';
        out += escaped;
    }
  }
  return out;
}

}  // namespace

struct Regex::Impl {
  Code code;                                                  // null: a literal
  std::unique_ptr<pcre2_match_context, FreeContext> context;  // read only after Compile
  std::string literal;
};

Regex::Regex(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Regex::Regex(Regex&&) noexcept = default;
Regex& Regex::operator=(Regex&&) noexcept = default;
Regex::~Regex() = default;

absl::StatusOr<Regex> Regex::Compile(std::string_view pattern) {
  QUARTET_ASSIGN_OR_RETURN(const std::string translated, Translate(pattern));
  int error = 0;
  size_t offset = 0;
  auto impl = std::make_unique<Impl>();
  impl->code = CompilePcre(translated, &error, &offset);
  if (impl->code == nullptr) {
    unsigned char message[256] = "";
    pcre2_get_error_message(error, message, sizeof(message));
    return absl::InvalidArgumentError(absl::StrCat("the pattern \"", std::string(pattern),
                                                   "\" is not well-formed: ", reinterpret_cast<const char*>(message),
                                                   " (at byte ", offset, " of \"", translated, "\")"));
  }
  // Without JIT on this machine the interpreter serves.
  (void)pcre2_jit_compile(impl->code.get(), PCRE2_JIT_COMPLETE);
  impl->context.reset(pcre2_match_context_create(nullptr));
  pcre2_set_match_limit(impl->context.get(), UINT32_MAX);
  pcre2_set_depth_limit(impl->context.get(), UINT32_MAX);
  return Regex(std::move(impl));
}

Regex Regex::Literal(std::string_view text) {
  auto impl = std::make_unique<Impl>();
  impl->literal = std::string(text);
  return Regex(std::move(impl));
}

std::vector<std::pair<size_t, size_t>> Regex::FindAll(std::string_view text) const {
  std::vector<std::pair<size_t, size_t>> matches;
  if (impl_->code == nullptr) {
    const std::string& literal = impl_->literal;
    if (literal.empty()) return matches;
    for (size_t at = text.find(literal); at != std::string_view::npos; at = text.find(literal, at + literal.size())) {
      matches.emplace_back(at, at + literal.size());
    }
    return matches;
  }
  const std::unique_ptr<pcre2_match_data, FreeMatchData> data(
      pcre2_match_data_create_from_pattern(impl_->code.get(), nullptr));
  const auto* subject = reinterpret_cast<PCRE2_SPTR>(text.data());
  for (size_t at = 0; at < text.size();) {
    int found =
        pcre2_match(impl_->code.get(), subject, text.size(), at, PCRE2_NO_UTF_CHECK, data.get(), impl_->context.get());
    if (found == PCRE2_ERROR_JIT_STACKLIMIT) {
      found = pcre2_match(impl_->code.get(), subject, text.size(), at, PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT, data.get(),
                          impl_->context.get());
    }
    if (found == PCRE2_ERROR_NOMATCH) break;
    QUARTET_CHECK(found >= 0) << "pcre2_match: " << found << " on " << text.size() << " bytes";
    const size_t* range = pcre2_get_ovector_pointer(data.get());
    if (range[1] > range[0]) {
      matches.emplace_back(range[0], range[1]);
      at = range[1];
    } else {
      at = range[1] >= text.size() ? text.size() : range[1] + CharBytes(text, range[1]);
    }
  }
  return matches;
}

}  // namespace quartet
