#include "core/data/json.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <optional>
#include <utility>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "core/base/status_macros.h"

namespace quartet {
namespace {

using nlohmann::json;

// Builds a document as nlohmann's own handler does, but stops at too deep a nesting and at a key that is there already.
class BoundedBuilder : public nlohmann::json_sax<json> {
 public:
  explicit BoundedBuilder(int max_depth) : max_depth_(max_depth) {}

  bool null() override { return Put(nullptr) != nullptr; }
  bool boolean(bool value) override { return Put(value) != nullptr; }
  bool number_integer(number_integer_t value) override { return Put(value) != nullptr; }
  bool number_unsigned(number_unsigned_t value) override { return Put(value) != nullptr; }
  bool number_float(number_float_t value, const string_t&) override { return Put(value) != nullptr; }
  bool string(string_t& value) override { return Put(std::move(value)) != nullptr; }
  bool binary(binary_t&) override { return Fail("binary values are not JSON"); }
  bool start_object(std::size_t) override { return Open(json::object()); }
  bool end_object() override { return Close(); }
  bool start_array(std::size_t) override { return Open(json::array()); }
  bool end_array() override { return Close(); }

  bool key(string_t& name) override {
    auto [place, is_new] = open_.back()->get_ref<json::object_t&>().try_emplace(name, nullptr);
    if (!is_new) return Fail(absl::StrCat("the key \"", name, "\" stands twice in one object"));
    slot_ = &place->second;
    return true;
  }

  bool parse_error(std::size_t position, const std::string&, const json::exception& exception) override {
    position_ = position;
    // "[json.exception.parse_error.101] parse error at line 1, column 2: syntax error while ..."
    std::string what = exception.what();
    for (const char* marker : {": syntax error ", "attempting to parse "}) {
      const size_t at = what.find(marker);
      if (at != std::string::npos) {
        what = what.substr(at + (marker[0] == ':' ? 2 : 0));
        break;
      }
    }
    constexpr std::size_t kMaxErrorBytes = 200;  // it quotes what was read, whatever its length
    if (what.size() > kMaxErrorBytes) what = what.substr(0, kMaxErrorBytes) + "...";
    error_ = std::move(what);
    return false;
  }

  json Take() { return std::move(root_); }
  const std::optional<std::string>& error() const { return error_; }
  // Bytes read up to the error, where the parser itself found it.
  std::optional<std::size_t> position() const { return position_; }

 private:
  json* Put(json value) {
    if (open_.empty()) {
      root_ = std::move(value);
      return &root_;
    }
    json& parent = *open_.back();
    if (parent.is_array()) {
      auto& elements = parent.get_ref<json::array_t&>();
      elements.push_back(std::move(value));
      return &elements.back();
    }
    *slot_ = std::move(value);
    return slot_;
  }
  bool Open(json container) {
    if (static_cast<int>(open_.size()) >= max_depth_) {
      return Fail(absl::StrCat("nested deeper than ", max_depth_, " levels"));
    }
    // The address stays: a container only gains siblings after it is closed.
    open_.push_back(Put(std::move(container)));
    return true;
  }
  bool Close() {
    open_.pop_back();
    return true;
  }
  bool Fail(std::string error) {
    error_ = std::move(error);
    return false;
  }

  const int max_depth_;
  json root_;
  std::vector<json*> open_;  // the containers around the value being read
  json* slot_ = nullptr;     // where the value of the last key goes
  std::optional<std::string> error_;
  std::optional<std::size_t> position_;
};

// Iterates over the text and knows, through `furthest`, how far the parser came.
class TrackingIterator {
 public:
  using iterator_category = std::input_iterator_tag;
  using value_type = char;
  using difference_type = std::ptrdiff_t;
  using pointer = const char*;
  using reference = const char&;

  TrackingIterator(const char* at, const char** furthest) : at_(at), furthest_(furthest) {}
  reference operator*() const { return *at_; }
  TrackingIterator& operator++() {
    *furthest_ = ++at_;
    return *this;
  }
  TrackingIterator operator++(int) {
    TrackingIterator before = *this;
    ++*this;
    return before;
  }
  bool operator==(const TrackingIterator& other) const { return at_ == other.at_; }
  bool operator!=(const TrackingIterator& other) const { return at_ != other.at_; }

 private:
  const char* at_;
  const char** furthest_;
};

std::string Place(std::string_view text, size_t offset, int first_line) {
  offset = std::min(offset, text.size());
  const std::string_view before = text.substr(0, offset);
  const size_t line = first_line + std::count(before.begin(), before.end(), '\n');
  const size_t start = before.rfind('\n');
  const size_t column = offset - (start == std::string_view::npos ? 0 : start + 1);
  return absl::StrCat("line ", line, ", column ", std::max<size_t>(column, 1));
}

}  // namespace

absl::StatusOr<json> ParseJson(std::string_view text, std::string_view source, int max_depth, int first_line) {
  BoundedBuilder builder(max_depth);
  const char* furthest = text.data();
  const bool parsed = json::sax_parse(TrackingIterator(text.data(), &furthest),
                                      TrackingIterator(text.data() + text.size(), &furthest), &builder);
  if (!parsed) {
    const size_t offset = builder.position().value_or(furthest - text.data());
    return absl::InvalidArgumentError(absl::StrCat(std::string(source), ": not well-formed JSON at ",
                                                   Place(text, offset, first_line), ": ",
                                                   builder.error().value_or("unexpected end")));
  }
  return builder.Take();
}

absl::StatusOr<std::string> ReadTextFile(const std::string& path, int64_t max_bytes) {
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);  // NONBLOCK: a pipe must not hang us
  if (fd < 0) {
    const std::string reason = absl::StrCat(path, ": cannot be opened: ", strerror(errno));
    if (errno == ENOENT || errno == ENOTDIR) return absl::NotFoundError(reason);
    if (errno == EACCES) return absl::PermissionDeniedError(reason);
    return absl::UnavailableError(reason);
  }
  absl::Cleanup closer = [fd] { close(fd); };
  struct stat info;
  if (fstat(fd, &info) != 0) return absl::UnavailableError(absl::StrCat(path, ": fstat: ", strerror(errno)));
  if (!S_ISREG(info.st_mode)) return absl::InvalidArgumentError(absl::StrCat(path, ": not a regular file"));
  if (info.st_size > max_bytes) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": ", info.st_size, " bytes long; at most ", max_bytes, " are allowed"));
  }
  std::string text(info.st_size, '\0');
  size_t filled = 0;
  while (filled < text.size()) {
    const ssize_t n = read(fd, text.data() + filled, text.size() - filled);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return absl::UnavailableError(absl::StrCat(path, ": read: ", strerror(errno)));
    if (n == 0) break;
    filled += n;
  }
  text.resize(filled);
  return text;
}

absl::StatusOr<json> ReadJsonFile(const std::string& path, int64_t max_bytes, int max_depth) {
  QUARTET_ASSIGN_OR_RETURN(const std::string text, ReadTextFile(path, max_bytes));
  return ParseJson(text, path, max_depth);
}

}  // namespace quartet
