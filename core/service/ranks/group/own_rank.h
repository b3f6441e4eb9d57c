// What this rank does by itself for its group's calls: the methods that it knows, and the threads that run them.
#pragma once

#include <condition_variable>
#include <functional>
#include <map>
#include <mutex>
#include <string>

#include "absl/status/status.h"
#include "core/service/ranks/group/rank_group.h"
#include "core/service/ranks/group/serial_thread.h"

namespace quartet {

struct RankMethod {
  RankGroup::Kind kind;
  RankGroup::Handler handler;
  bool concurrent() const { return kind == RankGroup::Kind::kConcurrent; }
};

// Thread safe once all methods are registered.
class OwnRank {
 public:
  ~OwnRank() { Stop(); }

  void Register(const std::string& name, RankGroup::Kind kind, RankGroup::Handler handler);
  // Null: there is none.
  const RankMethod* Find(const std::string& name) const;

  // Runs `work` on the executor thread, behind what came before; or beside it, at once, on a thread of its own. Nobody
  // waits for it but Stop. RESOURCE_EXHAUSTED: there is no such thread.
  absl::Status Start(bool concurrent, std::function<void()> work);
  // RankGroup::RunHere.
  absl::Status RunHere(const std::function<absl::Status()>& work);

  // Drops what has not begun and waits for what runs. Idempotent; not from the executor.
  void Stop();

 private:
  std::map<std::string, RankMethod> methods_;
  std::mutex mutex_;
  std::condition_variable changed_;
  int concurrent_ = 0;  // threads; guarded by mutex_
  // The one thread of this rank that enters LibTorch and collectives.
  SerialThread<std::function<void()>> executor_{[](const std::function<void()>& work) { work(); }};
  std::mutex stop_mutex_;  // one Stop at a time
};

}  // namespace quartet
