// "added_tokens" of tokenizer.json: tokens that are found in the text before the model sees it.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "absl/status/status.h"

namespace quartet {

struct AddedToken {
  int32_t id = 0;
  std::string content;
  bool special = false;
  bool single_word = false;  // not inside a word
  bool lstrip = false;       // takes the white space before it
  bool rstrip = false;       // takes the white space after it
  bool normalized = false;   // is looked for in the normalized text
};

// A part of a text: an added token, or text between them.
struct TextPart {
  std::string_view text;
  std::optional<int32_t> id;
};

// Finds tokens, the leftmost first and of those the longest. Immutable after the last Add; thread safe then.
class TokenFinder {
 public:
  TokenFinder();
  ~TokenFinder();
  // `pattern` is what stands in the text for `token`.
  void Add(std::string_view pattern, const AddedToken& token);
  std::vector<TextPart> Split(std::string_view text) const;

 private:
  struct Node;
  std::unique_ptr<Node> root_;
};

}  // namespace quartet
