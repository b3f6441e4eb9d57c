// Finds out which rank of a group is missing when a collective fails. LibTorch-free.
//
// Every rank answers datagrams on a port of its own, from a thread of its own, so that it can be asked where it is
// while it computes or waits in a collective. Nothing goes through another rank or through the store: any of them may
// be the one that is missing. Between failures no message is sent.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "core/comm/collective_kind.h"

namespace quartet {

// Thread safe after Start. Collectives are numbered from 1, alike on all ranks.
class RankWatch {
 public:
  // Binds a free UDP port of `host`.
  static absl::StatusOr<std::unique_ptr<RankWatch>> Open(const std::string& host);
  virtual ~RankWatch() = default;  // as Leave

  // What the others need to reach this rank: no spaces.
  virtual const std::string& address() const = 0;

  // `addresses[r]` is rank r's address, `names[r]` what it is called in messages. `on_end` is called when it becomes
  // known that collectives from a number on cannot succeed, with that number; from any thread, perhaps more than once
  // with falling numbers. It must not call back.
  virtual absl::Status Start(int rank, const std::vector<std::string>& addresses, const std::vector<int>& names,
                             std::function<void(int64_t first_number)> on_end) = 0;

  // This rank has begun, and is through with, a collective.
  virtual void Begin(int64_t number, CollectiveKind kind, int64_t bytes) = 0;
  virtual void Finish(int64_t number) = 0;

  // After a collective failed here: why, with the rank that is to blame. Asks all ranks unless that is known already,
  // and tells all. Takes 2 s where a rank does not answer.
  virtual std::string Diagnose(int64_t number) = 0;

  // Tells the others that this rank takes no part in collectives that it has not finished, and `why` (may be empty).
  virtual void Leave(const std::string& why) = 0;
};

}  // namespace quartet
