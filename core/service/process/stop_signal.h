// Why a program should stop: a signal, its parent's end or message, or a reason of its own.
#pragma once

#include <optional>
#include <string>

#include "absl/time/time.h"

namespace quartet {

// Blocks SIGINT, SIGTERM, SIGHUP and SIGCHLD in the calling thread, and so in the threads that it starts later: to be
// made in main, before any thread. One per process.
class StopSignal {
 public:
  StopSignal();
  ~StopSignal();
  StopSignal(const StopSignal&) = delete;
  StopSignal& operator=(const StopSignal&) = delete;

  // Thread safe; the first reason stays.
  void Request(const std::string& reason);

  // From now on SIGTERM is no reason by itself, nor SIGHUP: an orchestrator makes a checkpoint at them, with this
  // process's help.
  void LeaveSigtermToOrchestrator();
  // Whether one has come since. Thread safe.
  bool left_sigterm() const;

  // Tells the parent why this process ends, where it has asked (ChildProcess::Said). Thread safe.
  void Tell(const std::string& reason);

  // The reason to stop ("SIGTERM", "SIGHUP" where it is not ignored, "the parent process is gone", what the parent
  // sends, or a requested one), as soon as there is one; nothing after `timeout`, or once a child has ended or a signal
  // has come that is none. One thread.
  std::optional<std::string> Wait(absl::Duration timeout);

 private:
  struct Impl;
  Impl* const impl_;
};

}  // namespace quartet
