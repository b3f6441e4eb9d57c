// Reads JSONL: one JSON object a line. LibTorch-free.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace quartet {

struct Record {
  int line = 0;                               // counted from 1
  std::map<std::string, std::string> fields;  // the asked-for keys alone
};

// The fields `keys` of every line of `path`, in order. A field is a string, or a number or boolean, which becomes its
// JSON text (a label 42 reads "42"). A key that starts with '?' is optional: absent from Record::fields where the line
// lacks it. Blank lines are allowed at the end of the file only. INVALID_ARGUMENT names file, line and field; a file
// without any record is INVALID_ARGUMENT too.
absl::StatusOr<std::vector<Record>> ReadJsonl(const std::string& path, const std::vector<std::string>& keys);

}  // namespace quartet
