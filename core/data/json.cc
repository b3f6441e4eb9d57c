#include "core/data/json.h"

#include <algorithm>
#include <limits>
#include <optional>
#include <type_traits>
#include <unordered_set>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "core/base/status_macros.h"
#include "core/errors/shown.h"

namespace quartet {
namespace {

using nlohmann::json;

constexpr int kDoubleDigits = std::numeric_limits<double>::max_digits10;

// Builds a document as nlohmann's own handler does, but stops at too deep a nesting and at a key that is there already.
template <typename Json>
class BoundedBuilder : public nlohmann::json_sax<Json> {
 public:
  using number_integer_t = typename Json::number_integer_t;
  using number_unsigned_t = typename Json::number_unsigned_t;
  using number_float_t = typename Json::number_float_t;
  using string_t = typename Json::string_t;
  using binary_t = typename Json::binary_t;

  BoundedBuilder(int max_depth, bool exact) : max_depth_(max_depth), exact_(exact) {}

  bool null() override { return Put(nullptr) != nullptr; }
  bool boolean(bool value) override { return Put(value) != nullptr; }
  bool number_integer(number_integer_t value) override { return Put(value) != nullptr; }
  bool number_unsigned(number_unsigned_t value) override { return Put(value) != nullptr; }
  bool number_float(number_float_t value, const string_t& text) override {
    const auto is_digit = [](char c) { return absl::ascii_isdigit(static_cast<unsigned char>(c)); };
    constexpr bool kOrdered = !std::is_same_v<Json, json>;
    const bool whole = text.find_first_of(".eE") == string_t::npos;
    if (kOrdered && !exact_ && whole) {
      constexpr size_t kMostDigits = 60;
      return Fail(absl::StrCat("the whole number ", text.substr(0, kMostDigits), text.size() > kMostDigits ? "..." : "",
                               " is beyond 64 bits"));
    }
    // In rows of data a number keeps its digits where a double cannot.
    const bool in_row = kOrdered && std::count_if(text.begin(), text.end(), is_digit) > kDoubleDigits;
    if (exact_ && (whole || in_row)) return Put(Json::binary({text.begin(), text.end()})) != nullptr;
    return Put(value) != nullptr;
  }
  bool string(string_t& value) override { return Put(std::move(value)) != nullptr; }
  bool binary(binary_t&) override { return Fail("binary values are not JSON"); }
  bool start_object(std::size_t) override { return Open(Json::object()); }
  bool end_object() override { return Close(); }
  bool start_array(std::size_t) override { return Open(Json::array()); }
  bool end_array() override { return Close(); }

  bool key(string_t& name) override {
    slot_ = Insert(name, &open_.back());
    return slot_ != nullptr || Fail(absl::StrCat("the key ", Quoted(name), " stands twice in one object"));
  }

  bool parse_error(std::size_t position, const std::string&, const nlohmann::json::exception& exception) override {
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
    error_ = Shown(what);
    return false;
  }

  Json Take() { return std::move(root_); }
  const std::optional<std::string>& error() const { return error_; }
  // Bytes read up to the error, where the parser itself found it.
  std::optional<std::size_t> position() const { return position_; }

 private:
  struct Container {
    Json* container;
    // Keys of a large object whose own look-up is linear.
    std::unordered_set<std::string> keys;
  };

  // The place of a new key's value; null where the key is there already.
  static Json* Insert(const std::string& name, Container* in) {
    auto& object = in->container->template get_ref<typename Json::object_t&>();
    if constexpr (std::is_same_v<Json, json>) {
      auto [place, is_new] = object.try_emplace(name, nullptr);
      return is_new ? &place->second : nullptr;
    } else {
      constexpr size_t kSmall = 16;
      if (object.size() < kSmall) {
        if (object.find(name) != object.end()) return nullptr;
      } else {
        if (in->keys.empty()) {
          for (const auto& [key, value] : object) in->keys.insert(key);
        }
        if (!in->keys.insert(name).second) return nullptr;
      }
      using Entries = std::vector<typename Json::object_t::value_type>;  // past ordered_map's own, linear, look-up
      return &static_cast<Entries&>(object).emplace_back(name, nullptr).second;
    }
  }

