#include "core/tokenizer/added_tokens.h"

#include <utility>

#include "core/tokenizer/unicode/unicode.h"

namespace quartet {
namespace {

// Where the character before `at` begins; `at` > 0.
size_t CharBefore(std::string_view text, size_t at) {
  do {
    --at;
  } while (at > 0 && (static_cast<unsigned char>(text[at]) & 0xc0) == 0x80);
  return at;
}

}  // namespace

struct TokenFinder::Node {
  std::map<char, std::unique_ptr<Node>> children;
  std::optional<AddedToken> token;  // ends here
};

TokenFinder::TokenFinder() : root_(std::make_unique<Node>()) {}
TokenFinder::~TokenFinder() = default;

void TokenFinder::Add(std::string_view pattern, const AddedToken& token) {
  if (pattern.empty()) return;
  Node* node = root_.get();
  for (const char c : pattern) {
    std::unique_ptr<Node>& child = node->children[c];
    if (child == nullptr) child = std::make_unique<Node>();
    node = child.get();
  }
  if (!node->token) node->token = token;
}

std::vector<TextPart> TokenFinder::Split(std::string_view text) const {
  std::vector<TextPart> parts;
  size_t taken = 0;  // up to here the text is in `parts`
  for (size_t at = 0; at < text.size();) {
    const AddedToken* longest = nullptr;
    size_t length = 0;
    const Node* node = root_.get();
    for (size_t i = at; i < text.size(); ++i) {
      const auto child = node->children.find(text[i]);
      if (child == node->children.end()) break;
      node = child->second.get();
      if (node->token) {
        longest = &*node->token;
        length = i + 1 - at;
      }
    }
    if (longest == nullptr) {
      ++at;
      continue;
    }
    size_t begin = at, end = at + length;
    at = end;
    if (longest->single_word) {
      const bool joins_before = begin > 0 && IsWordChar(CharAt(text, CharBefore(text, begin)));
      const bool joins_after = end < text.size() && IsWordChar(CharAt(text, end));
      if (joins_before || joins_after) continue;
    }
    if (longest->lstrip) {
      while (begin > taken) {
        const size_t before = CharBefore(text, begin);
        if (before < taken || !IsWhiteSpace(CharAt(text, before))) break;
        begin = before;
      }
    }
    if (longest->rstrip) {
      while (end < text.size() && IsWhiteSpace(CharAt(text, end))) end += CharBytes(text, end);
    }
    if (begin > taken) parts.push_back({text.substr(taken, begin - taken), std::nullopt});
    parts.push_back({text.substr(begin, end - begin), longest->id});
    taken = end;
  }
  if (taken < text.size()) parts.push_back({text.substr(taken), std::nullopt});
  return parts;
}

}  // namespace quartet
