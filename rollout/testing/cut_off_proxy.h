// For tests: a TCP connection to a server of this host that breaks after a given number of bytes, as it does when the
// server's process is killed.
#pragma once

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <limits>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace quartet {

class CutOffProxy {
 public:
  // `target` is "127.0.0.1:port". After `bytes` that the server has sent, all connections are closed and no further one
  // is accepted.
  explicit CutOffProxy(const std::string& target, int64_t bytes = std::numeric_limits<int64_t>::max())
      : bytes_left_(bytes) {
    if (!absl::SimpleAtoi(target.substr(target.find(':') + 1), &target_port_)) std::abort();
    listener_ = socket(AF_INET, SOCK_STREAM, 0);
    sockaddr_in address = Loopback(0);
    bind(listener_, reinterpret_cast<sockaddr*>(&address), sizeof(address));
    listen(listener_, 16);
    socklen_t size = sizeof(address);
    getsockname(listener_, reinterpret_cast<sockaddr*>(&address), &size);
    endpoint_ = absl::StrCat("127.0.0.1:", ntohs(address.sin_port));
    accepting_ = std::thread([this] { Accept(); });
  }
  ~CutOffProxy() {
    Cut();
    accepting_.join();
    for (std::thread& pump : pumps_) pump.join();
    for (const int socket : sockets_) close(socket);
    close(listener_);
  }

  const std::string& endpoint() const { return endpoint_; }
  int64_t passed() const { return passed_; }

 private:
  static sockaddr_in Loopback(int port) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    address.sin_port = htons(static_cast<uint16_t>(port));
    return address;
  }

  void Accept() {
    for (;;) {
      const int client = accept(listener_, nullptr, nullptr);
      if (client < 0) return;
      const int server = socket(AF_INET, SOCK_STREAM, 0);
      const sockaddr_in address = Loopback(target_port_);
      const std::lock_guard lock(mutex_);
      sockets_.push_back(client);
      sockets_.push_back(server);
      if (cut_ || connect(server, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0) {
        shutdown(client, SHUT_RDWR);
        continue;
      }
      pumps_.emplace_back([this, client, server] { Pump(client, server, /*counted=*/false); });
      pumps_.emplace_back([this, client, server] { Pump(server, client, /*counted=*/true); });
    }
  }

  void Pump(int from, int to, bool counted) {
    char buffer[4096];
    for (;;) {
      const ssize_t count = recv(from, buffer, sizeof(buffer), 0);
      if (count <= 0) break;
      if (counted) {
        passed_ += count;
        if ((bytes_left_ -= count) < 0) {
          Cut();
          break;
        }
      }
      if (send(to, buffer, count, MSG_NOSIGNAL) != count) break;
    }
    shutdown(from, SHUT_RDWR);
    shutdown(to, SHUT_RDWR);
  }

  void Cut() {
    const std::lock_guard lock(mutex_);
    cut_ = true;
    shutdown(listener_, SHUT_RDWR);
    for (const int socket : sockets_) shutdown(socket, SHUT_RDWR);
  }

  int target_port_ = 0;
  int listener_ = -1;
  std::string endpoint_;
  std::atomic<int64_t> bytes_left_;
  std::atomic<int64_t> passed_ = 0;
  std::mutex mutex_;
  bool cut_ = false;  // guarded by mutex_, as the next two are
  std::vector<int> sockets_;
  std::vector<std::thread> pumps_;
  std::thread accepting_;
};

}  // namespace quartet
