// For tests: the ranks of a group as threads of this process; or, where the program was started once for each of some
// ranks (rerun_test's `ranks`), as its processes, of which each runs every test and is one rank of each group of
// several. What rank 0 finds decides: it is told of the others' failures within `body`, and what others expect of
// results that rank 0's alone has is left aside.
#pragma once

#include <c10/core/Device.h>

#include <functional>
#include <string>

#include "absl/time/time.h"
#include "core/comm/process_group.h"

namespace quartet {

// Where models of tests compute that can compute on a GPU as well: what the environment variable QUARTET_TEST_DEVICE
// says, "cpu" or "cuda" (the first), or the CPU. On a GPU threads are one rank; processes have it together.
at::Device TestDevice();

// Calls `body` for every rank of a group of `size`, each on a thread of its own, and joins them. Fails the test if the
// group cannot be made or `body` throws. `backend` "" is what the environment variable QUARTET_TEST_BACKEND says, or
// "auto"; on a GPU it is NCCL, whose group here takes tensors of the CPU as well, by way of the GPU.
void RunRanks(int size, const std::function<void(ProcessGroup&)>& body, absl::Duration timeout = absl::Seconds(60),
              const std::string& backend = "");

// The same for a body that makes its groups itself, of the ranks that `options` describes.
void RunRanksOfStore(int size,
                     const std::function<void(KeyValueStore* store, const ProcessGroupOptions& options)>& body,
                     absl::Duration timeout = absl::Seconds(60));

// What a test does to files by itself: once, where the program runs as processes, by the first of them, while all
// others are at this call.
void DoOnce(const std::function<void()>& work);

}  // namespace quartet
