#include "core/rewards/extract.h"

#include <algorithm>
#include <initializer_list>
#include <nlohmann/json.hpp>
#include <span>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
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

namespace {

// A run of three or more backquotes or tildes.
struct Fence {
  char mark = 0;
  size_t size = 0, column = 0;
  absl::string_view before, behind;  // of its line, without white space around them
};

std::optional<Fence> FenceAt(absl::string_view line, size_t column) {
  const char mark = column < line.size() ? line[column] : 0;
  if (mark != '`' && mark != '~') return std::nullopt;
  const size_t end = std::min(line.find_first_not_of(mark, column), line.size());
  if (end - column < 3) return std::nullopt;
  return Fence{mark, end - column, column, absl::StripAsciiWhitespace(line.substr(0, column)),
               absl::StripAsciiWhitespace(line.substr(end))};
}

size_t Indentation(absl::string_view line) { return std::min(line.find_first_not_of(" \t"), line.size()); }

// One that begins the line with tildes; else the last one of backquotes, where the line has an odd number of them: two
// are code in a sentence.
std::optional<Fence> UnpairedFence(absl::string_view line) {
  std::optional<Fence> last = FenceAt(line, Indentation(line));
  if (last.has_value() && last->mark == '~') return last;
  int count = 0;
  for (size_t at = line.find("```"); at != absl::string_view::npos; at = line.find("```", at + last->size)) {
    last = FenceAt(line, at);
    ++count;
  }
  return count % 2 == 0 ? std::nullopt : last;
}

// The fence that opens a block on this line. Behind one of tildes, or one behind text, only a word may follow.
std::optional<Fence> OpeningFence(absl::string_view line) {
  const std::optional<Fence> fence = UnpairedFence(line);
  if (!fence.has_value() || absl::StrContains(fence->behind, '`')) return std::nullopt;
  const bool is_word = std::all_of(fence->behind.begin(), fence->behind.end(), [](char c) {
    return absl::ascii_isalnum(static_cast<unsigned char>(c)) || absl::StrContains("_+#-", c);
  });
  if (!is_word && (fence->mark == '~' || !fence->before.empty())) return std::nullopt;
  return fence;
}

// Takes up to `most` marks of a quotation ("> ") off the line; returns how many.
size_t TakeQuotationMarks(absl::string_view* line, size_t most) {
  size_t taken = 0;
  for (; taken < most; ++taken) {
    const size_t mark = line->find_first_not_of(' ');
    if (mark == absl::string_view::npos || (*line)[mark] != '>') break;
    line->remove_prefix(mark + 1);
    absl::ConsumePrefix(line, " ");
  }
  return taken;
}

// Reads Python line by line: whether a text in triple quotes is open at the end, and by which quotes.
class TripleQuotes {
 public:
  void Read(absl::string_view line) {
    for (size_t at = 0; at < line.size(); ++at) {
      const char c = line[at];
      if (c == '\\') {
        ++at;
      } else if (!open_.empty()) {
        if (!absl::StartsWith(line.substr(at), open_)) continue;
        open_ = {};
        at += 2;
      } else if (c == '#') {
        return;
      } else if (c == '"' || c == '\'') {
        const absl::string_view triple = c == '"' ? "\"\"\"" : "'''";
        if (absl::StartsWith(line.substr(at), triple)) {
          open_ = triple;
          at += 2;
        } else {  // ends in its line
          for (++at; at < line.size() && line[at] != c; ++at) at += line[at] == '\\';
        }
      }
    }
  }
  absl::string_view open() const { return open_; }  // "": none is

