// SentencePiece's mark for a space: what the pre-tokenizer and the decoder "Metaspace" share.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include "absl/status/statusor.h"

namespace quartet {

// Which pieces the mark is put before.
enum class MetaspacePrepend { kAlways, kFirst, kNever };

// The step's prepend_scheme, or add_prefix_space in older files.
absl::StatusOr<MetaspacePrepend> ReadMetaspacePrepend(const nlohmann::json& step);

}  // namespace quartet
