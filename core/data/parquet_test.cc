#include "core/data/parquet.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "core/data/json.h"

namespace quartet {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::StartsWith;
using Json = nlohmann::ordered_json;

std::string Golden(const std::string& name) { return "core/data/testdata/" + name; }

// All rows, each with the columns `names`, or all of them.
absl::StatusOr<std::vector<Json>> ReadAll(const std::string& path, std::vector<std::string> names = {},
                                          int64_t count = 1'000'000) {
  auto reader = ParquetReader::Open(path);
  if (!reader.ok()) return reader.status();
  if (names.empty()) names = (*reader)->columns();
  std::vector<Json> rows;
  const absl::Status status = (*reader)->Read(names, count, [&](std::string_view row) {
    EXPECT_EQ(row.find('\n'), std::string_view::npos) << row;
    auto json = ParseOrderedJson(row, "the row");
    if (json.ok()) rows.push_back(*std::move(json));
    return json.status();
  });
  if (!status.ok()) return status;
  return rows;
}

TEST(Parquet, ReadsWhatArrowsPythonReads) {
  for (const std::string name : {"verl", "openrlhf", "trl", "types"}) {
    SCOPED_TRACE(name);
    const auto rows = ReadAll(Golden(name + ".parquet"));
    ASSERT_TRUE(rows.ok()) << rows.status();
    std::ifstream expected(Golden(name + ".jsonl"));
    size_t i = 0;
    for (std::string line; std::getline(expected, line); ++i) {
      ASSERT_LT(i, rows->size());
      EXPECT_EQ((*rows)[i].dump(), Json::parse(line).dump()) << "row " << i;
    }
    EXPECT_GT(i, 0);
    EXPECT_EQ(i, rows->size());
  }
}

TEST(Parquet, ReadsTheAskedForColumnsAndRowsAlone) {
  const auto rows = ReadAll(Golden("verl.parquet"), {"reward_model", "ability"}, 40);  // of two row groups
  ASSERT_TRUE(rows.ok()) << rows.status();
  ASSERT_EQ(rows->size(), 40);
  EXPECT_EQ(rows->back().dump(), R"({"ability":"math","reward_model":{"ground_truth":"78","style":"rule"}})");
}

TEST(Parquet, KnowsRowsAndColumnsFromTheFooter) {
  const auto reader = ParquetReader::Open(Golden("verl.parquet"));
  ASSERT_TRUE(reader.ok()) << reader.status();
  EXPECT_EQ((*reader)->rows(), 70);
  EXPECT_THAT((*reader)->columns(), ElementsAre("data_source", "prompt", "ability", "reward_model", "extra_info"));
}

TEST(Parquet, EndsWithTheErrorOfWhoTakesTheRows) {
  const auto reader = ParquetReader::Open(Golden("verl.parquet"));
  ASSERT_TRUE(reader.ok()) << reader.status();
  int taken = 0;
  EXPECT_EQ(
      (*reader)->Read({"ability"}, 70,
                      [&](std::string_view) { return ++taken < 3 ? absl::OkStatus() : absl::AbortedError("enough"); }),
      absl::AbortedError("enough"));
  EXPECT_EQ(taken, 3);
}

TEST(Parquet, NamesTheFileThatIsNone) {
  const std::string path = ::testing::TempDir() + "/none_" + std::to_string(getpid()) + ".parquet";
  EXPECT_EQ(ParquetReader::Open(path).status(),
            absl::NotFoundError("cannot open " + path + ": No such file or directory"));
  for (const std::string content : {"", "{\"prompt\": \"x\"}\n", "PAR1"}) {
    std::ofstream(path) << content;
    const absl::Status status = ParquetReader::Open(path).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(status.message()), StartsWith(path + ": is no Parquet file, or is damaged ("));
  }
  std::filesystem::remove(path);
}

TEST(Parquet, ADamagedFileIsAnErrorWhereverTheDamageIs) {
  std::ifstream whole(Golden("verl.parquet"), std::ios::binary);
  const std::string bytes((std::istreambuf_iterator<char>(whole)), std::istreambuf_iterator<char>());
  const std::string path = ::testing::TempDir() + "/damaged_" + std::to_string(getpid()) + ".parquet";
  int refused = 0;
  for (size_t at = 0; at < bytes.size(); at += 37) {
    std::string damaged = bytes;
    for (size_t i = at; i < std::min(at + 8, damaged.size()); ++i) damaged[i] = static_cast<char>(~damaged[i]);
    std::ofstream(path, std::ios::binary) << damaged;
    const absl::Status status = ReadAll(path).status();
    if (status.ok()) continue;  // texts have no check sum here
    ++refused;
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
    EXPECT_EQ(std::string(status.message()).find('\n'), std::string::npos) << status;
  }
  EXPECT_GT(refused, 50);
  for (const size_t size : {bytes.size() - 1, bytes.size() / 2, size_t{9}}) {
    std::ofstream(path, std::ios::binary) << bytes.substr(0, size);
    EXPECT_THAT(std::string(ReadAll(path).status().message()), HasSubstr("is no Parquet file"));
  }
  std::filesystem::remove(path);
}

// The place of the footer's own number of rows is where files differ that have another number there alone.
TEST(Parquet, RefusesANumberOfRowsThatIsNotThatOfTheRowGroups) {
  std::ifstream whole(Golden("trl.parquet"), std::ios::binary);
  const std::string bytes((std::istreambuf_iterator<char>(whole)), std::istreambuf_iterator<char>());
  const std::string path = ::testing::TempDir() + "/rows_" + std::to_string(getpid()) + ".parquet";
  int refused = 0;
  for (size_t at = bytes.size() / 2; at < bytes.size(); ++at) {
    std::string damaged = bytes;
    damaged[at] = static_cast<char>(damaged[at] ^ 0x06);
    std::ofstream(path, std::ios::binary) << damaged;
    const auto reader = ParquetReader::Open(path);
    if (reader.ok()) {
      EXPECT_GE((*reader)->rows(), 0) << "byte " << at;
    } else {
      EXPECT_EQ(reader.status().code(), absl::StatusCode::kInvalidArgument) << reader.status();
      refused += std::string(reader.status().message()).find("rows, and of ") != std::string::npos;
    }
  }
  EXPECT_GT(refused, 0);
  std::filesystem::remove(path);
}

}  // namespace
}  // namespace quartet