 private:
  absl::string_view open_;
};

bool IsFenceOf(const Fence& open, absl::string_view line) {
  const std::optional<Fence> own = FenceAt(line, Indentation(line));
  return own.has_value() && own->mark == open.mark && own->size >= open.size;
}

// Of a fence in the first of `lines` that is as deep as the block's, in a text that `quotes` open: how many lines to go
// to the one that is its pair, where the text ends behind that and before the next fence. 0: the first is not in the
// text, which nothing closes.
size_t LinesToPair(std::span<const absl::string_view> lines, const Fence& open, absl::string_view quotes) {
  size_t pair = 1;
  while (pair < lines.size() && !IsFenceOf(open, lines[pair])) ++pair;
  if (pair == lines.size() || !FenceAt(lines[pair], Indentation(lines[pair]))->behind.empty()) return 0;
  for (size_t at = pair + 1; at < lines.size() && !IsFenceOf(open, lines[at]); ++at) {
    if (absl::StrContains(lines[at], quotes)) return pair;
  }
  return 0;
}

// A block that is read.
struct Block {
  Block(const Fence& fence, size_t quotation) : fence(fence), quotation(quotation) {}

  // Whether `line`, the first of `lines` without marks of quotations and a fence as the block's, is part of a text in
  // triple quotes.
  bool HasInText(std::span<const absl::string_view> lines, absl::string_view line) {
    if (lines.size() == pair) return true;
    if (quotes.open().empty()) return false;
    if (Indentation(line) > (fence.before.empty() ? fence.column : 0)) return true;
    const size_t to_pair = quotation > 0 ? 0 : LinesToPair(lines, fence, quotes.open());
    pair = lines.size() - to_pair;
    return to_pair > 0;
  }

  void Take(absl::string_view line) {
    const size_t depth = Indentation(line);
    if (!indent.has_value() && depth < line.size()) indent = std::min(depth, fence.column);
    absl::StrAppend(&code, line.substr(std::min(depth, indent.value_or(0))), "\n");
    quotes.Read(line);
    const std::optional<Fence> closing = UnpairedFence(line);
    if (end == std::string::npos && closing.has_value() && closing->mark == fence.mark && closing->size >= fence.size &&
        closing->behind.empty() && !closing->before.empty()) {
      end = code.size() - 1 - (line.size() - closing->column);
    }
  }

  void EndBehindCode() {
    if (end != std::string::npos) code.replace(end, std::string::npos, "\n");
  }

  const Fence fence;
  const size_t quotation;  // how deep in quotations it stands
  std::string code;
  size_t end = std::string::npos;  // of `code`, where a fence behind code would close it
  std::optional<size_t> indent;    // what its lines lose: that of its first one, as deep as its fence at most
  TripleQuotes quotes;
  size_t pair = 0;  // how many lines are left at a fence that is part of a text
};

}  // namespace

std::vector<std::string> CodeBlocks(std::string_view text, std::initializer_list<std::string_view> languages) {
  std::vector<std::string> blocks, marked_blocks;
  const auto is_marked = [&](const Fence& fence) {
    const std::string said = absl::AsciiStrToLower(fence.behind);
    return std::find(languages.begin(), languages.end(), said.substr(0, said.find_first_of(" \t{,:"))) !=
           languages.end();
  };
  std::optional<Block> open;
  const auto end_block = [&](bool behind_code) {
    if (behind_code) open->EndBehindCode();
    if (is_marked(open->fence)) marked_blocks.push_back(open->code);
    blocks.push_back(std::move(open->code));
    open.reset();
  };
  const std::vector<absl::string_view> lines = absl::StrSplit(absl::string_view(text.data(), text.size()), '\n');
  for (size_t i = 0; i < lines.size(); ++i) {
    absl::string_view line = lines[i];
    // A quotation's end is that of its block.
    if (open.has_value() && TakeQuotationMarks(&line, open->quotation) == 0 && open->quotation > 0) end_block(true);
    const size_t quotation = open.has_value() ? open->quotation : TakeQuotationMarks(&line, line.size());
    const std::optional<Fence> opening = OpeningFence(line);
    if (!open.has_value()) {
      if (opening.has_value()) open.emplace(*opening, quotation);
    } else if (!IsFenceOf(open->fence, line) || open->HasInText(std::span(lines).subspan(i), line)) {
      open->Take(line);
    } else if (opening.has_value() && is_marked(*opening)) {
      end_block(true);
      open.emplace(*opening, quotation);
    } else {
      end_block(false);
    }
  }
  if (open.has_value()) end_block(true);
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
