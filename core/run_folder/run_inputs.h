// What was in the files that decide what a run learns: with the same a run goes on, whatever has come to be under the
// same names since.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/data/dataset.h"
#include "proto/run_config.pb.h"

namespace quartet {

// Of a file of rows, by which a few that were mended are told from others.
struct InputRows {
  int64_t count = 0;
  int64_t in_use = 0;            // in an epoch
  std::vector<uint64_t> blocks;  // as RowBlocks hashes them
};

struct RunInput {
  std::string option;  // whose value names it: "actor.pretrain"
  std::string path;
  std::map<std::string, uint64_t> hashes;  // of "weights", "config.json", "rows", ...
  std::optional<InputRows> rows = {};      // not of release 0.1.0
};

// The models and the chat template that `config` names, as far as they can be read from here. Of weights names, types,
// shapes and some elements of each tensor are hashed, so that it takes no longer for large models.
std::vector<RunInput> ModelInputs(const RunConfig& config);
// The files of rows.
std::vector<RunInput> RowInputs(const Dataset& rows);

// The text of the run folder's inputs.json, which begins with its own hash (core/checkpoint/hashed_text.h).
std::string PrintRunInputs(const std::vector<RunInput>& inputs);
// Also of a bare list without a hash, as it once was. DATA_LOSS, where the text is not what its hash says, and
// INVALID_ARGUMENT name `source`.
absl::StatusOr<std::vector<RunInput>> ParseRunInputs(std::string_view text, std::string_view source);

// That `recorded` has what every list has, of every release: an entry of each model and each file of rows to learn from
// that `config` names, as far as they are among `now`, with hashes where they could be made now. DATA_LOSS names
// `source`, and what is missing.
absl::Status CheckHasInputs(const std::vector<RunInput>& recorded, const RunConfig& config,
                            const std::vector<RunInput>& now, std::string_view source);

struct ChangedInput {
  std::string option, path;
  std::string change;  // "/models/a has other weights than when the run began"
  // It is a file of as many rows, as many of them in use, most of which are as they were: at most one of its blocks of
  // rows is another, or one of 64. So it is after rows that end a run were mended.
  bool is_mended = false;
};
// What has the same option and path in both, but is not the same, has more parts or fewer, or of which other rows are
// in use. What could not be read, then or now, is not compared.
std::vector<ChangedInput> ChangedInputs(const std::vector<RunInput>& before, const std::vector<RunInput>& now);

}  // namespace quartet
