// What a run shows while it runs: a line that lives at the bottom of a terminal, plain lines elsewhere.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <mutex>
#include <string>
#include <thread>

#include "absl/time/time.h"
#include "core/base/time/deadline.h"

namespace quartet {

// Thread safe.
class TerminalView {
 public:
  // Writes to `out`, which stays open; the live line only where `live`. Elsewhere what the line would show is written
  // after each `quiet` in which nothing else was.
  TerminalView(std::FILE* out, bool live, absl::Duration quiet = absl::Minutes(1));
  // For standard output: live if that is a terminal.
  static bool IsTerminal(std::FILE* out);
  ~TerminalView();
  TerminalView(const TerminalView&) = delete;
  TerminalView& operator=(const TerminalView&) = delete;

  // A line that stays. What a terminal would obey in it is escaped (core/errors/shown.h).
  void Print(const std::string& line);

  // What is being done from now on: the live line shows it with the time it has taken and, where total > 0, a bar
  // and, once it is known, the time that is left.
  void Begin(const std::string& phase, int64_t total = 0);
  // `on_phase` is told of each Begin from now on, by its thread, before it returns; {}: nobody.
  void OnPhase(std::function<void(const std::string& phase)> on_phase);
  // Both: for what may take long, so that it is seen where there is no live line. Nothing where just this is being
  // done.
  void PrintAndBegin(const std::string& phase);
  // Of `total`. Never goes back. `detail`: what is being done just now.
  void Progress(int64_t done, const std::string& detail = "");
  // An OnLoading (core/clients/handshake.h) that shows what is waited for. This outlives it.
  std::function<void(const std::string& waiting, const std::string& detail)> ShowLoading();
  // Clears the live line.
  void End();

  // "  [#####.....]  12/24"; one row of what the live line shows.
  static std::string Bar(int64_t done, int64_t total, int width);

 private:
  // mutex_ is held for these.
  void Refresh();
  void WriteLine(const std::string& line);
  std::string LiveLine() const;

  void Tick();

  std::FILE* const out_;
  const bool live_;
  const absl::Duration quiet_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool stopping_ = false;
  std::function<void(const std::string&)> on_phase_;
  std::string phase_;
  std::string detail_;
  Deadline::Clock::time_point began_{};
  Deadline::Clock::time_point written_{};
  int64_t done_ = 0;
  int64_t total_ = 0;
  std::thread ticker_;
};

}  // namespace quartet
