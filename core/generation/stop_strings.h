// Stop strings as one automaton (Aho and Corasick, 1975): a text is searched for all of them at once, byte by byte,
// wherever it is cut. LibTorch-free.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"

namespace quartet {

// Immutable, thread safe: one for all samples of a call.
class StopStrings {
 public:
  // Of one call: strings, and their bytes together.
  static constexpr int64_t kMostStrings = 128;
  static constexpr int64_t kMostBytes = 8192;

  // None of `strings` is empty.
  explicit StopStrings(std::vector<std::string> strings);

  // What the search remembers of a text.
  using State = int32_t;
  static constexpr State kStart = 0;
  State Next(State state, char byte) const;

  // The string that the text ends with; of several the first of the list. Null: none.
  const std::string* EndingAt(State state) const {
    const int32_t found = nodes_[state].string;
    return found < 0 ? nullptr : &strings_[found];
  }
  // How many bytes at the text's end are the longest beginning of a string.
  int64_t Begun(State state) const { return nodes_[state].depth; }

 private:
  // Stands for the beginning of a string.
  struct Node {
    int32_t depth = 0;    // its length
    int32_t suffix = 0;   // the longest other beginning that it ends with
    int32_t string = -1;  // the first string of the list that it ends with
  };
  static int64_t Edge(int32_t node, char byte) { return int64_t{node} * 256 + static_cast<unsigned char>(byte); }

  const std::vector<std::string> strings_;
  std::vector<Node> nodes_;
  absl::flat_hash_map<int64_t, int32_t> edges_;  // to the node that is longer by a byte
};

}  // namespace quartet
