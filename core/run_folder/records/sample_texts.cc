#include "core/run_folder/records/sample_texts.h"

#include <algorithm>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/utf8.h"

namespace quartet {
namespace {

constexpr size_t kBytesPerSpan = 64;

// The greatest length such that texts of these sizes, cut to it, have at most `bytes`.
size_t LengthThatFits(std::vector<size_t> sizes, size_t bytes) {
  std::ranges::sort(sizes);
  for (size_t i = 0; i < sizes.size(); ++i) {
    const size_t part = bytes / (sizes.size() - i);
    if (sizes[i] > part) return part;
    bytes -= sizes[i];
  }
  return sizes.empty() ? 0 : sizes.back();
}

}  // namespace

void CutToFit(size_t bytes, std::vector<SampleSequence>* sequences) {
  size_t spans_left = bytes / kBytesPerSpan;
  std::vector<size_t> sizes;
  for (auto sequence = sequences->begin(); sequence != sequences->end(); ++sequence) {
    if (sequence->size() > spans_left) {
      sequence->resize(spans_left);
      sequence->push_back({.text = " [... the rest is left out]"});
      sequences->erase(sequence + 1, sequences->end());
    }
    for (const SampleSpan& span : *sequence) sizes.push_back(span.text.size());
    spans_left -= std::min(spans_left, sequence->size());
  }
  const size_t most = LengthThatFits(std::move(sizes), bytes);
  for (SampleSequence& sequence : *sequences) {
    for (auto& [text, trained] : sequence) {
      if (text.size() <= most) continue;
      const size_t head = WholeCharacters(text, most - most / 4), tail = WholeCharacters(text, text.size() - most / 4);
      text = absl::StrCat(text.substr(0, head), " [... left out ...] ", text.substr(tail));
    }
  }
}

}  // namespace quartet
