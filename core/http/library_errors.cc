#include "core/http/library_errors.h"

#include <gnutls/gnutls.h>
#include <poll.h>
#include <sys/socket.h>

#include <chrono>
#include <cstdint>
#include <exception>
#include <mutex>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "core/base/logging.h"

namespace quartet {
namespace {

// What it logs before it answers begins so.
constexpr char kAnswers[] = "Error processing request (HTTP response code is %u";
// For so long a client that was answered may go on writing.
constexpr std::chrono::milliseconds kLinger{1000};

}  // namespace

// Each connection has its thread.
struct LibraryErrors::OfThread {
  MHD_Connection* connection = nullptr;
  std::shared_lock<std::shared_mutex> answered;
};

LibraryErrors::LibraryErrors(const HttpReply& malformed)
    : reply_(malformed),
      options_{{{MHD_OPTION_EXTERNAL_LOGGER, reinterpret_cast<intptr_t>(&Logged), this},
                {MHD_OPTION_URI_LOG_CALLBACK, reinterpret_cast<intptr_t>(&Begun), this},
                {MHD_OPTION_END, 0, nullptr}}} {
  reply_.headers["Connection"] = "close";
}

LibraryErrors::OfThread& LibraryErrors::OnThisThread() {
  thread_local OfThread own;
  return own;
}

void* LibraryErrors::Begun(void* /*self*/, const char* /*url*/, MHD_Connection* connection) {
  OnThisThread().connection = connection;
  return nullptr;  // the state of the request, which its handler makes
}

void LibraryErrors::Logged(void* self, const char* format, va_list arguments) {
  auto& errors = *static_cast<LibraryErrors*>(self);
  OfThread& own = OnThisThread();
  if (own.connection == nullptr || !absl::StartsWith(format, kAnswers)) return;
  try {
    own.answered = std::shared_lock(errors.answered_);
    errors.Answer(own.connection, va_arg(arguments, unsigned));
  } catch (const std::exception& error) {
    QUARTET_LOG(kError) << "HTTP: " << error.what();
  }
}

void LibraryErrors::Answer(MHD_Connection* connection, unsigned status) const {
  std::string text =
      absl::StrCat("HTTP/1.1 ", status, " ", MHD_get_reason_phrase_for(status),
                   "\r\nContent-Type: ", reply_.content_type, "\r\nContent-Length: ", reply_.body.size(), "\r\n");
  for (const auto& [name, value] : reply_.headers) absl::StrAppend(&text, name, ": ", value, "\r\n");
  absl::StrAppend(&text, "\r\n", reply_.body);
  const int fd = MHD_get_connection_info(connection, MHD_CONNECTION_INFO_CONNECTION_FD)->connect_fd;
  // A client that lets answers pile up gets none.
  if (const auto* tls = MHD_get_connection_info(connection, MHD_CONNECTION_INFO_GNUTLS_SESSION)) {
    gnutls_record_send(static_cast<gnutls_session_t>(tls->tls_session), text.data(), text.size());
  } else {
    send(fd, text.data(), text.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
  }
  shutdown(fd, SHUT_WR);
  // Were the socket closed on what the client still writes, it might not get to read this.
  const auto end = std::chrono::steady_clock::now() + kLinger;
  std::array<char, 4096> dropped;
  for (pollfd more = {.fd = fd, .events = POLLIN, .revents = 0}; std::chrono::steady_clock::now() < end;) {
    if (poll(&more, 1, kLinger.count()) <= 0) return;
    if (recv(fd, dropped.data(), dropped.size(), MSG_DONTWAIT) <= 0) return;
  }
}

}  // namespace quartet
