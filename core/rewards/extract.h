// Where an answer's text says what the answer is. Functions of texts, in time linear in them. Thread safe.
#pragma once

#include <initializer_list>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace quartet {

std::string_view StripSpace(std::string_view text);

// What is between the last <name> and the </name> that follows it; nothing where none follows.
std::optional<std::string_view> LastTag(std::string_view text, std::string_view name);

// The contents of the fenced blocks (```, ~~~) that are marked as one of `languages`; where none is, of all. A fence
// may open a block behind text, and be indented, as in lists: its code loses that indentation where it has it. A block
// that no fence on a line of its own closes ends at the first one behind its code; else at the next marked block, or
// the end.
std::vector<std::string> CodeBlocks(std::string_view text, std::initializer_list<std::string_view> languages);

// The last JSON object of the text that is in no other one, as ParseExactJson reads it.
std::optional<nlohmann::json> LastJsonObject(std::string_view text);
// The value at keys and places, "." between them; null where there is none.
const nlohmann::json* AtPath(const nlohmann::json& object, std::string_view path);

}  // namespace quartet