  Json* Put(Json value) {
    if (open_.empty()) {
      root_ = std::move(value);
      return &root_;
    }
    Json& parent = *open_.back().container;
    if (parent.is_array()) {
      auto& elements = parent.template get_ref<typename Json::array_t&>();
      elements.push_back(std::move(value));
      return &elements.back();
    }
    *slot_ = std::move(value);
    return slot_;
  }
  bool Open(Json container) {
    if (static_cast<int>(open_.size()) >= max_depth_) {
      return Fail(absl::StrCat("nested deeper than ", max_depth_, " levels"));
    }
    // The address stays: a container only gains siblings after it is closed.
    open_.push_back({Put(std::move(container)), {}});
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
  const bool exact_;
  Json root_;
  std::vector<Container> open_;  // around the value being read
  Json* slot_ = nullptr;         // where the value of the last key goes
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

std::string Place(std::string_view text, size_t offset, int64_t first_line) {
  offset = std::min(offset, text.size());
  const std::string_view before = text.substr(0, offset);
  const size_t line = first_line + std::count(before.begin(), before.end(), '\n');
  const size_t start = before.rfind('\n');
  const size_t column = offset - (start == std::string_view::npos ? 0 : start + 1);
  return absl::StrCat("line ", line, ", column ", std::max<size_t>(column, 1));
}

template <typename Json>
absl::StatusOr<Json> Parse(std::string_view text, std::string_view source, int max_depth, int64_t first_line,
                           bool exact = false) {
  BoundedBuilder<Json> builder(max_depth, exact);
  const char* furthest = text.data();
  const bool parsed = json::sax_parse(TrackingIterator(text.data(), &furthest),
                                      TrackingIterator(text.data() + text.size(), &furthest), &builder);
  // To the parser a zero byte is the end of the text.
  const size_t zero = parsed ? text.find('\0') : std::string_view::npos;
  if (parsed && zero == std::string_view::npos) return builder.Take();
  const size_t offset = parsed ? zero + 1 : builder.position().value_or(furthest - text.data());
  return absl::InvalidArgumentError(absl::StrCat(
      std::string(source), source.empty() ? "" : ": ", "not well-formed JSON at ", Place(text, offset, first_line),
      ": ", parsed ? "a byte of value 0 after the value" : builder.error().value_or("unexpected end")));
}

template <typename Json>
std::string NumberOf(const Json& value) {
  return {value.get_binary().begin(), value.get_binary().end()};
}

template <typename Json>
std::string Text(const Json& value) {
  return value.dump(/*indent=*/-1, ' ', /*ensure_ascii=*/true, Json::error_handler_t::replace);
}

template <typename Json>
void Print(const Json& value, std::string* to) {
  if (value.is_binary()) {
    to->append(NumberOf(value));
  } else if (value.is_array()) {
    to->push_back('[');
    for (size_t i = 0; i < value.size(); ++i) {
      if (i > 0) to->append(", ");
      Print(value[i], to);
    }
    to->push_back(']');
  } else if (value.is_object()) {
    const size_t begin = to->size();
    for (const auto& [key, item] : value.items()) {
      absl::StrAppend(to, to->size() == begin ? "{" : ", ", Text(Json(key)), ": ");
      Print(item, to);
    }
    to->append(to->size() == begin ? "{}" : "}");
  } else {
    to->append(Text(value));
  }
}

template <typename Json>
std::string Printed(const Json& value) {
  std::string text;
  Print(value, &text);
  return text;
}

}  // namespace

absl::StatusOr<json> ParseExactJson(std::string_view text, std::string_view source) {
  return Parse<json>(text, source, kMaxJsonDepth, 1, /*exact=*/true);
}

absl::StatusOr<nlohmann::ordered_json> ParseExactOrderedJson(std::string_view text, std::string_view source,
                                                             int max_depth, int64_t first_line) {
  return Parse<nlohmann::ordered_json>(text, source, max_depth, first_line, /*exact=*/true);
}

std::string ExactNumber(const json& value) { return NumberOf(value); }
std::string ExactNumber(const nlohmann::ordered_json& value) { return NumberOf(value); }
std::string PrintExactJson(const json& value) { return Printed(value); }
std::string PrintExactJson(const nlohmann::ordered_json& value) { return Printed(value); }

absl::StatusOr<json> ParseJson(std::string_view text, std::string_view source, int max_depth, int64_t first_line) {
  return Parse<json>(text, source, max_depth, first_line);
}

absl::StatusOr<nlohmann::ordered_json> ParseOrderedJson(std::string_view text, std::string_view source, int max_depth,
                                                        int64_t first_line) {
  return Parse<nlohmann::ordered_json>(text, source, max_depth, first_line);
}

absl::StatusOr<json> ReadJsonFile(const std::string& path, int64_t max_bytes, int max_depth) {
  QUARTET_ASSIGN_OR_RETURN(const std::string text, ReadTextFile(path, max_bytes));
  return ParseJson(text, path, max_depth);
}

}  // namespace quartet
