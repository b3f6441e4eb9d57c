// Which model adapters belong to: by what it computed when they were trained, not by its path alone. A file of
// ours beside PEFT's says it; a folder that PEFT wrote has none. LibTorch-free.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "core/model/model_config.h"

namespace quartet {

inline constexpr std::string_view kAdapterBaseFile = "adapter_base.json";

// Of the weights in a model's folder (HashSamples) and of the numbers in its config.json that go into what it computes;
// the same in every release. Nothing where weights cannot be read, which whoever loads them says.
std::optional<uint64_t> HashBase(const std::string& base, const ModelConfig& config);

// The text of kAdapterBaseFile.
std::string AdapterBaseJson(uint64_t base_hash);

// INVALID_ARGUMENT where the adapters' `folder` says that they belong to another model than that of this hash, which is
// in `base`, and what to do; or where its file is not as it is written here. OK where it says nothing, or no hash is
// given.
absl::Status CheckAdapterBase(const std::string& folder, const std::string& base, std::optional<uint64_t> base_hash);

// The same error of what `adapters` names, whose model had the hash `was`; `ways` out of it are a sentence.
absl::Status OtherBaseError(std::string_view adapters, const std::string& base, uint64_t is, uint64_t was,
                            std::string_view ways);

}  // namespace quartet
