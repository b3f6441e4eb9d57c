#include "core/tokenizer/unicode/regex.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>
#include <time.h>

#include <algorithm>
#include <cctype>
#include <cstdint>
#include <optional>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "core/base/status_macros.h"
#include "core/tokenizer/unicode/unicode.h"

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
using Context = std::unique_ptr<pcre2_match_context, FreeContext>;
using MatchData = std::unique_ptr<pcre2_match_data, FreeMatchData>;

constexpr size_t kMostPatternBytes = 16 << 10;
// Steps of backtracking, as PCRE2's match limit counts them: those that each place of a text has, and those that all
// places have together beyond them.
constexpr uint32_t kStepsEach = 1000;
constexpr uint64_t kMoreSteps = 10'000'000;
constexpr uint64_t kMoreStepsPerByte = 100;
// What takes no steps, a run of characters, takes time all the same.
constexpr double kSeconds = 2;
constexpr double kSecondsPerByte = 1e-6;
// Places of a text that one search goes through, so that the time is looked at in between: fewer in long texts.
constexpr size_t kMostPlaces = 128;
constexpr size_t kPlacesTimesBytes = 16 << 20;
// Of one match: what it can go back to.
constexpr uint32_t kMostDepth = 500'000;
constexpr uint32_t kMostHeapKiB = 64 << 10;

Context MakeContext(uint32_t steps) {
  Context context(pcre2_match_context_create(nullptr));
  pcre2_set_match_limit(context.get(), steps);
  pcre2_set_depth_limit(context.get(), kMostDepth);
  pcre2_set_heap_limit(context.get(), kMostHeapKiB);
  return context;
}

std::string ErrorText(int error) {
  unsigned char message[256] = "";
  pcre2_get_error_message(error, message, sizeof(message));
  return reinterpret_cast<const char*>(message);
}

double Seconds(clockid_t clock) {
  timespec now = {};
  clock_gettime(clock, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

Code CompilePcre(const std::string& pattern, int* error, size_t* offset) {
  // Oniguruma's Ruby syntax: ^ and $ stand at every line, a dot does not match a line feed.
  return Code(pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pattern.data()), pattern.size(),
                            PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C | PCRE2_USE_OFFSET_LIMIT,
                            error, offset, nullptr));
}

bool Compiles(const std::string& pattern) {
  int error;
  size_t offset;
  return CompilePcre(pattern, &error, &offset) != nullptr;
}

struct Property {
  std::string_view name;     // lower case, without "_"
  std::string_view members;  // of a class of PCRE2
};
// Where PCRE2, which knows Unicode 14, has other characters than Oniguruma, which knows 16.
constexpr Property kProperties[] = {
#include "core/tokenizer/unicode/regex_properties.inc"
};

std::string_view FindProperty(std::string_view name) {
  for (const Property& property : kProperties) {
    if (property.name == name) return property.members;
  }
  return {};
}

// The name without what is not looked at in it, for FindProperty.
std::string PlainName(std::string_view name) {
  std::string plain;
  for (const char c : name) {
    if (c != '_' && c != '-' && c != ' ') plain += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  }
  return plain;
}

// What stands in a class for \p{name}. A script is the script here, not its extensions.
std::string Members(const std::string& name) {
  const std::string plain = PlainName(name);
  for (const std::string& key : {plain, "posix " + plain}) {
    if (const std::string_view members = FindProperty(key); !members.empty()) return std::string(members);
  }
  if (name.size() > 2 && Compiles(absl::StrCat("\\p{sc:", name, "}"))) return absl::StrCat("\\p{sc:", name, "}");
  return absl::StrCat("\\p{", name, "}");
}

// What stands in a class for \P{name}; empty where that cannot be written.
std::string MembersOfOthers(const std::string& name) {
  const std::string plain = PlainName(name);
  if (FindProperty(plain).empty() && FindProperty("posix " + plain).empty()) {
    std::string members = Members(name);
    members[1] = 'P';
    return members;
  }
  constexpr std::string_view kCategories = "LMNPSZC";
  const bool is_digits = plain == "nd";
  if (!is_digits && (name.size() != 1 || kCategories.find(name) == std::string_view::npos)) return "";
  std::string members = is_digits ? Members("Nl") + Members("No") : "";
  for (const char category : kCategories) {
    if (category != (is_digits ? 'N' : name[0])) members += Members(std::string(1, category));
  }
  return members;
}

