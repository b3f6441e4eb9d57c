#include "core/tokenizer/pipeline.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <cstdlib>
#include <limits>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string_view>
#include <type_traits>
#include <unordered_map>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "core/base/status_macros.h"
#include "core/tokenizer/regex.h"
#include "core/tokenizer/unicode.h"

namespace quartet {
namespace {

using nlohmann::json;
using Range = std::pair<size_t, size_t>;

// ---- Reading fields ----

absl::Status StepError(const json& step, const std::string& what) {
  const auto type = step.is_object() ? step.find("type") : step.end();
  return absl::InvalidArgumentError(absl::StrCat(
      step.is_object() && type != step.end() && type->is_string() ? type->get<std::string>() + ": " : "", what));
}

absl::StatusOr<std::string> Type(const json& step) {
  if (!step.is_object()) return absl::InvalidArgumentError("is not an object");
  const auto type = step.find("type");
  if (type == step.end() || !type->is_string()) return absl::InvalidArgumentError("has no \"type\"");
  return type->get<std::string>();
}

absl::Status NotSupported(const std::string& type) {
  return absl::InvalidArgumentError(absl::StrCat("the type \"", type, "\" is not supported"));
}

absl::StatusOr<bool> Flag(const json& step, const char* name, bool fallback) {
  const auto value = step.find(name);
  if (value == step.end()) return fallback;
  if (!value->is_boolean()) return StepError(step, absl::StrCat("\"", name, "\" is not true or false"));
  return value->get<bool>();
}

absl::StatusOr<std::string> Text(const json& step, const char* name) {
  const auto value = step.find(name);
  if (value == step.end() || !value->is_string())
    return StepError(step, absl::StrCat("\"", name, "\" is not a string"));
  return value->get<std::string>();
}

absl::StatusOr<std::string> OneChar(const json& step, const char* name) {
  QUARTET_ASSIGN_OR_RETURN(std::string text, Text(step, name));
  if (text.empty() || CharBytes(text, 0) != text.size()) {
    return StepError(step, absl::StrCat("\"", name, "\" is not one character"));
  }
  return text;
}

// Finds a pattern's matches in a text: ascending, not empty. `budget` is for all texts of one step.
using Find = std::function<absl::StatusOr<std::vector<Range>>(const std::string& text, RegexBudget* budget)>;

Find FindAll(Regex regex) {
  return [regex = std::make_shared<const Regex>(std::move(regex))](const std::string& text, RegexBudget* budget) {
    return regex->FindAll(text, budget);
  };
}

// {"String": ...} or {"Regex": ...}, of which one is set.
struct Pattern {
  std::optional<std::string> literal;
  std::optional<std::string> regex;
};

absl::StatusOr<Pattern> ReadPattern(const json& step) {
  const auto pattern = step.find("pattern");
  if (pattern != step.end() && pattern->is_object() && pattern->size() == 1 && pattern->begin()->is_string()) {
    const auto& text = pattern->begin()->get_ref<const std::string&>();
    if (pattern->begin().key() == "String") return Pattern{.literal = text, .regex = {}};
    if (pattern->begin().key() == "Regex") return Pattern{.literal = {}, .regex = text};
  }
  return StepError(step, "\"pattern\" is neither {\"String\": ...} nor {\"Regex\": ...}");
}

absl::StatusOr<Find> FindPattern(const json& step) {
  QUARTET_ASSIGN_OR_RETURN(const Pattern pattern, ReadPattern(step));
  if (pattern.literal.has_value()) {
    return Find(
        [literal = *pattern.literal](const std::string& text, RegexBudget*) { return FindLiteral(text, literal); });
  }
  auto regex = Regex::Compile(*pattern.regex);
  if (!regex.ok()) return StepError(step, std::string(regex.status().message()));
  return FindAll(*std::move(regex));
}

std::string PlaceInSequence(size_t i) { return absl::StrCat("Sequence: [", i, "]: "); }

// Steps that can fail give an absl::StatusOr of what they are given, the others what they are given.
template <class Step>
constexpr bool kCanFail = requires(typename Step::result_type result) {
  result.status();
};

template <class Step>
Step InOrder(std::vector<Step> steps) {
  return Step([steps = std::move(steps)](auto value) {
    for (const Step& step : steps) value = step(std::move(value));
    return value;
  });
}

template <class Step>
Step InOrder(std::vector<Step> steps) requires kCanFail<Step> {
  return Step([steps = std::move(steps)](auto value) -> typename Step::result_type {
    for (size_t i = 0; i < steps.size(); ++i) {
      auto next = steps[i](std::move(value));
      if (!next.ok()) {
        return absl::InvalidArgumentError(absl::StrCat(PlaceInSequence(i), std::string(next.status().message())));
      }
      value = *std::move(next);
    }
    return value;
  });
}

// A "Sequence" of steps: `make` for each of `step[name]`, in order.
template <class Step>
absl::StatusOr<Step> Chain(const json& step, const char* name, absl::StatusOr<Step> (*make)(const json&)) {
  const auto list = step.find(name);
  if (list == step.end() || !list->is_array()) return StepError(step, absl::StrCat("\"", name, "\" is not a list"));
  std::vector<Step> steps;
  for (size_t i = 0; i < list->size(); ++i) {
    auto made = make((*list)[i]);
    if (!made.ok()) {
      return absl::InvalidArgumentError(absl::StrCat(PlaceInSequence(i), std::string(made.status().message())));
    }
    steps.push_back(*std::move(made));
  }
  return InOrder(std::move(steps));
}

// ---- Cutting text ----

enum class Behavior { kRemoved, kIsolated, kMergedWithPrevious, kMergedWithNext, kContiguous };

absl::StatusOr<Behavior> ReadBehavior(const json& step) {
  QUARTET_ASSIGN_OR_RETURN(const std::string name, Text(step, "behavior"));
  if (name == "Removed") return Behavior::kRemoved;
  if (name == "Isolated") return Behavior::kIsolated;
  if (name == "MergedWithPrevious") return Behavior::kMergedWithPrevious;
  if (name == "MergedWithNext") return Behavior::kMergedWithNext;
  if (name == "Contiguous") return Behavior::kContiguous;
  return StepError(step, absl::StrCat("the behavior \"", name, "\" is not supported"));
}

struct Cut {
  Range range;
  bool matches;
};

std::vector<Cut> MergeCuts(const std::vector<Cut>& cuts, Behavior behavior) {
  std::vector<Cut> merged;
  const auto add = [&](const Cut& cut, bool joins) {
    if (joins && !merged.empty()) {
      merged.back().range = {std::min(merged.back().range.first, cut.range.first),
                             std::max(merged.back().range.second, cut.range.second)};
    } else {
      merged.push_back(cut);
    }
  };
  bool previous = false;
  switch (behavior) {
    case Behavior::kIsolated:
      return cuts;
    case Behavior::kRemoved:
      for (const Cut& cut : cuts) {
        if (!cut.matches) merged.push_back(cut);
      }
      return merged;
    case Behavior::kContiguous:
      for (size_t i = 0; i < cuts.size(); ++i) add(cuts[i], i > 0 && cuts[i].matches == cuts[i - 1].matches);
      return merged;
    case Behavior::kMergedWithPrevious:
      for (const Cut& cut : cuts) {
        add(cut, cut.matches && !previous);
        previous = cut.matches;
      }
      return merged;
    case Behavior::kMergedWithNext:
      for (auto cut = cuts.rbegin(); cut != cuts.rend(); ++cut) {
        add(*cut, cut->matches && !previous);
        previous = cut->matches;
      }
      std::reverse(merged.begin(), merged.end());
      return merged;
  }
  return merged;
}

// Cuts each piece at the matches that `find` gives; `type` is the step's.
absl::StatusOr<std::vector<Piece>> Split(const std::vector<Piece>& pieces, std::string_view type, const Find& find,
                                         Behavior behavior, bool invert) {
  size_t bytes = 0;
  for (const Piece& piece : pieces) bytes += piece.text.size();
  RegexBudget budget(bytes);
  std::vector<Piece> parts;
  for (const Piece& piece : pieces) {
    const absl::StatusOr<std::vector<Range>> matches = find(piece.text, &budget);
    if (!matches.ok()) {
      return absl::InvalidArgumentError(absl::StrCat(std::string(type), ": ", std::string(matches.status().message())));
    }
    std::vector<Cut> cuts;
    size_t at = 0;
    for (const Range& match : *matches) {
      if (match.first > at) cuts.push_back({{at, match.first}, invert});
      cuts.push_back({match, !invert});
      at = match.second;
    }
    if (at < piece.text.size()) cuts.push_back({{at, piece.text.size()}, invert});
    for (const Cut& cut : MergeCuts(cuts, behavior)) {
      const auto& [begin, end] = cut.range;
      parts.push_back({piece.text.substr(begin, end - begin), piece.at_start && begin == 0});
    }
  }
  return parts;
}

// Each character for which `is` holds, as a match of its own.
template <class Predicate>
Find EachChar(Predicate is) {
  return [is](const std::string& text, RegexBudget*) {
    std::vector<Range> matches;
    for (size_t at = 0, size; at < text.size(); at += size) {
      size = CharBytes(text, at);
      if (is(CharAt(text, at))) matches.emplace_back(at, at + size);
    }
    return matches;
  };
}

std::string Replace(const std::string& text, const std::vector<Range>& matches, const std::string& content) {
  std::string replaced;
  size_t at = 0;
  for (const auto& [begin, end] : matches) {
    replaced.append(text, at, begin - at).append(content);
    at = end;
  }
  return replaced.append(text, at);
}

std::string ReplaceLiteral(const std::string& text, const std::string& literal, const std::string& content) {
  return Replace(text, FindLiteral(text, literal), content);
}

// ---- GPT-2's bytes as characters ----

// Printable characters stand for themselves; the other bytes, in ascending order, for U+0100 and on.
struct ByteAlphabet {
  ByteAlphabet() {
    char32_t next = 0x100;
    for (int byte = 0; byte < 256; ++byte) {
      const bool printable = (byte >= '!' && byte <= '~') || (byte >= 0xa1 && byte <= 0xac) || byte >= 0xae;
      const char32_t codepoint = printable ? byte : next++;
      AppendUtf8(codepoint, &chars[byte]);
      bytes.emplace(codepoint, static_cast<char>(byte));
    }
  }
  std::array<std::string, 256> chars;
  std::unordered_map<char32_t, char> bytes;
};

const ByteAlphabet& Alphabet() {
  static const auto* alphabet = new ByteAlphabet;
  return *alphabet;
}

std::string ToByteChars(const std::string& text) {
  std::string mapped;
  mapped.reserve(text.size() * 2);
  for (const char byte : text) mapped += Alphabet().chars[static_cast<unsigned char>(byte)];
  return mapped;
}

// A token that is not made of the alphabet alone stays as it is.
std::string FromByteChars(const std::string& token) {
  std::string bytes;
  for (size_t at = 0; at < token.size(); at += CharBytes(token, at)) {
    const auto found = Alphabet().bytes.find(CharAt(token, at));
    if (found == Alphabet().bytes.end()) return token;
    bytes += found->second;
  }
  return bytes;
}

constexpr std::string_view kGpt2Pattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

// \w+|[^\w\s]+ where the joiners are word characters too.
constexpr std::string_view kWordPattern = R"([\w\x{200c}\x{200d}]+|[^\w\s\x{200c}\x{200d}]+)";

// ---- Pre-tokenizers ----

absl::StatusOr<PreTokenizer> MakeByteLevel(const json& step) {
  QUARTET_ASSIGN_OR_RETURN(const bool add_prefix_space, Flag(step, "add_prefix_space", true));
  QUARTET_ASSIGN_OR_RETURN(const bool use_regex, Flag(step, "use_regex", true));
  QUARTET_ASSIGN_OR_RETURN(Regex compiled, Regex::Compile(kGpt2Pattern));
  return PreTokenizer(
      [=, find = FindAll(std::move(compiled))](std::vector<Piece> pieces) -> absl::StatusOr<std::vector<Piece>> {
        if (add_prefix_space) {
          for (Piece& piece : pieces) {
            if (piece.text[0] != ' ') piece.text.insert(0, " ");
          }
        }
        if (use_regex) {
          QUARTET_ASSIGN_OR_RETURN(pieces, Split(pieces, "ByteLevel", find, Behavior::kIsolated, false));
        }
        for (Piece& piece : pieces) piece.text = ToByteChars(piece.text);
        return pieces;
      });
}

enum class Prepend { kAlways, kFirst, kNever };

// prepend_scheme, or add_prefix_space in older files.
absl::StatusOr<Prepend> ReadPrepend(const json& step) {
  if (!step.contains("prepend_scheme")) {
    QUARTET_ASSIGN_OR_RETURN(const bool add, Flag(step, "add_prefix_space", true));
    return add ? Prepend::kAlways : Prepend::kNever;
  }
  QUARTET_ASSIGN_OR_RETURN(const std::string scheme, Text(step, "prepend_scheme"));
  if (scheme == "always") return Prepend::kAlways;
  if (scheme == "first") return Prepend::kFirst;
  if (scheme == "never") return Prepend::kNever;
  return StepError(step, absl::StrCat("the prepend_scheme \"", scheme, "\" is not supported"));
}

absl::StatusOr<PreTokenizer> MakeMetaspace(const json& step) {
  QUARTET_ASSIGN_OR_RETURN(const std::string replacement, OneChar(step, "replacement"));
  QUARTET_ASSIGN_OR_RETURN(const Prepend prepend, ReadPrepend(step));
  QUARTET_ASSIGN_OR_RETURN(const bool split, Flag(step, "split", true));
  const Find mark = [replacement](const std::string& text, RegexBudget*) { return FindLiteral(text, replacement); };
  return PreTokenizer([=](std::vector<Piece> pieces) -> absl::StatusOr<std::vector<Piece>> {
    for (Piece& piece : pieces) {
      piece.text = ReplaceLiteral(piece.text, " ", replacement);
      const bool wants = prepend == Prepend::kAlways || (prepend == Prepend::kFirst && piece.at_start);
      if (wants && piece.text.compare(0, replacement.size(), replacement) != 0) piece.text.insert(0, replacement);
    }
    if (!split) return pieces;
    return Split(pieces, "Metaspace", mark, Behavior::kMergedWithNext, false);
  });
}

absl::StatusOr<PreTokenizer> MakeSplit(const json& step) {
  QUARTET_ASSIGN_OR_RETURN(const Find find, FindPattern(step));
  QUARTET_ASSIGN_OR_RETURN(const Behavior behavior, ReadBehavior(step));
  QUARTET_ASSIGN_OR_RETURN(const bool invert, Flag(step, "invert", false));
  return PreTokenizer([=](const std::vector<Piece>& pieces) { return Split(pieces, "Split", find, behavior, invert); });
}

// ---- Decoders ----

// Runs of <0xNN> become the text that their bytes spell, or one U+FFFD a byte.
std::vector<std::string> JoinFallbackBytes(std::vector<std::string> tokens) {
  std::vector<std::string> joined;
  std::string bytes;
  const auto flush = [&] {
    if (bytes.empty()) return;
    if (IsValidUtf8(bytes)) {
      joined.push_back(bytes);
    } else {
      joined.insert(joined.end(), bytes.size(), "\xef\xbf\xbd");
    }
    bytes.clear();
  };
  for (std::string& token : tokens) {
    if (token.size() == 6 && token.compare(0, 3, "<0x") == 0 && token[5] == '>' &&
        std::isxdigit(static_cast<unsigned char>(token[3])) && std::isxdigit(static_cast<unsigned char>(token[4]))) {
      bytes += static_cast<char>(std::strtol(token.substr(3, 2).c_str(), nullptr, 16));
    } else {
      flush();
      joined.push_back(std::move(token));
    }
  }
  flush();
  return joined;
}

absl::StatusOr<TokenDecoder> MakeStrip(const json& step) {
  QUARTET_ASSIGN_OR_RETURN(const std::string content, OneChar(step, "content"));
  size_t limits[2];
  const char* names[2] = {"start", "stop"};
  for (int i = 0; i < 2; ++i) {
    const auto value = step.find(names[i]);
    if (value == step.end() || !value->is_number_unsigned()) {
      return StepError(step, absl::StrCat("\"", names[i], "\" is not a count"));
    }
    limits[i] = value->get<size_t>();
  }
  return TokenDecoder([content, start = limits[0], stop = limits[1]](std::vector<std::string> tokens) {
    const size_t size = content.size();
    for (std::string& token : tokens) {
      size_t begin = 0, end = token.size();
      for (size_t i = 0; i < start && token.compare(begin, size, content) == 0; ++i) begin += size;
      for (size_t i = 0; i < stop && end >= begin + size && token.compare(end - size, size, content) == 0; ++i) {
        end -= size;
      }
      token = token.substr(begin, end - begin);
    }
    return tokens;
  });
}

absl::StatusOr<TokenDecoder> MakeMetaspaceDecoder(const json& step) {
  QUARTET_ASSIGN_OR_RETURN(const std::string replacement, OneChar(step, "replacement"));
  QUARTET_ASSIGN_OR_RETURN(const Prepend prepend, ReadPrepend(step));
  return TokenDecoder([=](std::vector<std::string> tokens) {
    for (size_t i = 0; i < tokens.size(); ++i) {
      tokens[i] = ReplaceLiteral(tokens[i], replacement, i == 0 && prepend != Prepend::kNever ? "" : " ");
    }
    return tokens;
  });
}

absl::StatusOr<TokenDecoder> MakeBpeDecoder(const json& step) {
  QUARTET_ASSIGN_OR_RETURN(const std::string suffix, Text(step, "suffix"));
  return TokenDecoder([=](std::vector<std::string> tokens) {
    for (size_t i = 0; i < tokens.size(); ++i)
      tokens[i] = ReplaceLiteral(tokens[i], suffix, i + 1 < tokens.size() ? " " : "");
    return tokens;
  });
}

// ---- Post-processors ----

absl::StatusOr<int32_t> TokenId(const json& step, const json& value) {
  if (!value.is_number_unsigned() || value.get<uint64_t>() > std::numeric_limits<int32_t>::max()) {
    return StepError(step, absl::StrCat(value.dump(), " is not a token id"));
  }
  return value.get<int32_t>();
}

PostProcessor Surround(std::vector<int32_t> before, std::vector<int32_t> after) {
  return [before = std::move(before), after = std::move(after)](std::vector<int32_t> ids) {
    ids.insert(ids.begin(), before.begin(), before.end());
    ids.insert(ids.end(), after.begin(), after.end());
    return ids;
  };
}

absl::StatusOr<PostProcessor> MakeTemplate(const json& step) {
  const auto single = step.find("single");
  if (single == step.end() || !single->is_array()) return StepError(step, "\"single\" is not a list");
  const auto specials = step.find("special_tokens");
  std::vector<int32_t> around[2];
  int side = 0;
  for (const json& part : *single) {
    const bool known = part.is_object() && part.size() == 1 && part.begin()->is_object();
    if (!known || !part.begin()->contains("id") || !(*part.begin())["id"].is_string()) {
      return StepError(step, absl::StrCat("the part ", part.dump(), " of \"single\" is not well-formed"));
    }
    const auto& name = (*part.begin())["id"].get_ref<const std::string&>();
    if (part.begin().key() == "Sequence" && name == "A" && side == 0) {
      side = 1;
      continue;
    }
    if (part.begin().key() != "SpecialToken") {
      return StepError(step, absl::StrCat("the part ", part.dump(), " of \"single\" is not supported"));
    }
    const json* ids = nullptr;
    if (specials != step.end() && specials->is_object()) {
      const auto special = specials->find(name);
      if (special != specials->end() && special->is_object() && special->contains("ids")) ids = &(*special)["ids"];
    }
    if (ids == nullptr || !ids->is_array()) {
      return StepError(step, absl::StrCat("\"special_tokens\" does not give the ids of \"", name, "\""));
    }
    for (const json& value : *ids) {
      QUARTET_ASSIGN_OR_RETURN(const int32_t token, TokenId(step, value));
      around[side].push_back(token);
    }
  }
  if (side == 0) return StepError(step, "\"single\" does not hold the sequence A");
  return Surround(around[0], around[1]);
}

// "cls" and "sep", each [token, id].
absl::StatusOr<PostProcessor> MakeBertProcessing(const json& step) {
  std::vector<int32_t> around[2];
  const char* names[2] = {"cls", "sep"};
  for (int i = 0; i < 2; ++i) {
    const auto pair = step.find(names[i]);
    if (pair == step.end() || !pair->is_array() || pair->size() != 2) {
      return StepError(step, absl::StrCat("\"", names[i], "\" is not a pair of token and id"));
    }
    QUARTET_ASSIGN_OR_RETURN(const int32_t token, TokenId(step, (*pair)[1]));
    around[i].push_back(token);
  }
  return Surround(around[0], around[1]);
}

}  // namespace

absl::StatusOr<Normalizer> MakeNormalizer(const json& step) {
  if (step.is_null()) return Normalizer([](std::string text) { return text; });
  QUARTET_ASSIGN_OR_RETURN(const std::string type, Type(step));
  if (type == "Sequence") return Chain<Normalizer>(step, "normalizers", &MakeNormalizer);
  constexpr std::pair<std::string_view, NormalForm> kForms[] = {
      {"NFC", NormalForm::kNfc}, {"NFD", NormalForm::kNfd}, {"NFKC", NormalForm::kNfkc}, {"NFKD", NormalForm::kNfkd}};
  for (const auto& [name, form] : kForms) {
    if (type == name) return Normalizer([form = form](const std::string& text) { return Normalize(text, form); });
  }
  if (type == "Lowercase") return Normalizer([](const std::string& text) { return Lowercase(text); });
  if (type == "Prepend") {
    QUARTET_ASSIGN_OR_RETURN(const std::string prefix, Text(step, "prepend"));
    return Normalizer([prefix](const std::string& text) { return text.empty() ? text : prefix + text; });
  }
  if (type == "Replace") {
    QUARTET_ASSIGN_OR_RETURN(const Find find, FindPattern(step));
    QUARTET_ASSIGN_OR_RETURN(const std::string content, Text(step, "content"));
    return Normalizer([=](const std::string& text) -> absl::StatusOr<std::string> {
      RegexBudget budget(text.size());
      const absl::StatusOr<std::vector<Range>> matches = find(text, &budget);
      if (!matches.ok()) {
        return absl::InvalidArgumentError(absl::StrCat("Replace: ", std::string(matches.status().message())));
      }
      return Replace(text, *matches, content);
    });
  }
  return NotSupported(type);
}

absl::StatusOr<PreTokenizer> MakePreTokenizer(const json& step) {
  if (step.is_null()) return PreTokenizer([](std::vector<Piece> pieces) { return pieces; });
  QUARTET_ASSIGN_OR_RETURN(const std::string type, Type(step));
  if (type == "Sequence") return Chain<PreTokenizer>(step, "pretokenizers", &MakePreTokenizer);
  if (type == "ByteLevel") return MakeByteLevel(step);
  if (type == "Split") return MakeSplit(step);
  if (type == "Metaspace") return MakeMetaspace(step);
  if (type == "Digits") {
    QUARTET_ASSIGN_OR_RETURN(const bool individual, Flag(step, "individual_digits", false));
    return PreTokenizer([individual](const std::vector<Piece>& pieces) {
      return Split(pieces, "Digits", EachChar(IsNumeric), individual ? Behavior::kIsolated : Behavior::kContiguous,
                   false);
    });
  }
  if (type == "Punctuation") {
    Behavior behavior = Behavior::kIsolated;
    if (step.contains("behavior")) {
      QUARTET_ASSIGN_OR_RETURN(behavior, ReadBehavior(step));
    }
    return PreTokenizer([behavior](const std::vector<Piece>& pieces) {
      return Split(pieces, "Punctuation", EachChar(IsPunctuation), behavior, false);
    });
  }
  if (type == "WhitespaceSplit") {
    return PreTokenizer([](const std::vector<Piece>& pieces) {
      return Split(pieces, "WhitespaceSplit", EachChar(IsWhiteSpace), Behavior::kRemoved, false);
    });
  }
  if (type == "Whitespace") {
    QUARTET_ASSIGN_OR_RETURN(Regex compiled, Regex::Compile(kWordPattern));
    return PreTokenizer([find = FindAll(std::move(compiled))](const std::vector<Piece>& pieces) {
      return Split(pieces, "Whitespace", find, Behavior::kRemoved, true);
    });
  }
  return NotSupported(type);
}

absl::StatusOr<PostProcessor> MakePostProcessor(const json& step) {
  if (step.is_null()) return Surround({}, {});
  QUARTET_ASSIGN_OR_RETURN(const std::string type, Type(step));
  if (type == "Sequence") return Chain<PostProcessor>(step, "processors", &MakePostProcessor);
  if (type == "ByteLevel") return Surround({}, {});  // it trims offsets, which nobody asks for here
  if (type == "TemplateProcessing") return MakeTemplate(step);
  if (type == "BertProcessing" || type == "RobertaProcessing") return MakeBertProcessing(step);
  return NotSupported(type);
}

absl::StatusOr<TokenDecoder> MakeTokenDecoder(const json& step) {
  if (step.is_null()) {
    return TokenDecoder([](std::vector<std::string> tokens) {
      for (size_t i = 1; i < tokens.size(); ++i) tokens[i].insert(0, " ");
      return tokens;
    });
  }
  QUARTET_ASSIGN_OR_RETURN(const std::string type, Type(step));
  if (type == "Sequence") return Chain<TokenDecoder>(step, "decoders", &MakeTokenDecoder);
  if (type == "ByteLevel") {
    return TokenDecoder([](const std::vector<std::string>& tokens) {
      std::string bytes;
      for (const std::string& token : tokens) bytes += FromByteChars(token);
      return std::vector<std::string>{ReplaceInvalidUtf8(bytes)};
    });
  }
  if (type == "ByteFallback") return TokenDecoder(&JoinFallbackBytes);
  if (type == "Fuse") {
    return TokenDecoder([](const std::vector<std::string>& tokens) {
      std::string joined;
      for (const std::string& token : tokens) joined += token;
      return std::vector<std::string>{joined};
    });
  }
  if (type == "Replace") {
    QUARTET_ASSIGN_OR_RETURN(const Pattern pattern, ReadPattern(step));
    if (!pattern.literal.has_value()) return StepError(step, "a \"Regex\" is not supported in a decoder");
    QUARTET_ASSIGN_OR_RETURN(const std::string content, Text(step, "content"));
    return TokenDecoder([literal = *pattern.literal, content](std::vector<std::string> tokens) {
      for (std::string& token : tokens) token = ReplaceLiteral(token, literal, content);
      return tokens;
    });
  }
  if (type == "Strip") return MakeStrip(step);
  if (type == "Metaspace") return MakeMetaspaceDecoder(step);
  if (type == "BPEDecoder") return MakeBpeDecoder(step);
  return NotSupported(type);
}

}  // namespace quartet
