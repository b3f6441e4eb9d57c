// One row of a data set: the fields of it that options name. LibTorch-free.
#pragma once

#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace quartet {

struct RowKey {
  // A field of the row, or, with dots, one inside of it ("reward_model.ground_truth"), unless the row has a field of
  // that whole name.
  std::string name;
  std::string option;     // whose value the name is
  bool optional = false;  // absent from the record where a row lacks it
  bool list = false;      // a list is allowed, too
  bool as_json = false;   // a list or an object is allowed, too, and becomes its JSON text
  std::string spared_by;  // a key: optional where that field is a list
  bool rest = false;      // instead of a field, by no name: all fields of the row whose name is no other key's
};

struct Record {
  std::string source;  // name of the file, without folder and extension
  int64_t row = 0;     // in the file, counted from 1
  std::string place;   // option, file and line (of Parquet the row), for errors
  // The asked-for keys alone, each in one of these.
  std::map<std::string, std::string> fields;
  std::set<std::string> written_as_json;                // those of `fields` that are lists or objects (RowKey.as_json)
  std::map<std::string, nlohmann::ordered_json> lists;  // without the binary values of ParseExactOrderedJson
  std::string rest;  // where it is asked for: a JSON object, its numbers as they are written

  bool contains(const std::string& key) const { return fields.contains(key) || lists.contains(key); }
};

// The fields `keys` of a row, a JSON object of ParseExactOrderedJson. A field is a string, or a number or boolean,
// which becomes its JSON text (a label 42 reads "42"), or a list or an object where the key allows it; one that is
// optional and null is as if it were not there. So is what is null inside the objects of a list of a file of columns,
// where each row has the fields that any row has. In a list the numbers are doubles and whole numbers of 64 bits;
// others are refused. INVALID_ARGUMENT names the field, its option and what the row has: `columns`, where it is of a
// file that has the same ones in each row.
absl::StatusOr<Record> ReadRecord(const nlohmann::ordered_json& row, const std::vector<RowKey>& keys,
                                  const std::string& columns = "");

// The value at a key of a row, an object; null where there is none.
const nlohmann::ordered_json* FindField(const nlohmann::ordered_json& row, std::string_view key);

// Names with commas between, shortened where they are many; "nothing".
std::string JoinNames(const std::vector<std::string>& names);

}  // namespace quartet