// The members of [:name:].
std::string PosixMembers(std::string_view name) {
  for (const std::string_view known : {"alpha", "upper", "lower", "alnum"}) {
    if (name == known) return Members(std::string(name));
  }
  if (name == "digit") return Members("Nd");
  if (name == "space") return Members("White_Space");
  if (name == "cntrl") return Members("Cc");
  return name == "xdigit" ? "0-9A-Fa-f" : "";
}

// The same expression for PCRE2, whose classes of characters and script names mean something else.
absl::StatusOr<std::string> Translate(std::string_view pattern) {
  const auto unsupported = [&](std::string_view what) {
    return absl::InvalidArgumentError(absl::StrCat("the pattern \"", std::string(pattern), "\" uses ",
                                                   std::string(what), ", which is not supported"));
  };
  std::string out;
  int class_depth = 0;
  // A set of characters, as a class or within one.
  const auto add = [&](const std::string& name, bool negated) -> absl::Status {
    if (class_depth == 0) {
      absl::StrAppend(&out, negated ? "[^" : "[", Members(name), "]");
      return absl::OkStatus();
    }
    const std::string members = negated ? MembersOfOthers(name) : Members(name);
    if (members.empty()) return unsupported(absl::StrCat("the negation of \\p{", name, "} within a class"));
    out += members;
    return absl::OkStatus();
  };
  for (size_t i = 0; i < pattern.size(); ++i) {
    const char c = pattern[i];
    if (c != '\\') {
      if (c == '[') {
        if (class_depth > 0 && pattern.substr(i, 2) != "[:") return unsupported("a class within a class");
        if (class_depth > 0) {
          const size_t end = pattern.find(":]", i);
          if (end == std::string_view::npos) return unsupported("[ within a class");
          const std::string_view name = pattern.substr(i + 2, end - i - 2);
          const std::string members = PosixMembers(name);
          if (members.empty()) return unsupported(absl::StrCat("[:", std::string(name), ":]"));
          out += members;
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
      // Settings and verbs, and calls of groups.
      if (class_depth == 0 && pattern.substr(i, 2) == "(*") return unsupported("(*");
      if (class_depth == 0 && pattern.substr(i, 2) == "(?") {
        size_t at = i + 2;
        const size_t called = at + (pattern.substr(at, 1) == "-" ? 1 : 0);
        if (called < pattern.size() &&
            std::string_view("0123456789+&|").find(pattern[called]) != std::string_view::npos) {
          return unsupported(pattern.substr(i, called + 1 - i));
        }
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
      case 'S':
        QUARTET_RETURN_IF_ERROR(add("White_Space", escaped == 'S'));
        break;
      case 'd':
      case 'D':
        QUARTET_RETURN_IF_ERROR(add("Nd", escaped == 'D'));
        break;
      case 'w':
      case 'W':
        if (escaped == 'W' && class_depth > 0) return unsupported("\\W within a class");
        QUARTET_RETURN_IF_ERROR(add("w", escaped == 'W'));
        break;
      case 'b':
      case 'B': {
        if (class_depth > 0) {
          out += absl::StrCat("\\", std::string(1, escaped));
          break;
        }
        const std::string word = absl::StrCat("[", Members("w"), "]");
        out += escaped == 'b' ? absl::StrCat("(?:(?<=", word, ")(?!", word, ")|(?<!", word, ")(?=", word, "))")
                              : absl::StrCat("(?:(?<=", word, ")(?=", word, ")|(?<!", word, ")(?!", word, "))");
        break;
      }
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
        QUARTET_RETURN_IF_ERROR(add(name, negated));
        i = end;
        break;
      }
      default:
        // Letters and digits that both syntaxes read alike; the rest would be guessing.
        if (std::isalnum(static_cast<unsigned char>(escaped)) &&
            std::string_view("AzZrntfvaex0").find(escaped) == std::string_view::npos) {
          return unsupported(absl::StrCat("\\", std::string(1, escaped)));
        }
        out += '\\';
        out += escaped;
    }
  }
  return out;
}

}  // namespace

RegexBudget::RegexBudget(size_t bytes)
    : steps_left_(kMoreSteps + kMoreStepsPerByte * bytes),
      allowed_(kSeconds + kSecondsPerByte * static_cast<double>(bytes)) {}

struct Regex::Impl {
  std::string pattern;
  Code code;
};

// Finds one match after the other in a text.
class Regex::Search {
 public:
  Search(const Impl& regex, std::string_view text, RegexBudget* budget)
      : regex_(regex),
        text_(text),
        budget_(*budget),
        data_(pcre2_match_data_create_from_pattern(regex.code.get(), nullptr)),
        context_(MakeContext(kStepsEach)),
        places_(std::clamp<size_t>(kPlacesTimesBytes / std::max<size_t>(text.size(), 1), 1, kMostPlaces)) {}

  // The next match from byte `at` on, which may be empty; nothing after the last.
  absl::StatusOr<std::optional<Range>> Next(size_t at) {
    while (at < text_.size()) {
      if (!InTime()) return TooCostly("time");
      pcre2_set_match_limit(context_.get(), kStepsEach);
      pcre2_set_offset_limit(context_.get(), at + places_);
      int found = Try(at, 0);
      size_t tried = at + places_;  // where it began at the latest
      // At one of these places it took more, and PCRE2 does not say at which.
      if (found == PCRE2_ERROR_MATCHLIMIT) {
        pcre2_set_offset_limit(context_.get(), PCRE2_UNSET);
        for (tried = at; (found = TryAt(tried)) == PCRE2_ERROR_NOMATCH && tried < at + places_;) {
          tried += CharBytes(text_, tried);
          if (tried >= text_.size()) break;
        }
      }
      if (found >= 0) return Group(0);
      if (found != PCRE2_ERROR_NOMATCH) return Error(found);
      // The next place that was not tried.
      at = tried;
      while (at < text_.size() && (static_cast<unsigned char>(text_[at]) & 0xC0) == 0x80) ++at;
      if (at == tried && at < text_.size()) at += CharBytes(text_, at);
    }
    return std::optional<Range>();
  }

  // Of the last match; nothing where the group has no part in it.
  std::optional<Range> Group(uint32_t number) const {
    if (number >= pcre2_get_ovector_count(data_.get())) return std::nullopt;
    const size_t* range = pcre2_get_ovector_pointer(data_.get()) + 2 * number;
    if (range[0] == PCRE2_UNSET) return std::nullopt;
    return Range(range[0], range[1]);
  }

 private:
  int Try(size_t at, uint32_t options) {
    const auto match = [&](uint32_t more) {
      return pcre2_match(regex_.code.get(), reinterpret_cast<PCRE2_SPTR>(text_.data()), text_.size(), at,
                         PCRE2_NO_UTF_CHECK | options | more, data_.get(), context_.get());
    };
    const int found = match(0);
    return found == PCRE2_ERROR_JIT_STACKLIMIT ? match(PCRE2_NO_JIT) : found;
  }

  // At this place alone, with as many more steps as it takes and there are.
  int TryAt(size_t at) {
    for (uint32_t steps = kStepsEach;; steps *= 2) {
      pcre2_set_match_limit(context_.get(), steps);
      const int found = Try(at, PCRE2_ANCHORED);
      if (found != PCRE2_ERROR_MATCHLIMIT || budget_.steps_left_ < steps || steps > UINT32_MAX / 2) return found;
      budget_.steps_left_ -= steps;
    }
  }

  bool InTime() {
    // The thread's own time takes longer to ask for than most searches do.
    const double now = Seconds(CLOCK_MONOTONIC);
    if (now < budget_.next_look_) return true;
    budget_.next_look_ = now + 0.05;
    const double used = Seconds(CLOCK_THREAD_CPUTIME_ID);
    if (budget_.end_ == 0) budget_.end_ = used + budget_.allowed_;
    return used < budget_.end_;
  }

  absl::Status Error(int error) const {
    if (error == PCRE2_ERROR_MATCHLIMIT) return TooCostly("backtracking");
    if (error == PCRE2_ERROR_DEPTHLIMIT || error == PCRE2_ERROR_HEAPLIMIT || error == PCRE2_ERROR_NOMEMORY) {
      return TooCostly("memory");
    }
    return absl::InvalidArgumentError(absl::StrCat("the pattern \"", regex_.pattern, "\" fails on a text of ",
                                                   text_.size(), " bytes: ", ErrorText(error)));
  }
  absl::Status TooCostly(std::string_view what) const {
    return absl::InvalidArgumentError(absl::StrCat("the pattern \"", regex_.pattern, "\" takes more ",
                                                   std::string(what), " on a text of ", text_.size(),
                                                   " bytes than is allowed"));
  }

  const Impl& regex_;
  const std::string_view text_;
  RegexBudget& budget_;
  const MatchData data_;
  const Context context_;
  const size_t places_;  // of one search
};

Regex::Regex(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Regex::Regex(Regex&&) noexcept = default;
Regex& Regex::operator=(Regex&&) noexcept = default;
Regex::~Regex() = default;

absl::StatusOr<Regex> Regex::Compile(std::string_view pattern) {
  if (pattern.size() > kMostPatternBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("a pattern has ", pattern.size(), " bytes; at most ", kMostPatternBytes, " are allowed"));
  }
  QUARTET_ASSIGN_OR_RETURN(const std::string translated, Translate(pattern));
  int error = 0;
  size_t offset = 0;
  auto impl = std::make_unique<Impl>();
  impl->pattern = std::string(pattern);
  impl->code = CompilePcre(translated, &error, &offset);
  if (impl->code == nullptr) {
    return absl::InvalidArgumentError(absl::StrCat("the pattern \"", impl->pattern,
                                                   "\" is not well-formed: ", ErrorText(error), " (at byte ", offset,
                                                   " of \"", translated, "\")"));
  }
  // Without JIT on this machine the interpreter serves.
  (void)pcre2_jit_compile(impl->code.get(), PCRE2_JIT_COMPLETE);
  return Regex(std::move(impl));
}

absl::StatusOr<std::vector<Regex::Range>> Regex::FindAll(std::string_view text, RegexBudget* budget) const {
  std::vector<Range> matches;
  Search search(*impl_, text, budget);
  for (size_t at = 0;;) {
    QUARTET_ASSIGN_OR_RETURN(const std::optional<Range> match, search.Next(at));
    if (!match.has_value()) return matches;
    at = match->second;
    if (match->second > match->first) {
      matches.push_back(*match);
    } else if (at < text.size()) {
      at += CharBytes(text, at);
    }
  }
}

absl::StatusOr<std::optional<Regex::Range>> Regex::FindLast(std::string_view text, RegexBudget* budget) const {
  uint32_t groups = 0;
  pcre2_pattern_info(impl_->code.get(), PCRE2_INFO_CAPTURECOUNT, &groups);
  std::optional<Range> last;
  Search search(*impl_, text, budget);
  for (size_t at = 0;;) {
    QUARTET_ASSIGN_OR_RETURN(const std::optional<Range> match, search.Next(at));
    if (!match.has_value()) return last;
    last = groups > 0 ? search.Group(1) : match;
    at = match->second;
    if (match->second == match->first && at < text.size()) at += CharBytes(text, at);
  }
}

std::vector<Regex::Range> FindLiteral(std::string_view text, std::string_view literal) {
  std::vector<Regex::Range> places;
  if (literal.empty()) return places;
  for (size_t at = text.find(literal); at != std::string_view::npos; at = text.find(literal, at + literal.size())) {
    places.emplace_back(at, at + literal.size());
  }
  return places;
}

}  // namespace quartet
