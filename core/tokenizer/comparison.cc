#include "core/tokenizer/comparison.h"

#include <cstdint>
#include <filesystem>
#include <iterator>
#include <map>
#include <nlohmann/json.hpp>
#include <system_error>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/base/status_macros.h"
#include "core/data/json.h"
#include "core/tokenizer/tokenizer.h"

namespace quartet {
namespace {

using nlohmann::json;

std::string PathOf(const std::string& folder) { return folder + "/tokenizer.json"; }

// Without what has the value that stands for its absence.
json Plain(const json& value) {
  if (value.is_array()) {
    json plain = json::array();
    for (const json& element : value) plain.push_back(Plain(element));
    return plain;
  }
  if (!value.is_object()) return value;
  json plain = json::object();
  for (const auto& [name, member] : value.items()) {
    if (!member.is_null()) plain[name] = Plain(member);
  }
  if (plain.value("type", json()) == "ByteLevel") {
    plain.erase("trim_offsets");  // of positions in the text only
    if (plain.value("use_regex", json()) == true) plain.erase("use_regex");
  }
  return plain;
}

// tokenizer.json in parts that are compared one by one.
struct Parts {
  std::map<int64_t, std::string> tokens;  // by id
  std::vector<std::string> merges;        // "a b"
  std::map<std::string, json> others;     // by name
};

absl::StatusOr<Parts> ReadParts(const std::string& path, const std::string& text) {
  QUARTET_ASSIGN_OR_RETURN(const json tokenizer, ParseJson(text, path));
  const auto wrong = [&] { return absl::InvalidArgumentError(path + " is not a tokenizer"); };
  if (!tokenizer.is_object() || !tokenizer.contains("model") || !tokenizer["model"].is_object()) return wrong();
  Parts parts;
  json model = Plain(tokenizer["model"]);
  const json vocabulary = model.value("vocab", json::object());
  if (!vocabulary.is_object()) return wrong();
  for (const auto& [token, id] : vocabulary.items()) {
    if (!id.is_number_integer()) return wrong();
    parts.tokens[id.get<int64_t>()] = token;
  }
  for (const json& merge : model.value("merges", json::array())) {
    // "a b" until tokenizers 0.20, ["a", "b"] since.
    if (merge.is_array() && merge.size() == 2 && merge[0].is_string() && merge[1].is_string()) {
      parts.merges.push_back(absl::StrCat(merge[0].get<std::string>(), " ", merge[1].get<std::string>()));
    } else if (merge.is_string()) {
      parts.merges.push_back(merge.get<std::string>());
    } else {
      return wrong();
    }
  }
  model.erase("vocab");
  model.erase("merges");
  for (auto flag = model.begin(); flag != model.end();) {
    flag = *flag == false || *flag == "" ? model.erase(flag) : std::next(flag);
  }
  parts.others["model"] = std::move(model);
  json added = json::object();
  for (const json& token : tokenizer.value("added_tokens", json::array())) {
    if (!token.is_object() || !token.value("id", json()).is_number_integer() ||
        !token.value("content", json()).is_string()) {
      return wrong();
    }
    parts.tokens[token["id"].get<int64_t>()] = token["content"].get<std::string>();
    added[token["content"].get<std::string>()] = Plain(token);
  }
  parts.others["added_tokens"] = std::move(added);
  for (const char* name : {"normalizer", "pre_tokenizer"}) parts.others[name] = Plain(tokenizer.value(name, json()));
  return parts;
}

std::string Quoted(const std::map<int64_t, std::string>& tokens, int64_t id) {
  const auto found = tokens.find(id);
  return found == tokens.end() ? "nothing" : json(found->second).dump();
}

}  // namespace

absl::StatusOr<std::string> DescribeTokenizerDifference(const std::string& folder, const std::string& other) {
  std::error_code error;
  if (!std::filesystem::exists(PathOf(folder), error) || !std::filesystem::exists(PathOf(other), error)) return "";
  QUARTET_ASSIGN_OR_RETURN(const std::string text, ReadTextFile(PathOf(folder), kMaxTokenizerBytes));
  QUARTET_ASSIGN_OR_RETURN(const std::string other_text, ReadTextFile(PathOf(other), kMaxTokenizerBytes));
  if (text == other_text) return "";
  QUARTET_ASSIGN_OR_RETURN(const Parts parts, ReadParts(PathOf(folder), text));
  QUARTET_ASSIGN_OR_RETURN(const Parts others, ReadParts(PathOf(other), other_text));
  std::map<int64_t, std::string> ids = parts.tokens;
  ids.insert(others.tokens.begin(), others.tokens.end());
  for (const auto& [id, token] : ids) {
    const std::string here = Quoted(parts.tokens, id), there = Quoted(others.tokens, id);
    if (here != there) return absl::StrCat("token ", id, " is ", here, ", not ", there);
  }
  if (parts.merges != others.merges) return "model.merges are others";
  for (const auto& [name, value] : parts.others) {
    if (value != others.others.at(name)) return absl::StrCat(name, " is another");
  }
  return "";
}

}  // namespace quartet
