// What a service's leader says before any work is done: whether calls may come, and who it is. Any thread.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "core/service/ranks/group/rank_group.h"
#include "proto/common.pb.h"

namespace quartet {

// Of a model.
struct Vocabulary {
  int64_t rows;    // of the embedding
  int64_t tokens;  // ids that it takes
};

class LeaderStatus {
 public:
  // `still_loading` as for StillLoading (core/base/time/loading.h): "the scorer is still loading its models".
  // `configuration` is what the service was started with (ServiceFields). `group` outlives it.
  LeaderStatus(const RankGroup& group, std::string service, std::string still_loading,
               std::map<std::string, std::string> configuration)
      : group_(group),
        service_(std::move(service)),
        still_loading_(std::move(still_loading)),
        configuration_(std::move(configuration)) {}

  // This rank has loaded.
  void SetLoaded() { loaded_ = true; }

  // FAILED_PRECONDITION, naming the leader, on every other rank; UNAVAILABLE before SetLoaded. `call` is what a client
  // asked for.
  absl::Status CheckReady(const std::string& call) const;
  // What a rank says that has nothing loaded: UNAVAILABLE. The leader may have loaded before it, or it has failed to.
  absl::Status StillLoading() const;

  // To every client. `ranks` in their order; `max_model_len` in tokens; `vocabularies` by role.
  ServiceInfo Describe(std::vector<RankInfo> ranks, int64_t max_model_len,
                       const std::map<std::string, Vocabulary>& vocabularies) const;

 private:
  const RankGroup& group_;
  const std::string service_, still_loading_;
  const std::map<std::string, std::string> configuration_;
  std::atomic<bool> loaded_ = false;
};

}  // namespace quartet
