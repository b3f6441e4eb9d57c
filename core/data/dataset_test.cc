#include "core/data/dataset.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace quartet {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::UnorderedElementsAre;

class DatasetTest : public ::testing::Test {
 protected:
  DatasetTest() { std::filesystem::create_directories(folder_); }
  ~DatasetTest() override { std::filesystem::remove_all(folder_); }

  // A file of these texts as the field "q"; "{" is a row that is no JSON.
  std::string Write(const std::string& name, const std::vector<std::string>& texts) {
    const std::string path = folder_ + "/" + name;
    std::ofstream out(path);
    for (const std::string& text : texts) out << (text == "{" ? text : "{\"q\": \"" + text + "\"}") << "\n";
    return path;
  }
  absl::StatusOr<std::unique_ptr<Dataset>> Open(const std::vector<std::string>& paths) {
    options_.option = "data.files";
    options_.paths = paths;
    options_.keys = {{.name = "q", .option = "data.key"}};
    return Dataset::Open(
        options_, [this](const Record& record) { return Use(record); }, nullptr);
  }
  // Texts that begin with "long" are too long.
  absl::Status Use(const Record& record) {
    const std::string& text = record.fields.at("q");
    if (absl::StartsWith(text, "long")) return absl::OutOfRangeError("is too long");
    used_.push_back(text);
    return absl::OkStatus();
  }
  std::vector<std::string> Take(Dataset& dataset, int64_t begin, int64_t count) {
    used_.clear();
    const absl::Status status = dataset.Take(begin, count, [this](const Record& record) { return Use(record); });
    EXPECT_TRUE(status.ok()) << status;
    return used_;
  }
  std::string Error(const std::vector<std::string>& paths) {
    const absl::Status status = Open(paths).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
    return std::string(status.message());
  }

  const std::string folder_ = ::testing::TempDir() + "/dataset_test_" + std::to_string(getpid());
  DatasetOptions options_;
  std::vector<std::string> used_;
};

TEST_F(DatasetTest, TakesEachRowOfAllFilesOnceAnEpoch) {
  const auto dataset = Open({Write("a", {"1", "2", "3"}), Write("b", {"4"})});
  ASSERT_TRUE(dataset.ok()) << dataset.status();
  EXPECT_EQ((*dataset)->rows(), 4);
  EXPECT_THAT(used_, ElementsAre("1", "2", "3", "4")) << "checked in the order of the files";
  for (int64_t epoch = 0; epoch < 3; ++epoch) {
    EXPECT_THAT(Take(**dataset, epoch * 4, 4), UnorderedElementsAre("1", "2", "3", "4"));
  }
}

TEST_F(DatasetTest, LeavesOutRowsAndCountsThem) {
  const std::string path = Write("a", {"long 1", "2", "{", "{", "5", "long 6", "7", "8", "{"});
  options_.shuffle = false;
  options_.drop_malformed = true;
  const auto dataset = Open({path});
  ASSERT_TRUE(dataset.ok()) << dataset.status();
  EXPECT_EQ((*dataset)->rows(), 4);
  EXPECT_THAT(Take(**dataset, 0, 6), ElementsAre("2", "5", "7", "8", "2", "5"));
  const LeftOut& left_out = (*dataset)->left_out();
  EXPECT_EQ(left_out.overlong, 2);
  EXPECT_EQ(left_out.malformed, 3);
  EXPECT_EQ(left_out.first_overlong.message(), "data.files: " + path + " line 1: is too long");
  EXPECT_THAT(std::string(left_out.first_malformed.message()), HasSubstr("not well-formed JSON at line 3, column"));
}

TEST_F(DatasetTest, RowsThatAreNotLeftOutAreErrors) {
  const std::string path = Write("a", {"1", "long 2", "{"});
  EXPECT_THAT(Error({path}), HasSubstr(path + ": not well-formed JSON at line 3"));
  options_.drop_overlong = false;
  EXPECT_EQ(Error({path}), "data.files: " + path + " line 2: is too long");
}

TEST_F(DatasetTest, OtherErrorsAreErrorsInAnyCase) {
  options_.option = "data.files";
  options_.drop_malformed = true;
  options_.paths = {Write("a", {"1"})};
  const auto fail = [](const Record&) { return absl::FailedPreconditionError("there is no template"); };
  EXPECT_EQ(Dataset::Open(options_, fail, nullptr).status(),
            absl::FailedPreconditionError("data.files: " + options_.paths[0] + " line 1: there is no template"));
}

TEST_F(DatasetTest, AFileWithoutAnyRowThatCanBeUsedIsAnError) {
  options_.drop_malformed = true;
  const std::string good = Write("a", {"1"}), bad = Write("b", {"long 1", "long 2"}), worse = Write("c", {"{"});
  EXPECT_EQ(Error({good, bad}), "data.files: " + bad + ": none of its first 2 rows can be used; data.files: " + bad +
                                    " line 1: is too long");
  EXPECT_THAT(Error({good, worse}), HasSubstr(worse + ": none of its first 1 row can be used; data.files: "));
}

