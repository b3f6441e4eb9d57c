#include "core/http/request_head.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <functional>
#include <map>
#include <string_view>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"

namespace quartet {
namespace {

// Headers of which a second one says something else, to one who reads the first, than to one who reads the last.
constexpr std::array<std::string_view, 5> kOnce = {"authorization", "content-length", "content-type", "host",
                                                   "transfer-encoding"};

// Of the names of headers (RFC 9110, 5.6.2).
bool IsOfToken(char c) {
  return absl::ascii_isalnum(static_cast<unsigned char>(c)) || absl::StrContains("!#$%&'*+-.^_`|~", c);
}
bool IsToken(std::string_view text) { return !text.empty() && std::all_of(text.begin(), text.end(), IsOfToken); }

// Of the values of headers (RFC 9110, 5.5).
bool IsOfValue(char c) { return c == '\t' || !absl::ascii_iscntrl(static_cast<unsigned char>(c)); }

// Lines of a head that stand one behind the other in memory, as they came but that libmicrohttpd (0.9.75) has put NULs
// in place of the colons and of the bytes that end lines. So bytes that it has passed over show as a gap: a NUL that a
// client sent, which ends a text for it; a line that goes on in the next, which it puts together elsewhere; and a name
// that is empty, which ends the head for it, so that what is behind that is the next request. What alone looks the same
// as the end of a head is an empty name behind a line that ends in LF where those before it end in CR LF.
class Lines {
 public:
  explicit Lines(const char* begin) : end_(Address(begin)) {}

  // The line has this part next, behind one byte, or at its beginning.
  void Add(const char* part) {
    ordered_ = ordered_ && Address(part) == end_;
    end_ += strlen(part);
  }
  void Skip(uintptr_t bytes) { end_ += bytes; }
  // A name begins the next line.
  void Next(const char* name) {
    const uintptr_t gap = Address(name) - end_;
    if (line_end_ == 0) line_end_ = gap;
    ordered_ = ordered_ && gap == line_end_ && (gap == 1 || gap == 2);
    end_ = Address(name);
    Add(name);
  }
  // Behind the colon and spaces.
  void Value(const char* value) {
    const uintptr_t colon = end_, at = Address(value);
    ordered_ = ordered_ && at > colon;
    for (uintptr_t before = 1; ordered_ && before < at - colon; ++before) {
      const char c = *(value - before);
      ordered_ = c == ' ' || c == '\t';
    }
    end_ = at;
    Add(value);
  }
  // Whether an empty line behind the last one ends the head, and all that came was shown.
  bool IsWhole(const char* head, size_t bytes) const {
    const uintptr_t rest = Address(head) + bytes - end_;
    return ordered_ && (line_end_ == 0 ? rest == 2 || rest == 4 : rest == 2 * line_end_);
  }

 private:
  static uintptr_t Address(const char* at) { return reinterpret_cast<uintptr_t>(at); }

  uintptr_t end_;           // of what was shown
  uintptr_t line_end_ = 0;  // bytes that end a line; 0: not known yet
  bool ordered_ = true;
};

struct Reading {
  std::map<std::string, std::string>& headers;
  Lines lines;
  bool malformed = false;

  static MHD_Result Add(void* self, MHD_ValueKind /*kind*/, const char* name, const char* value) {
    auto& reading = *static_cast<Reading*>(self);
    std::map<std::string, std::string>& all = reading.headers;
    if (value == nullptr) {
      reading.malformed = true;
      return MHD_YES;
    }
    reading.lines.Next(name);
    reading.lines.Value(value);
    const std::string lower = absl::AsciiStrToLower(name), text = value;
    // libmicrohttpd knows "Content-Length " for no length, where others do.
    if (!IsToken(lower) || !std::all_of(text.begin(), text.end(), IsOfValue)) reading.malformed = true;
    const bool comes_again = !all.insert_or_assign(lower, text).second;
    if (comes_again && std::find(kOnce.begin(), kOnce.end(), lower) != kOnce.end()) reading.malformed = true;
    if (all.contains("content-length") && all.contains("transfer-encoding")) reading.malformed = true;
    // libmicrohttpd would read a body of any other coding until its connection ends.
    if (lower == "transfer-encoding" && !absl::EqualsIgnoreCase(text, "chunked")) reading.malformed = true;
    return MHD_YES;
  }
};

}  // namespace

bool ReadHead(MHD_Connection* connection, const std::string& target, const char* method, const char* url,
              const char* version, HttpRequest* request) {
  request->method = method;
  request->path = url;
  Lines lines(method);
  lines.Add(method);
  lines.Skip(1 + target.size() + 1);  // decoded, it may be shorter
  lines.Add(version);
  Reading reading = {.headers = request->headers, .lines = lines};
  MHD_get_connection_values(connection, MHD_HEADER_KIND, Reading::Add, &reading);
  const MHD_ConnectionInfo* const size = MHD_get_connection_info(connection, MHD_CONNECTION_INFO_REQUEST_HEADER_SIZE);
  if (size == nullptr || !reading.lines.IsWhole(method, size->header_size)) return false;
  // Decoded, it would end the path.
  return !reading.malformed && !absl::StrContains(target, "%00");
}

bool HasTrailers(MHD_Connection* connection, const char* method) {
  const MHD_ConnectionInfo* const size = MHD_get_connection_info(connection, MHD_CONNECTION_INFO_REQUEST_HEADER_SIZE);
  if (size == nullptr) return true;
  // Where the body's last CR comes alone libmicrohttpd takes the head's last header for one behind the body, too.
  struct Behind {
    std::string_view head;
    bool any = false;
  } behind = {.head = {method, size->header_size}};
  MHD_get_connection_values(
      connection, MHD_FOOTER_KIND,
      [](void* self, MHD_ValueKind /*kind*/, const char* name, const char* /*value*/) {
        auto& all = *static_cast<Behind*>(self);
        const std::less<const char*> before;
        if (before(name, all.head.data()) || !before(name, all.head.data() + all.head.size())) all.any = true;
        return MHD_YES;
      },
      &behind);
  return behind.any;
}

}  // namespace quartet
