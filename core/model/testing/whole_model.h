// A model that is read whole, for tests of the functions that engines call group by group.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "core/model/decoder/decoder.h"
#include "core/model/model_config.h"
#include "core/model/parameter_layout.h"

namespace quartet {

// A tensor of a safetensors folder (fp32, bf16 or int64), as stored.
absl::StatusOr<at::Tensor> ReadTensor(const class CheckpointReader& reader, const std::string& name);

class WholeModel {
 public:
  // With the head that the folder has; all parameters as `type`.
  static absl::StatusOr<WholeModel> Load(const std::string& folder, at::ScalarType type);

  const ModelConfig& config() const { return config_; }
  const ParameterLayout& layout() const { return layout_; }
  // parameters()[group][parameter], in the order of the layout.
  const std::vector<std::vector<at::Tensor>>& parameters() const { return parameters_; }
  void RequireGradients();

  // After the final norm, [T, D]; positions start at 0 in each sequence [cu_seqlens[i], cu_seqlens[i + 1]).
  at::Tensor Forward(const at::Tensor& ids_T, const std::vector<int64_t>& cu_seqlens) const;
  const at::Tensor& head_weight() const;  // [V, D] or [1, D]

 private:
  ModelConfig config_;
  ParameterLayout layout_;
  std::vector<std::vector<at::Tensor>> parameters_;
};

}  // namespace quartet
