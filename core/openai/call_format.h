// How models write calls of tools, a row a format. Thread safe.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace quartet {

// What is not said so is no call, and stays text: JSON, an object a call, of "name", its arguments (an object), and
// maybe "id" and "type", which is "function".
struct CallFormat {
  std::string_view name;
  // A model writes so whose chat template has all of these.
  std::vector<std::string_view> known_by;
  std::string_view begin;                   // stands before calls
  std::string_view end;                     // and behind them; "": the answer ends there
  bool bare;                                // what an answer begins with needs no `begin`, if it is an object
  bool list;                                // of objects; else one
  std::vector<std::string_view> arguments;  // names that they may have
};

// Null: the template writes no calls, or in a format that is not known.
const CallFormat* CallFormatOf(std::string_view chat_template);

struct WrittenCall {
  std::string name;
  nlohmann::ordered_json arguments;  // an object
  std::string id;                    // maybe ""
};

// The calls that stand between the marks; nothing where it is something else.
std::optional<std::vector<WrittenCall>> ReadCalls(const CallFormat& format, std::string_view text);

// Ids are so in each format, since some templates demand it: nine letters of ASCII and digits.
bool IsCallId(std::string_view id);
// One that follows from `seed`.
std::string MakeCallId(std::string_view seed);

}  // namespace quartet
