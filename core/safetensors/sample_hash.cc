#include "core/safetensors/sample_hash.h"

#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "core/base/hash.h"
#include "core/base/status_macros.h"

namespace quartet {

absl::StatusOr<uint64_t> HashSamples(const CheckpointReader& reader) {
  constexpr int64_t kElements = 256;  // at the beginning and in the middle of each tensor
  uint64_t hash = 0;
  std::vector<char> elements;
  for (const auto& [name, tensor] : reader.tensors()) {
    hash = HashBytes(
        absl::StrCat(name, " ", std::string(DtypeName(tensor.dtype)), " ", absl::StrJoin(tensor.shape, ",")), hash);
    for (const int64_t begin : {int64_t{0}, tensor.numel() / 2}) {
      const int64_t count = std::min(kElements, tensor.numel() - begin);
      elements.resize(count * DtypeSize(tensor.dtype));
      QUARTET_RETURN_IF_ERROR(reader.ReadRange(name, begin, count, elements.data()));
      hash = HashBytes({elements.data(), elements.size()}, hash);
    }
  }
  return hash;
}

}  // namespace quartet
