// JSON as the page carries it: short, and with nothing in it that could end the script that holds it.
#pragma once

#include <string>
#include <string_view>

namespace quartet {

// Four significant digits; null where `value` is not finite.
void AppendJsonNumber(double value, std::string* out);
// Bytes that are no UTF-8 become U+FFFD. "<", ">", "&" and JavaScript's line ends U+2028 and U+2029 are escaped.
void AppendJsonText(std::string_view text, std::string* out);

// A list or an object that grows: `open` is "[" or "{".
class JsonList {
 public:
  JsonList(std::string_view open, std::string* out) : out_(out), close_(open == "[" ? "]" : "}") { out_->append(open); }
  ~JsonList() { out_->append(close_); }
  JsonList(const JsonList&) = delete;
  JsonList& operator=(const JsonList&) = delete;

  // Where the next element is written.
  std::string* Next() {
    if (!first_) out_->push_back(',');
    first_ = false;
    return out_;
  }
  std::string* Next(std::string_view key) {
    AppendJsonText(key, Next());
    out_->push_back(':');
    return out_;
  }
  void Number(std::string_view key, double value) { AppendJsonNumber(value, Next(key)); }
  void Text(std::string_view key, std::string_view value) { AppendJsonText(value, Next(key)); }

 private:
  std::string* const out_;
  const std::string_view close_;
  bool first_ = true;
};

}  // namespace quartet
