// What OpenRLHF, verl, TRL and their users call our fields: the tables of docs/migrating.md, read when this is built.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace quartet {

struct NameElsewhere {
  std::string_view system;         // the table's title; "Values" of values of a field
  std::vector<std::string> there;  // names, mostly paths with dots
  std::vector<std::string> here;   // paths of ours; empty: nothing is
  std::string_view meaning;        // where it differs, or what is instead; "" where it does not
};
const std::vector<NameElsewhere>& NamesElsewhere();

struct ValueElsewhere {
  std::string_view field, there, here;
};
const std::vector<ValueElsewhere>& ValuesElsewhere();

// "; OpenRLHF's train.batch_size is train.train_batch_size here: ..." where `path` is a name of theirs, or is the
// beginning of some; else "".
std::string MeantPath(std::string_view path);

// "; it is \"grpo\" here" of an error of a value, "FIELD: \"VALUE\"; ...", where the value is theirs; else "".
std::string MeantValue(std::string_view error);

}  // namespace quartet
