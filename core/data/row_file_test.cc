#include "core/data/row_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <tuple>

namespace quartet {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::Pair;
using ::testing::StartsWith;

class RowFileTest : public ::testing::Test {
 protected:
  RowFileTest() { std::filesystem::create_directories(folder_); }
  ~RowFileTest() override { std::filesystem::remove_all(folder_); }

  absl::StatusOr<std::unique_ptr<RowFile>> Open(const std::string& content, int64_t max_rows = 0) {
    std::ofstream(path_, std::ios::binary) << content;
    return RowFile::Open({.path = path_, .option = "data.file"}, {{.name = "q", .option = "data.key"}}, max_rows);
  }
  // The field "q" of all rows.
  std::vector<std::string> Rows(const std::string& content, int64_t max_rows = 0) {
    const auto file = Open(content, max_rows);
    EXPECT_TRUE(file.ok()) << file.status();
    std::vector<std::string> rows;
    for (int64_t i = 0; file.ok() && i < (*file)->rows(); ++i) {
      const auto record = (*file)->Read(i);
      EXPECT_TRUE(record.ok()) << record.status();
      rows.push_back(record.ok() ? record->fields.at("q") : "");
    }
    return rows;
  }
  // What follows the file's option and name in the error of its first row that has one, or of the file.
  std::string Error(const std::string& content, absl::StatusCode code = absl::StatusCode::kInvalidArgument) {
    const auto file = Open(content);
    absl::Status status = file.status();
    for (int64_t i = 0; status.ok() && i < (*file)->rows(); ++i) status = (*file)->Read(i).status();
    EXPECT_EQ(status.code(), code) << status;
    const std::string message(status.message()), place = "data.file: " + path_;
    EXPECT_THAT(message, StartsWith(place));
    return message.substr(std::min(place.size(), message.size()));
  }

