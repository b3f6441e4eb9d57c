#include "core/terminal/terminal_view.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "core/base/time/time_left.h"
#include "core/errors/shown.h"

namespace quartet {
namespace {

constexpr auto kRefreshInterval = std::chrono::milliseconds(150);
constexpr const char* kClearLine = "\r\033[K";

int Columns(std::FILE* out) {
  winsize size{};
  if (ioctl(fileno(out), TIOCGWINSZ, &size) == 0 && size.ws_col > 0) return size.ws_col;
  return 80;
}

}  // namespace

bool TerminalView::IsTerminal(std::FILE* out) { return isatty(fileno(out)) == 1; }

TerminalView::TerminalView(std::FILE* out, bool live, absl::Duration quiet)
    : out_(out), live_(live), quiet_(quiet), ticker_([this] { Tick(); }) {}

TerminalView::~TerminalView() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    stopping_ = true;
    phase_.clear();
    Refresh();
  }
  changed_.notify_all();
  ticker_.join();
}

void TerminalView::Print(const std::string& line) {
  std::lock_guard<std::mutex> lock(mutex_);
  WriteLine(line);
  Refresh();
}

void TerminalView::WriteLine(const std::string& line) {
  if (live_) std::fputs(kClearLine, out_);
  std::fputs(Shown(line).c_str(), out_);
  std::fputc('\n', out_);
  std::fflush(out_);
  written_ = Deadline::Clock::now();
}

void TerminalView::Begin(const std::string& phase, int64_t total) {
  std::function<void(const std::string&)> on_phase;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    phase_ = phase;
    detail_.clear();
    began_ = Deadline::Clock::now();
    done_ = 0;
    total_ = total;
    Refresh();
    on_phase = on_phase_;
  }
  if (on_phase) on_phase(phase);
}

void TerminalView::OnPhase(std::function<void(const std::string&)> on_phase) {
  std::lock_guard<std::mutex> lock(mutex_);
  on_phase_ = std::move(on_phase);
}

void TerminalView::PrintAndBegin(const std::string& phase) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (phase_ == phase) return;
  }
  Print(phase);
  Begin(phase);
}

std::function<void(const std::string& waiting, const std::string& detail)> TerminalView::ShowLoading() {
  return [this](const std::string& waiting, const std::string& detail) {
    PrintAndBegin(waiting);
    Progress(0, detail);
  };
}

void TerminalView::Progress(int64_t done, const std::string& detail) {
  std::lock_guard<std::mutex> lock(mutex_);
  done_ = std::max(done_, done);
  detail_ = detail;
}

void TerminalView::End() {
  std::lock_guard<std::mutex> lock(mutex_);
  phase_.clear();
  Refresh();
}

std::string TerminalView::Bar(int64_t done, int64_t total, int width) {
  const int filled = static_cast<int>(std::clamp<int64_t>(done, 0, total) * width / std::max<int64_t>(total, 1));
  return absl::StrCat("[", std::string(filled, '#'), std::string(width - filled, '.'), "] ", done, "/", total);
}

std::string TerminalView::LiveLine() const {
  if (phase_.empty()) return "";
  const absl::Duration spent = absl::FromChrono(Deadline::Clock::now() - began_);
  std::string line = absl::StrFormat("%s  %.1f s", phase_, absl::ToDoubleSeconds(spent));
  if (total_ > 0) {
    absl::StrAppend(&line, "  ", Bar(done_, total_, 24));
    const std::string left = TimeLeftAtRate(done_, total_, spent);
    if (!left.empty()) absl::StrAppend(&line, "  ", left);
  }
  if (!detail_.empty()) absl::StrAppend(&line, "  ", detail_);
  return Shown(line);
}

void TerminalView::Refresh() {
  if (!live_) return;
  std::string line = LiveLine();
  line.resize(std::min<size_t>(line.size(), static_cast<size_t>(Columns(out_) - 1)));
  std::fputs(kClearLine, out_);
  std::fputs(line.c_str(), out_);
  std::fflush(out_);
}

void TerminalView::Tick() {
  std::unique_lock<std::mutex> lock(mutex_);
  while (!stopping_) {
    if (live_ && !phase_.empty()) Refresh();
    const absl::Duration still = absl::FromChrono(Deadline::Clock::now() - std::max(began_, written_));
    if (!live_ && !phase_.empty() && still >= quiet_) WriteLine(LiveLine());
    changed_.wait_for(lock, kRefreshInterval);
  }
}

}  // namespace quartet
