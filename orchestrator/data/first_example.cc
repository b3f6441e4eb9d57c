#include "orchestrator/data/first_example.h"

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"

namespace quartet {
namespace {

// Characters, ids and parts that are shown of each end.
constexpr size_t kCharacters = 60;
constexpr size_t kIds = 6;
constexpr size_t kParts = 3;

// Each character (a code point) by itself, as it is shown.
std::vector<std::string> Characters(const std::string& text) {
  std::vector<std::string> characters;
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if ((byte & 0xC0) == 0x80 && !characters.empty()) {
      characters.back() += c;
    } else if (c == '\n') {
      characters.emplace_back("\\n");
    } else if (c == '\t') {
      characters.emplace_back("\\t");
    } else if (c == '\r') {
      characters.emplace_back("\\r");
    } else if (c == '\\' || c == '"') {
      characters.push_back({'\\', c});
    } else if (byte < 0x20 || byte == 0x7F) {
      characters.push_back(absl::StrFormat("\\x%02x", byte));
    } else {
      characters.emplace_back(1, c);
    }
  }
  return characters;
}

// All items, or the first and last `count` of them.
template <typename Item>
std::string Shortened(const std::vector<Item>& items, size_t count, const char* separator) {
  if (items.size() <= 2 * count + 1) return absl::StrJoin(items, separator);
  const auto ends = static_cast<int64_t>(count);
  return absl::StrCat(absl::StrJoin(items.begin(), items.begin() + ends, separator), " ... ",
                      absl::StrJoin(items.end() - ends, items.end(), separator));
}

std::string Describe(const std::string& label, const std::vector<int32_t>& ids, const Tokenizer& tokenizer) {
  const std::string text = tokenizer.DecodeUncleaned(ids, /*skip_special_tokens=*/false);
  return absl::StrCat("\n  ", label, "\"", Shortened(Characters(text), kCharacters, ""), "\"\n  ",
                      std::string(label.size(), ' '), "ids ", Shortened(ids, kIds, " "));
}

std::string DescribeParts(const std::string& what, const std::string& learned, const TokenSequence& example,
                          const Tokenizer& tokenizer) {
  struct Part {
    bool trained;
    std::vector<int32_t> ids;
  };
  std::vector<Part> parts;
  size_t trained = 0;
  for (int i = 0; i < example.ids_size(); ++i) {
    if (parts.empty() || parts.back().trained != example.action_mask(i)) parts.push_back({example.action_mask(i), {}});
    parts.back().ids.push_back(example.ids(i));
    trained += parts.back().trained;
  }
  std::string text = absl::StrCat(what, ", as the model reads it: ", example.ids_size(), " tokens, of which ", trained,
                                  " are ", learned);
  for (size_t i = 0; i < parts.size(); ++i) {
    if (i >= kParts && i + kParts < parts.size()) {
      if (i == kParts) absl::StrAppend(&text, "\n  ... ", parts.size() - 2 * kParts, " more parts ...");
      continue;
    }
    absl::StrAppend(&text, Describe(parts[i].trained ? "trained " : "read    ", parts[i].ids, tokenizer));
  }
  return text;
}

}  // namespace

std::string DescribePrompt(const PromptRecord& prompt, const Tokenizer& tokenizer) {
  return absl::StrCat("first prompt, as the model reads it: ", prompt.ids.size(), " tokens",
                      Describe("", prompt.ids, tokenizer));
}

std::string DescribeExample(const TokenSequence& example, const Tokenizer& tokenizer) {
  return DescribeParts("first example", "trained on", example, tokenizer);
}

std::string DescribePair(const TokenSequence& chosen, const TokenSequence& rejected, const Tokenizer& tokenizer) {
  return absl::StrCat(DescribeParts("first pair, chosen", "the answer", chosen, tokenizer), "\n",
                      DescribeParts("first pair, rejected", "the answer", rejected, tokenizer));
}

}  // namespace quartet
