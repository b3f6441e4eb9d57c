// A collective that goes on while its rank computes.
#pragma once

namespace quartet {

// A collective under way. Wait throws (c10::Error or std::runtime_error) if it failed or timed out; the tensors given
// to the collective must live until then. Dropping it without Wait is allowed only after the group failed. The group
// must outlive it.
class CollectiveWork {
 public:
  virtual ~CollectiveWork() = default;
  virtual void Wait() = 0;
};

}  // namespace quartet
