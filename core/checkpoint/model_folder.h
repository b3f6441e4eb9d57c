// Writes a Hugging Face folder that is there whole or not at all. LibTorch-free.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/model/model_config.h"
#include "core/model/parameter_layout.h"
#include "core/safetensors/reader.h"

namespace quartet {

// The bytes of config.json's companions (tokenizer, generation_config.json) that `folder` has, by name.
absl::StatusOr<std::map<std::string, std::string>> ReadCompanions(const std::string& folder);

struct ModelFolderOptions {
  std::map<std::string, std::string> companions;  // ReadCompanions of the folder that the model was loaded from
  std::string target;                             // must not exist; folders above it are made
  Dtype dtype = Dtype::kBF16;
  HeadKind head = HeadKind::kVocabulary;
  int64_t max_file_bytes = int64_t{2} << 30;  // of tensors in one safetensors file
};

// Used by one rank. Everything goes to a folder beside the target, which is renamed by Finish and goes if the writer
// does. Errors name the path and what the system said. Not thread safe.
class ModelFolderWriter {
 public:
  // Writes TrainedConfigJson of `config`, and all parameters by their NameInFolder; where `config` has adapters, whose
  // `layout` it is then, a folder of adapters as they were read (core/model/lora.h), in one file, with the hash of
  // their model (core/model/adapter_base.h), and the tokenizer's class is named, which else config.json tells.
  // ALREADY_EXISTS where the target is there.
  static absl::StatusOr<std::unique_ptr<ModelFolderWriter>> Create(const ModelConfig& config,
                                                                   const ParameterLayout& layout,
                                                                   const ModelFolderOptions& options);
  ~ModelFolderWriter();

  // All elements of one parameter, as they are to be stored.
  absl::Status Write(int group, int parameter, const void* data);

  // Syncs and shows the folder. Returns its bytes.
  absl::StatusOr<int64_t> Finish();

 private:
  struct Impl;
  explicit ModelFolderWriter(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace quartet
