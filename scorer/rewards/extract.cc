#include "scorer/rewards/extract.h"

#include <algorithm>
#include <initializer_list>
#include <nlohmann/json.hpp>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "core/data/json.h"

namespace quartet {

using nlohmann::json;

std::string_view StripSpace(std::string_view text) {
  const absl::string_view stripped = absl::StripAsciiWhitespace(absl::string_view(text.data(), text.size()));
  return {stripped.data(), stripped.size()};
}

std::optional<std::string_view> LastTag(std::string_view text, std::string_view name) {
  const std::string open = absl::StrCat("<", std::string(name), ">"),
                    close = absl::StrCat("</", std::string(name), ">");
  const size_t at = text.rfind(open);
  if (at == std::string_view::npos) return std::nullopt;
  const std::string_view content = text.substr(at + open.size());
  const size_t end = content.find(close);
  if (end == std::string_view::npos) return std::nullopt;
  return content.substr(0, end);
}

std::vector<std::string> CodeBlocks(std::string_view text, std::initializer_list<std::string_view> languages) {
  std::vector<std::string> blocks, marked_blocks;
  std::string block;
  size_t fence = 0;  // of the block that is read, so many backquotes
  bool marked = false;
  const auto end_block = [&] {
    if (marked) marked_blocks.push_back(block);
    blocks.push_back(std::move(block));
    block.clear();
    fence = 0;
  };
  for (const absl::string_view line : absl::StrSplit(absl::string_view(text.data(), text.size()), '\n')) {
    absl::string_view mark = absl::StripAsciiWhitespace(line);
    const size_t quotes = std::min(mark.find_first_not_of('`'), mark.size());
    if (quotes >= 3 && fence == 0) {
      const std::string said = absl::AsciiStrToLower(absl::StripAsciiWhitespace(mark.substr(quotes)));
      const std::string language = said.substr(0, said.find_first_of(" \t{,:"));
      fence = quotes;
      marked = std::find(languages.begin(), languages.end(), language) != languages.end();
    } else if (quotes >= 3 && quotes >= fence) {
      end_block();
    } else if (fence > 0) {
      absl::StrAppend(&block, line, "\n");
    }
  }
  if (fence > 0) end_block();
  return marked_blocks.empty() ? blocks : marked_blocks;
}

std::optional<json> LastJsonObject(std::string_view text) {
  // Objects begin at "{" and are tried from the left, so that inner ones are not taken for answers; so many, as each
  // may reach to the end of the text.
  constexpr int kMostTries = 1000;
  std::optional<json> last;
  int tries = 0;
  for (size_t at = text.find('{'); at != std::string_view::npos && tries < kMostTries; ++tries) {
    // The braces outside of strings say where it would end.
    int depth = 0;
    bool quoted = false;
    size_t end = std::string_view::npos;
    for (size_t i = at; i < text.size() && end == std::string_view::npos; ++i) {
      const char c = text[i];
      if (quoted) {
        if (c == '\\') ++i;
        if (c == '"') quoted = false;
      } else if (c == '"') {
        quoted = true;
      } else if (c == '{') {
        ++depth;
      } else if (c == '}' && --depth == 0) {
        end = i + 1;
      }
    }
    size_t next = at + 1;
    if (end != std::string_view::npos) {
      absl::StatusOr<json> object = ParseExactJson(text.substr(at, end - at), "");
      if (object.ok() && object->is_object()) {
        last = *std::move(object);
        next = end;
      }
    }
    at = text.find('{', next);
  }
  return last;
}

const json* AtPath(const json& object, std::string_view path) {
  const json* at = &object;
  for (const absl::string_view key : absl::StrSplit(absl::string_view(path.data(), path.size()), '.')) {
    size_t place;
    if (at->is_object() && at->contains(std::string(key))) {
      at = &(*at)[std::string(key)];
    } else if (at->is_array() && absl::SimpleAtoi(key, &place) && place < at->size()) {
      at = &(*at)[place];
    } else {
      return nullptr;
    }
  }
  return at;
}

}  // namespace quartet
