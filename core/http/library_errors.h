// Requests that libmicrohttpd finds malformed before it asks anybody.
#pragma once

#include <microhttpd.h>

#include <array>
#include <cstdarg>
#include <mutex>
#include <shared_mutex>

#include "core/http/http_server.h"

namespace quartet {

// libmicrohttpd answers them itself: as HTML, and some of them twice (0.9.75). The line that it writes in its log right
// before is the only hook: the answer is sent there, and the connection shut for what follows. An error within a
// connection's first line comes before any hook. For daemons with a thread a connection; outlives the daemon.
class LibraryErrors {
 public:
  // Requests are answered with `malformed`, but for the status, which is libmicrohttpd's: 400, 413, 431.
  explicit LibraryErrors(const HttpReply& malformed);

  // The daemon's flag and first options, which need both.
  static constexpr unsigned kFlag = MHD_USE_ERROR_LOG;
  const MHD_OptionItem* options() const { return options_.data(); }

  // Until connections that were answered here have ended. To be called before the daemon is stopped: it crashes where
  // it is stopped between its log and its answer.
  void AwaitEnds() { const std::unique_lock none(answered_); }

 private:
  struct OfThread;
  static OfThread& OnThisThread();
  static void* Begun(void* self, const char* url, MHD_Connection* connection);
  static void Logged(void* self, const char* format, va_list arguments);
  void Answer(MHD_Connection* connection, unsigned status) const;

  HttpReply reply_;
  std::shared_mutex answered_;  // shared by the threads of connections that were
  const std::array<MHD_OptionItem, 3> options_;
};

}  // namespace quartet
