// Recordings of forwards: on CUDA graphs, whose hundreds of kernels start at once.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>

namespace quartet {

class RecordedForward {
 public:
  virtual ~RecordedForward() = default;
  // Computes once more what was recorded, from what now lies where it was read from, behind what the present stream
  // has. The result is overwritten by the next replay of any forward that the recorder has recorded. Throws.
  virtual at::Tensor Replay() = 0;
};

// One thread.
class GraphRecorder {
 public:
  virtual ~GraphRecorder() = default;
  // Runs `forward`, which begins to work as in any other forward then, and records it. The recording reads and writes
  // the device's memory where `forward` does now: all of it must stay in its place, but for what `forward` allocates
  // and returns, which the recordings keep for themselves. `forward` must not wait for the device, nor copy from or to
  // the host, nor depend on values that change. Throws.
  virtual std::unique_ptr<RecordedForward> Record(const std::function<at::Tensor()>& forward) = 0;
  // Of the device, that recordings keep for what forwards allocate. They share it: record what takes most first.
  virtual int64_t pool_bytes() const = 0;
};

using NewGraphRecorder = std::function<std::unique_ptr<GraphRecorder>()>;

// For `device`, or for what the meta device stands for, where recordings only count; null where nothing can be
// recorded. Recordings must not outlive their recorder.
NewGraphRecorder GraphRecordersFor(at::Device device);

}  // namespace quartet
