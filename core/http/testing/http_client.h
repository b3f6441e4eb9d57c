// A plain HTTP/1.1 client over a socket, for tests: shows what is on the wire.
#pragma once

#include <map>
#include <optional>
#include <string>

namespace quartet {

struct HttpAnswer {
  int status = 0;
  std::map<std::string, std::string> headers;  // names in lower case
  std::string body;
};

// A connection to 127.0.0.1, for one request at a time. One thread.
class HttpClient {
 public:
  explicit HttpClient(int port);
  ~HttpClient() { Close(); }
  HttpClient(const HttpClient&) = delete;
  HttpClient& operator=(const HttpClient&) = delete;

  // Sends these bytes.
  void Send(const std::string& bytes);
  // Sends a request with `headers` beside Host, Content-Type (JSON) and Content-Length.
  void Ask(const std::string& method, const std::string& path, const std::string& body = "",
           const std::map<std::string, std::string>& headers = {});
  // Of the last request: status and headers, with an empty body.
  HttpAnswer ReadHead();
  // The next chunk of a body that comes in chunks; nothing after the last.
  std::optional<std::string> ReadChunk();
  // The whole answer.
  HttpAnswer Read();
  void Close();
  // Whether the other end has closed the connection, and all that it has sent is read.
  bool IsClosed();

 private:
  std::string ReadLine();
  std::string ReadBytes(size_t count);
  bool Fill();

  const int port_;
  int fd_;
  std::string read_;  // and not used yet
};

// One request on a connection of its own.
HttpAnswer HttpAsk(int port, const std::string& method, const std::string& path, const std::string& body = "",
                   const std::map<std::string, std::string>& headers = {});

}  // namespace quartet
