// What presets, examples and the documents' configurations resolve to, defaults filled in: golden, so that a change to
// how defaults are found shows where it changes a user's run. The test prints the command that takes over what is now.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "core/base/files/files.h"
#include "core/config/field_paths.h"
#include "core/config/origins/origins.h"
#include "core/config/origins/presets.h"
#include "core/config/run_config.h"

namespace quartet {
namespace {

namespace fs = std::filesystem;

constexpr char kGolden[] = "core/config/origins/testdata/resolved.txt";

using Fields = std::map<std::string, std::string>;

absl::StatusOr<Fields> Resolved(const ConfigSources& sources) {
  ConfigSources placed = sources;
  placed.overrides.push_back("run_dir=/run");  // by default it has the time in its name
  const auto config = LoadRunConfig(placed, "/base");
  if (!config.ok()) return config.status();
  return FlatFields(*config);
}

// A line for each field that differs from `defaults`.
std::string Described(const absl::StatusOr<Fields>& fields, const Fields& defaults) {
  if (!fields.ok()) return absl::StrCat("refused: ", std::string(fields.status().message()), "\n");
  std::string text;
  for (const auto& [path, value] : *fields) {
    const auto found = defaults.find(path);
    if (found == defaults.end() || found->second != value) absl::StrAppend(&text, path, ": ", value, "\n");
  }
  for (const auto& [path, value] : defaults) {
    if (!fields->contains(path)) absl::StrAppend(&text, path, ": not set\n");
  }
  return text;
}

std::vector<std::string> FilesOf(const std::string& folder, const std::string& extension) {
  std::vector<std::string> files;
  for (const auto& entry : fs::directory_iterator(folder)) {
    if (entry.path().extension() == extension) files.push_back(entry.path().string());
  }
  std::sort(files.begin(), files.end());
  return files;
}

// Which program the configuration in `file` is of, by what it learns from.
Program ProgramOf(const std::string& file) {
  const absl::StatusOr<RecordedConfig> read = file.empty() ? RecordedConfig() : ReadRecordedConfig(file);
  return read.ok() ? ProgramOfRun(read->whole) : Program::kPpo;
}

// What stands between fences, which are lines of their own; only the first of two may name a language.
absl::StatusOr<std::vector<std::string>> BlocksIn(const std::string& document) {
  constexpr char kFence[] = "```";
  std::vector<std::string> blocks;
  bool inside = false;
  int number = 0;
  for (const std::string& line : std::vector<std::string>(absl::StrSplit(document, '\n'))) {
    ++number;
    const size_t fence = line.find(kFence);
    if (fence == std::string::npos) {
      if (inside) absl::StrAppend(&blocks.back(), line, "\n");
      continue;
    }
    const bool own = line.find_first_not_of(" >") == fence;
    const std::string language = line.substr(fence + sizeof(kFence) - 1);
    if (!own || language.find_first_of(" `") != std::string::npos || (inside && !language.empty())) {
      return absl::InvalidArgumentError(absl::StrCat("line ", number, " is no fence: ", line));
    }
    inside = !inside;
    if (inside) blocks.emplace_back();
  }
  if (inside) return absl::InvalidArgumentError("its last block is never closed");
  return blocks;
}

// The blocks of a document that are configurations, each in a file of its own.
std::vector<std::string> ConfigurationsIn(const std::string& document) {
  std::vector<std::string> files;
  const auto blocks = BlocksIn(ReadFile(document).value_or(""));
  EXPECT_TRUE(blocks.ok()) << document << ": " << blocks.status();
  for (size_t i = 0; blocks.ok() && i < blocks->size(); ++i) {
    const std::string file = absl::StrCat(testing::TempDir(), "/block_", i, ".textproto");
    std::ofstream(file) << (*blocks)[i];
    const absl::StatusOr<RecordedConfig> read = ReadRecordedConfig(file);
    if (read.ok() && read->whole.ByteSizeLong() > 0) files.push_back(file);
  }
  return files;
}

std::string DescribeAll() {
  const absl::StatusOr<Fields> defaults = Resolved({});
  std::string all = absl::StrCat("==== defaults\n", Described(defaults, {}));
  const auto add = [&](const std::string& name, ConfigSources sources) {
    sources.program = ProgramOf(sources.file);
    absl::StrAppend(&all, "==== ", name, ", beside the defaults\n", Described(Resolved(sources), *defaults));
  };
  for (const auto& [name, program] : kRunPrograms) {
    const absl::StatusOr<Fields> own = Resolved({.program = program});
    absl::StrAppend(&all, "==== program ", name, ", beside the defaults\n", Described(own, *defaults));
  }
  for (const Preset& preset : Presets()) {
    const std::string name(preset.name);
    add("preset " + name, {name, "", {"rollout.n_samples_per_prompt=8"}});
  }
  for (const std::string& file : FilesOf("examples", ".textproto")) {
    // Which is run with data of its own.
    const bool arithmetic = fs::path(file).stem() == "smollm2_arithmetic";
    add(file, {"", file, arithmetic ? std::vector<std::string>{"eval.data=test.jsonl"} : std::vector<std::string>()});
  }
  std::vector<std::string> documents = FilesOf("docs", ".md");
  documents.push_back("README.md");
  for (const std::string& document : documents) {
    int number = 0;
    for (const std::string& file : ConfigurationsIn(document)) {
      add(absl::StrCat(document, ", configuration ", ++number), {"", file, {}});
    }
  }
  return all;
}

TEST(BlocksOfADocument, AreNotReadWhereItsFencesAreUnbalanced) {
  EXPECT_EQ(BlocksIn("a\n```\nb\nc\n```\n- list\n  ```python\n  d\n  ```\n").value(),
            (std::vector<std::string>{"b\nc\n", "  d\n"}));
  for (const char* document : {"```\na\n```\n```\nb\n", "| a cell (``Answer: ```python``) |\n```\na\n```\n",
                               "```\na\n```python\nb\n```\n", "text ```\na\n```\n"}) {
    EXPECT_FALSE(BlocksIn(document).ok()) << document;
  }
}

TEST(ResolvedConfigurations, AreWhatTheyWere) {
  const std::string now = DescribeAll();
  const std::string golden = ReadFile(kGolden).value_or("");
  if (now == golden) return;
  const char* const outputs = std::getenv("TEST_UNDECLARED_OUTPUTS_DIR");
  const std::string file = absl::StrCat(outputs == nullptr ? testing::TempDir() : outputs, "/resolved.txt");
  std::ofstream(file) << now;
  const std::vector<std::string> before = absl::StrSplit(golden, '\n'), after = absl::StrSplit(now, '\n');
  size_t line = 0;
  while (line < std::min(before.size(), after.size()) && before[line] == after[line]) ++line;
  FAIL() << kGolden << " line " << line + 1 << " is \"" << (line < before.size() ? before[line] : "") << "\"; now \""
         << (line < after.size() ? after[line] : "") << "\". To take it over: cp " << file << " " << kGolden;
}

}  // namespace
}  // namespace quartet