  const std::string folder_ = ::testing::TempDir() + "/row_file_test_" + std::to_string(getpid());
  const std::string path_ = folder_ + "/my.rows.jsonl";
};

TEST_F(RowFileTest, ReadsRowsInAnyOrder) {
  const auto file = Open("{\"q\": \"first\"}\r\n{\"q\": 2}\n{\"q\": \"\\n\"}\n");
  ASSERT_TRUE(file.ok()) << file.status();
  ASSERT_EQ((*file)->rows(), 3);
  EXPECT_EQ((*file)->Read(2)->fields.at("q"), "\n");
  EXPECT_EQ((*file)->Read(0)->fields.at("q"), "first");
  const auto record = (*file)->Read(1);
  EXPECT_THAT(record->fields, ElementsAre(Pair("q", "2")));
  EXPECT_EQ(record->row, 2);
  EXPECT_EQ(record->source, "my.rows");
}

TEST_F(RowFileTest, ReadsALastLineWithoutItsEnd) {
  EXPECT_THAT(Rows("{\"q\":\"1\"}\n{\"q\":\"2\"}"), ElementsAre("1", "2"));
}

TEST_F(RowFileTest, BlankLinesAreNoRowsAtTheEndAlone) {
  EXPECT_THAT(Rows("{\"q\":\"1\"}\n{\"q\":\"2\"}\n\n \r\n\t"), ElementsAre("1", "2"));
  EXPECT_EQ(Error("{\"q\":\"1\"}\n\n{\"q\":\"2\"}\n"), " line 2: is blank; blank lines are allowed at the end only");
}

TEST_F(RowFileTest, ReadsTheFirstRowsAloneWhereAsked) {
  const std::string content = "{\"q\":\"1\"}\n{\"q\":\"2\"}\n{\"q\":\"3\"}";
  EXPECT_THAT(Rows(content, 1), ElementsAre("1"));
  EXPECT_THAT(Rows(content, 2), ElementsAre("1", "2"));
  EXPECT_THAT(Rows(content, 3), ElementsAre("1", "2", "3"));
  EXPECT_THAT(Rows(content, 4), ElementsAre("1", "2", "3"));
  EXPECT_EQ((*Open("{\"q\":\"1\"}\n\n\n{\"q\":\"2\"}\n", 2))->rows(), 2);
}

TEST_F(RowFileTest, IndexesFilesOfManyChunks) {
  std::string content;
  std::vector<std::string> expected;
  for (int i = 0; i < 3000; ++i) {
    // Lengths that put line ends at all places of a chunk.
    expected.push_back(std::to_string(i) + std::string(i * 7 % 2500, 'x'));
    content += "{\"q\":\"" + expected.back() + "\"}\n";
  }
  ASSERT_GT(content.size(), 3 << 20);
  EXPECT_EQ(Rows(content), expected);
}

TEST_F(RowFileTest, HashesWhatItReads) {
  const std::string content = "{\"q\":\"1\"}\n{\"q\":\"2\"}\n";
  const uint64_t hash = (*Open(content))->hash();
  EXPECT_EQ((*Open(content))->hash(), hash);
  EXPECT_NE((*Open("{\"q\":\"1\"}\n{\"q\":\"3\"}\n"))->hash(), hash);
  EXPECT_EQ((*Open(content, 1))->hash(), (*Open("{\"q\":\"1\"}\nanything", 1))->hash());
}

TEST_F(RowFileTest, TellsByItsBlocksWhichRowsHaveChanged) {
  const auto blocks = [&](int rows, int changed, const std::string& end = "\n") {
    std::string content;
    for (int i = 0; i < rows; ++i) {
      // Lengths that put line ends at all places of a chunk.
      content += "{\"q\":\"" + std::string(i * 7 % 2500, 'x') + (i == changed ? "mended, longer" : "") + "\"}" + end;
    }
    return (*Open(content))->blocks();
  };
  for (const auto& [rows, count, of_a_block] : {std::tuple(5, 5, 1), {1024, 1024, 1}, {1025, 513, 2}, {3000, 750, 4}}) {
    const RowBlocks before = blocks(rows, -1);
    EXPECT_EQ(before.rows(), rows);
    EXPECT_EQ(before.hashes().size(), count) << rows;
    EXPECT_EQ(RowBlocks::RowsOfABlock(rows), of_a_block) << rows;
    EXPECT_EQ(blocks(rows, -1, "\r\n").hashes(), before.hashes());
    for (const int changed : {0, rows / 2, rows - 1}) {
      const RowBlocks after = blocks(rows, changed);
      for (int i = 0; i < count; ++i) {
        EXPECT_EQ(after.hashes()[i] == before.hashes()[i], i != changed / of_a_block)
            << rows << " " << changed << " " << i;
      }
    }
  }
  EXPECT_NE((*Open("{\"q\":\"1\"}\n{\"q\":\"2\"}\n"))->blocks().hashes()[0],
            (*Open("{\"q\":\"2\"}\n{\"q\":\"1\"}\n"))->blocks().hashes()[0]);
}

TEST_F(RowFileTest, NamesFileLineAndReason) {
  EXPECT_EQ(Error("{\"q\":\"1\"}\n{\"my_q\":\"2\"}\n"), " line 2: has no field \"q\" (data.key); it has: my_q");
  EXPECT_THAT(Error("{\"q\":\"1\"}\n[1]\n"), StartsWith(" line 2: is of JSON type array"));
  EXPECT_THAT(Error("{\"q\":\"1\"}\n{\"q\": \"2\", \"a\": oops}\n"),
              HasSubstr(": not well-formed JSON at line 2, column 17: "));
  EXPECT_THAT(Error("{\"q\":\"1\"}\n{\"q\":\n"), HasSubstr("at line 2, column "));
  EXPECT_THAT(Error("{\"x\":" + std::string(100'000, '[') + "\n"), HasSubstr("nested deeper"));
}

TEST_F(RowFileTest, SaysWhatAFileLooksLikeWhereTheFirstLineIsNoObject) {
  for (const char* content : {"q,a\n1,2\n", "[{\"q\":\"1\"}]\n", "[\n {\"q\":\"1\"}\n]\n"}) {
    EXPECT_THAT(Error(content), HasSubstr("is JSONL: one JSON object a line")) << content;
  }
  EXPECT_THAT(Error("{\"my_q\":\"1\"}\n"), Not(HasSubstr("JSONL")));
  EXPECT_THAT(Error("{\"q\":\"1\"}\n{oops\n"), Not(HasSubstr("JSONL")));
}

TEST_F(RowFileTest, SaysHowLargeAFileWithoutRowsIs) {
  EXPECT_EQ(Error(""), " is empty (0 bytes); it needs at least one line, a JSON object");
  EXPECT_THAT(Error("\n \n"), HasSubstr("nothing but white space (3 bytes)"));
}

TEST_F(RowFileTest, SaysThatAFileIsNotThereAndWhereRelativePathsStart) {
  for (const std::string path : {"/nonexistent/file.jsonl", "/nonexistent/file.parquet"}) {
    EXPECT_EQ(
        RowFile::Open({.path = path, .option = "data.file"}, {}).status(),
        absl::NotFoundError("data.file: cannot open " + path + ": No such file or directory; relative paths start at " +
                            std::filesystem::current_path().string()));
  }
}

TEST_F(RowFileTest, NoticesAFileThatBecomesShorter) {
  const auto file = Open("{\"q\":\"1\"}\n{\"q\":\"2\"}\n");
  ASSERT_TRUE(file.ok()) << file.status();
  std::filesystem::resize_file(path_, 12);
  EXPECT_TRUE((*file)->Read(0).ok());
  EXPECT_EQ((*file)->Read(1).status(),
            absl::UnavailableError("data.file: " + path_ + " line 2: has become shorter since it was opened"));
}

absl::StatusOr<std::unique_ptr<RowFile>> OpenGolden(const std::string& name, const std::vector<RowKey>& keys) {
  return RowFile::Open({.path = "core/data/testdata/" + name, .option = "data.file"}, keys);
}

TEST_F(RowFileTest, ReadsParquetAsItReadsJsonl) {
  const std::vector<RowKey> keys = {{.name = "prompt", .option = "data.input_key", .list = true},
                                    {.name = "reward_model.ground_truth", .option = "data.label_key"},
                                    {.name = "extra_info.answer", .option = "x", .optional = true}};
  const auto parquet = OpenGolden("verl.parquet", keys), jsonl = OpenGolden("verl.jsonl", keys);
  ASSERT_TRUE(parquet.ok()) << parquet.status();
  ASSERT_TRUE(jsonl.ok()) << jsonl.status();
  ASSERT_EQ((*parquet)->rows(), 70);
  ASSERT_EQ((*jsonl)->rows(), 70);
  for (const int64_t i : {69, 0, 33, 1}) {
    const auto a = (*parquet)->Read(i), b = (*jsonl)->Read(i);
    ASSERT_TRUE(a.ok()) << a.status();
    EXPECT_EQ(a->fields, b->fields);
    EXPECT_EQ(a->lists, b->lists);
    EXPECT_EQ(a->fields.at("reward_model.ground_truth"), std::to_string(2 * i));
    EXPECT_EQ(a->fields.contains("extra_info.answer"), i % 2 == 0);
  }
}

TEST_F(RowFileTest, ReadsTheKeysOfOpenRlhfAndTrl) {
  const auto openrlhf = OpenGolden("openrlhf.parquet", {{.name = "input", .option = "data.input_key"},
                                                        {.name = "context_messages", .option = "x", .list = true},
                                                        {.name = "label", .option = "data.label_key"}});
  ASSERT_TRUE(openrlhf.ok()) << openrlhf.status();
  EXPECT_THAT((*openrlhf)->Read(3)->fields, ElementsAre(Pair("input", "Name a prime above 3."), Pair("label", "3.5")));
  EXPECT_EQ((*openrlhf)->Read(3)->lists.at("context_messages")[0].dump(), R"({"role":"system","content":"Be brief."})");
  const auto trl = OpenGolden("trl.parquet", {{.name = "prompt", .option = "data.input_key", .list = true}});
  ASSERT_TRUE(trl.ok()) << trl.status();
  EXPECT_EQ((*trl)->Read(9)->lists.at("prompt")[2]["content"], "I said 9.");
}

TEST_F(RowFileTest, NamesTheColumnThatAParquetFileLacks) {
  EXPECT_EQ(OpenGolden("verl.parquet", {{.name = "question", .option = "data.input_key"}}).status().message(),
            "data.file: core/data/testdata/verl.parquet has no column for \"question\" (data.input_key); it has: "
            "data_source, prompt, ability, reward_model, extra_info");
  const auto inside = OpenGolden("verl.parquet", {{.name = "reward_model.answer", .option = "data.label_key"}});
  ASSERT_TRUE(inside.ok()) << inside.status();
  EXPECT_EQ((*inside)->Read(1).status().message(),
            "data.file: core/data/testdata/verl.parquet row 2: has no field \"reward_model.answer\" (data.label_key); "
            "it has: data_source, prompt, ability, reward_model, extra_info");
}

TEST_F(RowFileTest, AParquetFileOfWhichOneByteIsChangedIsReadOrRefused) {
  std::ifstream whole("core/data/testdata/trl.parquet", std::ios::binary);
  const std::string bytes((std::istreambuf_iterator<char>(whole)), std::istreambuf_iterator<char>());
  const std::string path = folder_ + "/changed.parquet";
  for (size_t at = 0; at < bytes.size(); at += 3) {
    std::string changed = bytes;
    changed[at] = static_cast<char>(changed[at] ^ (at % 2 == 0 ? 0x81 : 0x7e));
    std::ofstream(path, std::ios::binary) << changed;
    const auto file = RowFile::Open({.path = path, .option = "data.file"}, {{.name = "prompt", .option = "x"}});
    if (!file.ok()) {
      EXPECT_EQ(file.status().code(), absl::StatusCode::kInvalidArgument) << file.status();
    }
  }
}

TEST_F(RowFileTest, KeepsRowsOfParquetInAFileWithoutANameInTmpdir) {
  const std::vector<RowKey> keys = {{.name = "ability", .option = "x"}};
  const char* before = std::getenv("TMPDIR");
  const std::string saved = before == nullptr ? "" : before;
  setenv("TMPDIR", folder_.c_str(), 1);
  const auto file = OpenGolden("verl.parquet", keys);
  setenv("TMPDIR", (folder_ + "/none").c_str(), 1);
  const absl::Status nowhere = OpenGolden("verl.parquet", keys).status();
  before == nullptr ? unsetenv("TMPDIR") : setenv("TMPDIR", saved.c_str(), 1);
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ((*file)->Read(0)->fields.at("ability"), "math");
  EXPECT_TRUE(std::filesystem::is_empty(folder_));
  EXPECT_THAT(std::string(nowhere.message()),
              AllOf(HasSubstr("verl.parquet: no file can be made in " + folder_ + "/none"),
                    HasSubstr("No such file or directory; TMPDIR names another folder")));
}

}  // namespace
}  // namespace quartet
