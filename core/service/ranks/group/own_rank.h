// What this rank does by itself for its group's calls: the methods that it knows, and the threads that run them.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "absl/status/status.h"
#include "core/service/ranks/group/handler_run.h"
#include "core/service/ranks/group/rank_executor.h"
#include "core/service/ranks/group/rank_group.h"

namespace quartet {

struct RankMethod {
  RankGroup::Kind kind;
  RankGroup::Handler handler;
};

// Thread safe once all methods are registered.
class OwnRank {
 public:
  void Register(const std::string& name, RankGroup::Kind kind, RankGroup::Handler handler);
  // Null: there is none.
  const RankMethod* Find(const std::string& name) const;

  // A run of the method's handler: on the executor thread in the order of the numbers, or, where it is concurrent, on
  // `beside`, which the caller keeps. `asks` as HandlerRun's; that thread waits with it.
  std::shared_ptr<HandlerRun> Start(const RankMethod& method, uint64_t number, RankInput input, bool asks,
                                    std::jthread* beside);
  // RankGroup::RunHere.
  absl::Status RunHere(const std::function<absl::Status()>& work);

  // Calls are not waited for any longer: end() says why.
  void EndCalls(const absl::Status& status);
  absl::Status end() const;

  // Nothing new begins.
  void Refuse() { stopping_ = true; }
  // Refuse, and waits for what runs on the executor thread. Idempotent.
  void Stop();
  bool stopping() const { return stopping_; }

 private:
  std::map<std::string, RankMethod> methods_;
  std::atomic<bool> stopping_ = false;
  mutable std::mutex end_mutex_;
  absl::Status end_;  // guarded by end_mutex_
  RankExecutor executor_;
};

}  // namespace quartet