TEST_F(DatasetTest, RowsThatAreNotCheckedAreReplacedWhenTheyAreDrawn) {
  std::vector<std::string> texts;
  for (int i = 0; i < 100; ++i) texts.push_back(absl::StrCat(i % 3 == 0 ? "long " : "", i));
  options_.checked_rows = 10;
  options_.seed = 5;
  const std::string path = Write("a", texts);
  const auto dataset = Open({path});
  ASSERT_TRUE(dataset.ok()) << dataset.status();
  EXPECT_EQ(used_.size(), 6);  // of the first ten
  EXPECT_EQ((*dataset)->rows(), 96);
  EXPECT_EQ((*dataset)->unchecked_rows(), 90);
  EXPECT_EQ((*dataset)->left_out().overlong, 4);
  const std::vector<std::string> epoch = Take(**dataset, 0, 96);
  ASSERT_EQ(epoch.size(), 96);
  EXPECT_EQ((*dataset)->left_out().overlong, 4 + 30) << "each once, however often it is drawn";
  EXPECT_EQ(Take(**dataset, 96, 96).size(), 96);
  EXPECT_EQ((*dataset)->left_out().overlong, 4 + 30);
  std::map<std::string, int> counts;
  for (const std::string& text : epoch) ++counts[text];
  for (int i = 0; i < 100; ++i) EXPECT_EQ(counts.contains(std::to_string(i)), i % 3 != 0) << i;

  // The same from anywhere, by another one.
  const auto again = Open({path});
  for (const int64_t begin : {60, 7, 95}) {
    EXPECT_EQ(Take(**again, begin, 1), std::vector<std::string>{epoch[begin]}) << begin;
  }
}

TEST_F(DatasetTest, AFileWhoseCheckedRowsCannotBeUsedIsAnErrorWhateverIsBehindThem) {
  options_.checked_rows = 2;
  const std::string path = Write("a", {"long 1", "long 2", "3"});
  EXPECT_THAT(Error({path}), HasSubstr("none of its first 2 rows can be used"));
}

TEST_F(DatasetTest, GivesUpWhereNoDrawnRowCanBeUsed) {
  options_.checked_rows = 1;
  std::vector<std::string> texts(1'000'000, "long");
  texts[0] = "1";
  const std::string path = Write("a", texts);
  const auto dataset = Open({path});
  ASSERT_TRUE(dataset.ok()) << dataset.status();
  EXPECT_EQ((*dataset)->rows(), 1'000'000);
  EXPECT_EQ((*dataset)->Take(0, 1, [this](const Record& record) { return Use(record); }).message(),
            "data.files: " + path + ": none of 1001 rows drawn from it can be used");
}

TEST_F(DatasetTest, HashesWhatIsNotCheckedAlone) {
  const std::string a = Write("a", {"1", "2"}), b = Write("b", {"1", "3"});
  EXPECT_EQ((*Open({a}))->hash(7), 7);
  options_.checked_rows = 1;
  const uint64_t hash = (*Open({a}))->hash(7);
  EXPECT_NE(hash, 0);
  EXPECT_EQ((*Open({a}))->hash(7), hash);
  EXPECT_NE((*Open({b}))->hash(7), hash);
}

TEST_F(DatasetTest, TellsHowManyRowsAreChecked) {
  options_.paths = {Write("a", {"1", "2"}), Write("b", {"3"})};
  options_.keys = {{.name = "q", .option = "data.key"}};
  std::vector<std::pair<int64_t, int64_t>> progress;
  ASSERT_TRUE(Dataset::Open(
                  options_, [](const Record&) { return absl::OkStatus(); },
                  [&](int64_t done, int64_t all) {
                    progress.emplace_back(done, all);
                    return absl::OkStatus();
                  })
                  .ok());
  EXPECT_THAT(progress, ElementsAre(std::pair(1, 3), std::pair(2, 3), std::pair(3, 3)));
  // Ctrl-C.
  const absl::Status stopped = absl::CancelledError("stopped by SIGINT");
  EXPECT_EQ(Dataset::Open(
                options_, [](const Record&) { return absl::OkStatus(); },
                [&](int64_t done, int64_t) { return done < 2 ? absl::OkStatus() : stopped; })
                .status(),
            stopped);
}

TEST_F(DatasetTest, MixesFilesByTheirWeights) {
  options_.weights = {1, 3};
  const auto dataset = Open({Write("a", std::vector<std::string>(10, "a")), Write("b", {"b"})});
  ASSERT_TRUE(dataset.ok()) << dataset.status();
  const std::vector<std::string> taken = Take(**dataset, 0, 4000);
  EXPECT_NEAR(std::count(taken.begin(), taken.end(), "a"), 1000, 140);  // five standard deviations
}

}  // namespace
}  // namespace quartet
