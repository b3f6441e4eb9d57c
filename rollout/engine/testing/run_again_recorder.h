// Recordings on the CPU: a replay runs once more what was recorded, on the tensors of then.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "rollout/engine/graphs/graph_recorder.h"

namespace quartet {

class RunAgainRecorder : public GraphRecorder {
 public:
  static constexpr int64_t kPoolBytes = 1000;

  // How many rows recordings had goes to `rows`, in their order, unless it is null.
  explicit RunAgainRecorder(std::vector<int64_t>* rows = nullptr) : rows_(rows) {}

  std::unique_ptr<RecordedForward> Record(const std::function<at::Tensor()>& forward) override {
    const at::Tensor result = forward();
    if (rows_ != nullptr) rows_->push_back(result.size(0));
    return std::make_unique<Recorded>(forward);
  }
  int64_t pool_bytes() const override { return kPoolBytes; }

 private:
  class Recorded : public RecordedForward {
   public:
    explicit Recorded(std::function<at::Tensor()> forward) : forward_(std::move(forward)) {}
    at::Tensor Replay() override { return forward_(); }

   private:
    const std::function<at::Tensor()> forward_;
  };

  std::vector<int64_t>* const rows_;
};

}  // namespace quartet
