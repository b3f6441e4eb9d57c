#include "viewer/page/config_rows.h"

#include <google/protobuf/descriptor.h>

#include <algorithm>
#include <map>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "core/config/resolving/recorded.h"
#include "proto/field_rule.pb.h"
#include "proto/run_config.pb.h"

namespace quartet {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::FieldDescriptor;

bool IsSame(const std::string& a, const std::string& b) {
  double x = 0, y = 0;
  return a == b ||
         (absl::SimpleAtod(a, &x) && absl::SimpleAtod(b, &y) && static_cast<float>(x) == static_cast<float>(y));
}

// "value  # origin", where a text is in quotes.
void SplitValue(absl::string_view rest, ConfigRow* row) {
  size_t end = 0;
  if (absl::StartsWith(rest, "\"")) {
    for (end = 1; end < rest.size() && rest[end] != '"'; ++end) end += rest[end] == '\\';
    std::string text;
    if (!absl::CUnescape(rest.substr(1, end - 1), &text)) text = std::string(rest.substr(1, end - 1));
    row->value = text;
  } else {
    end = std::min(rest.find('#'), rest.size());
    row->value = std::string(absl::StripTrailingAsciiWhitespace(rest.substr(0, end)));
  }
  const size_t comment = rest.find('#', end);
  if (comment != absl::string_view::npos) {
    row->origin = std::string(absl::StripAsciiWhitespace(rest.substr(comment + 1)));
    const absl::string_view before = absl::StripTrailingAsciiWhitespace(rest.substr(0, comment));
    if (rest.substr(before.size()) == DefaultMark(before)) row->origin.clear();  // nobody has set it
  }
}

}  // namespace

std::vector<ConfigRow> ReadConfigRows(std::string_view text) {
  std::vector<ConfigRow> rows;
  std::vector<std::string> path;
  std::vector<const Descriptor*> messages = {RunConfig::descriptor()};
  std::map<std::string, int> elements;
  for (const absl::string_view line : absl::StrSplit(absl::string_view(text.data(), text.size()), '\n')) {
    absl::string_view content = absl::StripAsciiWhitespace(line);
    if (content == "}" && !path.empty()) {
      path.pop_back();
      messages.pop_back();
    } else if (absl::ConsumeSuffix(&content, " {")) {
      const FieldDescriptor* const field =
          messages.back() == nullptr ? nullptr : messages.back()->FindFieldByName(std::string(content));
      path.emplace_back(content);
      if (field != nullptr && field->is_repeated()) {
        absl::StrAppend(&path.back(), ".", elements[absl::StrJoin(path, ".")]++);
      }
      messages.push_back(field == nullptr ? nullptr : field->message_type());
    } else if (const size_t colon = content.find(": "); colon != absl::string_view::npos && content[0] != '#') {
      const std::string name(content.substr(0, colon));
      ConfigRow row;
      row.path = absl::StrCat(absl::StrJoin(path, "."), path.empty() ? "" : ".", name);
      SplitValue(content.substr(colon + 2), &row);
      const FieldDescriptor* const field =
          messages.back() == nullptr ? nullptr : messages.back()->FindFieldByName(name);
      if (field != nullptr) {
        row.is_text = field->cpp_type() == FieldDescriptor::CPPTYPE_STRING;
        const FieldRule& rule = field->options().GetExtension(field_rule);
        if (rule.has_default_()) row.by_default = rule.default_();
      }
      row.differs = row.by_default.has_value() ? !IsSame(row.value, *row.by_default) : !row.origin.empty();
      rows.push_back(std::move(row));
    }
  }
  // A configuration that a program has made of itself says nowhere who has set what: then texts that have no default of
  // their own (models, data) are taken to be set.
  const bool has_origins =
      std::any_of(rows.begin(), rows.end(), [](const ConfigRow& row) { return !row.origin.empty(); });
  for (ConfigRow& row : rows) row.differs = row.differs || (!has_origins && row.is_text && !row.by_default.has_value());
  return rows;
}

}  // namespace quartet
