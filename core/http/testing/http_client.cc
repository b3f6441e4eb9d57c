#include "core/http/testing/http_client.h"

#include <arpa/inet.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "core/base/logging.h"

namespace quartet {

HttpClient::HttpClient(int port) : port_(port), fd_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  QUARTET_CHECK(connect(fd_, reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0) << "port " << port;
}

void HttpClient::Send(const std::string& bytes) {
  QUARTET_CHECK(send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL) == static_cast<ssize_t>(bytes.size()));
}

void HttpClient::Ask(const std::string& method, const std::string& path, const std::string& body,
                     const std::map<std::string, std::string>& headers) {
  std::map<std::string, std::string> all = headers;
  all.emplace("Host", absl::StrCat("127.0.0.1:", port_));
  if (!body.empty()) {
    all.emplace("Content-Type", "application/json");
    all.emplace("Content-Length", absl::StrCat(body.size()));
  }
  std::string request = absl::StrCat(method, " ", path, " HTTP/1.1\r\n");
  for (const auto& [name, value] : all) absl::StrAppend(&request, name, ": ", value, "\r\n");
  Send(absl::StrCat(request, "\r\n", body));
}

HttpAnswer HttpClient::ReadHead() {
  HttpAnswer answer;
  const std::string first = ReadLine();
  if (first.starts_with("HTTP/1.1 ")) (void)absl::SimpleAtoi(first.substr(9, 3), &answer.status);
  for (std::string line = ReadLine(); !line.empty(); line = ReadLine()) {
    const size_t colon = line.find(':');
    answer.headers[absl::AsciiStrToLower(line.substr(0, colon))] =
        std::string(absl::StripAsciiWhitespace(line.substr(colon + 1)));
  }
  return answer;
}

std::optional<std::string> HttpClient::ReadChunk() {
  const std::string length = ReadLine();
  if (length.empty()) return std::nullopt;  // the connection has ended
  const size_t size = std::strtoul(length.c_str(), nullptr, 16);
  std::string chunk = ReadBytes(size);
  ReadLine();
  if (size == 0) return std::nullopt;
  return chunk;
}

HttpAnswer HttpClient::Read() {
  HttpAnswer answer = ReadHead();
  if (answer.headers["transfer-encoding"] == "chunked") {
    while (const std::optional<std::string> chunk = ReadChunk()) answer.body += *chunk;
  } else {
    answer.body = ReadBytes(std::strtoul(answer.headers["content-length"].c_str(), nullptr, 10));
  }
  return answer;
}

void HttpClient::Close() {
  if (fd_ >= 0) close(fd_);
  fd_ = -1;
}

bool HttpClient::IsClosed() {
  char byte;
  const ssize_t count = recv(fd_, &byte, 1, MSG_PEEK | MSG_DONTWAIT);
  return count == 0 || (count < 0 && errno != EAGAIN && errno != EWOULDBLOCK);
}

std::string HttpClient::ReadLine() {
  size_t end = read_.find("\r\n");
  while (end == std::string::npos && Fill()) end = read_.find("\r\n");
  if (end == std::string::npos) return "";
  std::string line = read_.substr(0, end);
  read_.erase(0, end + 2);
  return line;
}

std::string HttpClient::ReadBytes(size_t count) {
  while (read_.size() < count && Fill()) {
  }
  std::string bytes = read_.substr(0, count);
  read_.erase(0, count);
  return bytes;
}

bool HttpClient::Fill() {
  char buffer[4096];
  const ssize_t count = recv(fd_, buffer, sizeof(buffer), 0);
  if (count > 0) read_.append(buffer, static_cast<size_t>(count));
  return count > 0;
}

HttpAnswer HttpAsk(int port, const std::string& method, const std::string& path, const std::string& body,
                   const std::map<std::string, std::string>& headers) {
  HttpClient client(port);
  client.Ask(method, path, body, headers);
  return client.Read();
}

}  // namespace quartet
