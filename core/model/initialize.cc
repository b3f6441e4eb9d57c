#include "core/model/initialize.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <numbers>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "core/base/files/files.h"
#include "core/base/splitmix64.h"
#include "core/base/status_macros.h"
#include "core/hardware/bf16.h"
#include "core/model/parameter_layout.h"
#include "core/safetensors/writer.h"

namespace quartet {
namespace {

// Elements that are made and written at a time. Even, so that pairs of draws do not straddle pieces.
constexpr int64_t kPiece = 1 << 18;

// FNV-1a.
uint64_t HashName(std::string_view name) {
  uint64_t hash = 0xcbf29ce484222325u;
  for (const unsigned char c : name) hash = (hash ^ c) * 0x100000001b3u;
  return hash;
}

// Uniform in (0, 1), never an end.
double Uniform(uint64_t key, uint64_t counter) {
  return (static_cast<double>(SplitMix(key ^ SplitMix(counter)) >> 11) + 0.5) * 0x1p-53;
}

// Elements [begin, begin + count) of a stream of independent N(0, stddev); `begin` even. Box-Muller.
void FillNormal(uint64_t key, int64_t begin, int64_t count, double stddev, float* out) {
  for (int64_t i = 0; i < count; i += 2) {
    const double radius = stddev * std::sqrt(-2 * std::log(Uniform(key, begin + i)));
    const double angle = 2 * std::numbers::pi * Uniform(key, begin + i + 1);
    out[i] = static_cast<float>(radius * std::cos(angle));
    if (i + 1 < count) out[i + 1] = static_cast<float>(radius * std::sin(angle));
  }
}

absl::Status WriteParameter(const ModelConfig& config, const ParameterSpec& parameter, uint64_t seed, Dtype dtype,
                            int entry, SafetensorsWriter* writer) {
  const int64_t numel = parameter.numel();
  const uint64_t key = SplitMix(seed ^ HashName(parameter.name));
  std::vector<float> values(std::min(numel, kPiece));
  std::vector<uint16_t> narrow(dtype == Dtype::kBF16 ? values.size() : 0);
  for (int64_t begin = 0; begin < numel; begin += kPiece) {
    const int64_t count = std::min(kPiece, numel - begin);
    if (absl::EndsWith(parameter.name, ".bias")) {
      std::fill_n(values.begin(), count, 0.0f);
    } else if (parameter.shape.size() == 1) {  // a norm
      std::fill_n(values.begin(), count, 1.0f);
    } else {
      FillNormal(key, begin, count, config.initializer_range, values.data());
    }
    const void* data = values.data();
    if (dtype == Dtype::kBF16) {
      std::transform(values.begin(), values.begin() + count, narrow.begin(), ToBf16);
      data = narrow.data();
    }
    QUARTET_RETURN_IF_ERROR(writer->Write(entry, begin * DtypeSize(dtype), data, count * DtypeSize(dtype)));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status WriteRandomModel(const ModelConfig& config, HeadKind head, uint64_t seed, Dtype dtype,
                              const std::string& folder) {
  if (dtype != Dtype::kF32 && dtype != Dtype::kBF16) {
    return absl::InvalidArgumentError(
        absl::StrCat("A model can be written as F32 or BF16, not as ", std::string(DtypeName(dtype))));
  }
  QUARTET_RETURN_IF_ERROR(MakeDirs(folder));
  const ParameterLayout layout = MakeParameterLayout(config, head);
  std::vector<SafetensorsWriter::Entry> entries;
  for (const ParameterGroup& group : layout.groups) {
    for (const ParameterSpec& parameter : group.parameters) {
      entries.push_back({NameInFolder(parameter, config), dtype, parameter.shape});
    }
  }
  QUARTET_ASSIGN_OR_RETURN(const std::unique_ptr<SafetensorsWriter> writer,
                           SafetensorsWriter::Create(absl::StrCat(folder, "/model.safetensors"), std::move(entries)));
  int entry = 0;
  for (const ParameterGroup& group : layout.groups) {
    for (const ParameterSpec& parameter : group.parameters) {
      QUARTET_RETURN_IF_ERROR(WriteParameter(config, parameter, seed, dtype, entry++, writer.get()));
    }
  }
  QUARTET_RETURN_IF_ERROR(writer->Close());
  return AtomicWriteFile(absl::StrCat(folder, "/config.json"),
                         ConfigJson(config, head, dtype == Dtype::kBF16 ? "bfloat16" : "float32"));
}

}  // namespace quartet
