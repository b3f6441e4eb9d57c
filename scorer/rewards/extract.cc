#include "scorer/rewards/extract.h"

#include <algorithm>
#include <cctype>
#include <initializer_list>
#include <nlohmann/json.hpp>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "core/answer_extraction/boxed.h"
#include "core/data/json.h"

namespace quartet {

using nlohmann::json;

std::string_view StripSpace(std::string_view text) {
  const absl::string_view stripped = absl::StripAsciiWhitespace(absl::string_view(text.data(), text.size()));
  return {stripped.data(), stripped.size()};
}

namespace {

bool IsWord(char c) { return absl::ascii_isalnum(static_cast<unsigned char>(c)) || c == '_' || (c & 0x80) != 0; }

// The letter at `at`, where it stands alone.
std::optional<char> LoneLetter(std::string_view text, size_t at, std::string_view letters) {
  const char letter = text[at];
  if (letters.find(letter) == std::string_view::npos) return std::nullopt;
  if ((at > 0 && (IsWord(text[at - 1]) || text[at - 1] == '\'')) ||
      (at + 1 < text.size() && (IsWord(text[at + 1]) || text[at + 1] == '\''))) {
    return std::nullopt;
  }
  return letter;
}

// Whether the letter at `at`, which stands alone, is an article or a pronoun: "A total of", "I think".
bool IsWordAlone(std::string_view text, size_t at) {
  if ((text[at] != 'A' && text[at] != 'I') || at + 2 >= text.size() || text[at + 1] != ' ' ||
      !absl::ascii_islower(static_cast<unsigned char>(text[at + 2]))) {
    return false;
  }
  const std::string_view next = text.substr(at + 2);
  for (const std::string_view word : {"is", "and", "or", "as", "but", "because", "since", "too"}) {
    if (next.substr(0, word.size()) == word && (next.size() == word.size() || !IsWord(next[word.size()]))) return false;
  }
  return true;
}

// Whether the letter at `at` is one of several: "B or D", "(B), (C)".
bool IsOneOfSeveral(std::string_view text, size_t at, std::string_view letters) {
  size_t i = at + 1;
  const auto skip = [&](std::string_view any) {
    while (i < text.size() && any.find(text[i]) != std::string_view::npos) ++i;
  };
  skip(")]* ");
  bool joins = i < text.size() && (text[i] == ',' || text[i] == '/' || text[i] == '&');
  skip(",/& ");
  for (const std::string_view word : {"and ", "or "}) {
    if (text.substr(i, word.size()) != word) continue;
    joins = true;
    i += word.size();
  }
  skip(" ([*");
  return joins && i < text.size() && text[i] != text[at] && LoneLetter(text, i, letters).has_value() &&
         !IsWordAlone(text, i);
}

// Whether the text denies the letter at `at`: "not A", "A is wrong".
bool IsDenied(std::string_view text, size_t at) {
  const std::string_view before = text.substr(0, text.find_last_not_of(" ([*", at == 0 ? 0 : at - 1) + 1);
  if (before.ends_with(" not") || before.ends_with("n't")) return true;
  std::string_view behind = text.substr(at + 1);
  while (!behind.empty() && std::string_view(")]*").find(behind.front()) != std::string_view::npos) {
    behind.remove_prefix(1);
  }
  for (const std::string_view denial :
       {" is wrong", " is incorrect", " is false", " is not", " isn't", " cannot be", " can't be"}) {
    if (behind.starts_with(denial)) return true;
  }
  return false;
}

// Between `begin` and the end of its sentence ("is clearly B."), the first letter that stands alone and is not denied.
std::optional<size_t> LetterOfSentence(std::string_view text, size_t begin, std::string_view letters) {
  constexpr size_t kMostBytes = 200;
  std::string_view sentence = text.substr(0, begin + kMostBytes);
  sentence = sentence.substr(0, sentence.find_first_of(".!?;\n", begin));
  for (size_t i = begin; i < sentence.size(); ++i) {
    if (!LoneLetter(sentence, i, letters).has_value() || IsWordAlone(sentence, i)) continue;
    if (!IsDenied(sentence, i)) return i;
  }
  return std::nullopt;
}

// Where the letter is of "B is the right answer", of which `begin` is what comes before "answer".
std::optional<size_t> LetterNamedAnswer(std::string_view begin, std::string_view letters) {
  for (const std::string_view adjective : {"right ", "correct ", "best ", "final ", "only "}) {
    if (!begin.ends_with(adjective)) continue;
    begin.remove_suffix(adjective.size());
    break;
  }
  if (!begin.ends_with(" is the ")) return std::nullopt;
  begin.remove_suffix(std::string_view(" is the ").size());
  const size_t at = begin.find_last_not_of(")]*");
  if (at == std::string_view::npos || !LoneLetter(begin, at, letters).has_value()) return std::nullopt;
  return at;
}

// Of a text that says nothing but its choice, as a box does: "B", "(b)", "\text{B}", "B. Paris".
std::optional<char> OnlyLetter(std::string_view text, std::string_view letters) {
  text = StripSpace(text);
  for (const std::string_view prefix : {"\\text{", "\\textbf{", "\\mathrm{", "\\mathbf{", "\\text {"}) {
    if (text.substr(0, prefix.size()) == prefix) text.remove_prefix(prefix.size());
  }
  while (!text.empty() && (text.front() == '(' || text.front() == '[' || text.front() == ' ' || text.front() == '*')) {
    text.remove_prefix(1);
  }
  if (text.empty()) return std::nullopt;
  std::string capital(text.substr(0, 2));
  capital[0] = absl::ascii_toupper(static_cast<unsigned char>(capital[0]));
  if (text.size() > 1 && (text[1] == ' ' || IsWord(text[1]))) return std::nullopt;
  if (IsOneOfSeveral(absl::StrCat(capital.substr(0, 1), absl::string_view(text.data() + 1, text.size() - 1)), 0,
                     letters)) {
    return std::nullopt;
  }
  return LoneLetter(capital, 0, letters);
}

}  // namespace

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

std::optional<char> ChosenLetter(std::string_view text, std::string_view letters) {
  if (const std::optional<std::string_view> boxed = LastBoxed(text)) return OnlyLetter(*boxed, letters);
  const auto chosen = [&](size_t at) {
    return IsOneOfSeveral(text, at, letters) ? std::nullopt : std::optional<char>(text[at]);
  };
  const std::string lower = absl::AsciiStrToLower(absl::string_view(text.data(), text.size()));
  constexpr std::string_view kAnswer = "answer";
  for (size_t at = lower.rfind(kAnswer); at != std::string::npos;
       at = at == 0 ? std::string::npos : lower.rfind(kAnswer, at - 1)) {
    size_t i = at + kAnswer.size();
    const auto skip = [&](std::initializer_list<std::string_view> words) {
      bool any = false;
      for (const std::string_view word : words) {
        if (lower.compare(i, word.size(), word) != 0) continue;
        i += word.size();
        any = true;
      }
      return any;
    };
    skip({" option", " choice"});
    // What is denied is for its sentence to see.
    const bool denies = lower.compare(i, 6, " isn't") == 0;
    const bool says = denies || skip({" must be", " should be", " would be", " has to be", " is", ":"});
    skip({" **", "**", " option", " choice", " "});
    const size_t opened = i;
    while (i < text.size() && (text[i] == ' ' || text[i] == '(' || text[i] == '[' || text[i] == '*')) ++i;
    if (i < text.size() && LoneLetter(text, i, letters).has_value() && !IsWordAlone(text, i)) return chosen(i);
    // "(b)", "answer: b"
    if (says && i < text.size() && absl::ascii_islower(static_cast<unsigned char>(text[i])) &&
        (i > opened || i + 1 == text.size() || text[i + 1] == ')' || text[i + 1] == '.' || text[i + 1] == '\n')) {
      std::string capital(text.substr(i, 2));
      capital[0] = absl::ascii_toupper(static_cast<unsigned char>(capital[0]));
      if (const std::optional<char> letter = LoneLetter(capital, 0, letters);
          letter.has_value() && (capital.size() == 1 || capital[1] != ' ')) {
        return letter;
      }
    }
    if (!says) {
      if (const auto named = LetterNamedAnswer(text.substr(0, at), letters)) return chosen(*named);
      continue;
    }
    if (const std::optional<size_t> letter = LetterOfSentence(text, i, letters)) return chosen(*letter);
  }
  for (size_t i = text.size(); i-- > 0;) {
    if (LoneLetter(text, i, letters).has_value() && !IsWordAlone(text, i) && !IsDenied(text, i)) return text[i];
  }
  return OnlyLetter(text, letters);
}

}  // namespace quartet
