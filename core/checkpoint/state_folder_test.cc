#include "core/checkpoint/state_folder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"
#include "core/base/hash.h"

namespace quartet {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::AnyOf;
using testing::HasSubstr;

std::string Contents(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return std::string(std::istreambuf_iterator<char>(file), {});
}
void Replace(const fs::path& path, const std::string& contents) {
  std::ofstream(path, std::ios::binary | std::ios::trunc) << contents;
}

// A state of two parameters in two kinds, written by three ranks: "a" [10, 7] is cut at elements 30 and 69, "b" [5] is
// whole on the last rank.
class StateFolder : public testing::Test {
 protected:
  StateFolder() {
    folder_ = fs::path(testing::TempDir()) / "state_folder_test";
    fs::remove_all(folder_);
    fs::create_directories(folder_);
    manifest_.optimizer_steps = 12;
    manifest_.kinds = {"master", "exp_avg"};
    manifest_.parameters = {{"a", {10, 7}}, {"b", {5}}};
    manifest_.files.resize(3);
    for (int f = 0; f < 3; ++f) manifest_.files[f].name = StateFileName(f, 3);
    manifest_.files[0].slices = {{0, 0, 30, {}}};
    manifest_.files[1].slices = {{0, 30, 39, {}}};
    manifest_.files[2].slices = {{0, 69, 1, {}}, {1, 0, 5, {}}};
  }

  static float ValueOf(int kind, int parameter, int64_t element, float salt) {
    return static_cast<float>(1000 * kind + 100 * parameter + element) + salt;
  }

  void WriteTo(const fs::path& folder, float salt = 0) {
    StateManifest written = manifest_;
    for (int f = 0; f < 3; ++f) {
      auto writer = StateFileWriter::Create(folder.string(), manifest_, f);
      ASSERT_TRUE(writer.ok()) << writer.status();
      for (int s = 0; s < static_cast<int>(manifest_.files[f].slices.size()); ++s) {
        const StateSlice& slice = manifest_.files[f].slices[s];
        for (int kind = 0; kind < 2; ++kind) {
          std::vector<float> values(slice.count);
          for (int64_t i = 0; i < slice.count; ++i) values[i] = ValueOf(kind, slice.parameter, slice.begin + i, salt);
          const int64_t half = slice.count / 2;  // in two pieces, the later one first
          ASSERT_TRUE((*writer)->Write(s, kind, half, values.data() + half, slice.count - half).ok());
          ASSERT_TRUE((*writer)->Write(s, kind, 0, values.data(), half).ok());
        }
      }
      auto file = (*writer)->Finish();
      ASSERT_TRUE(file.ok()) << file.status();
      EXPECT_EQ(file->bytes, fs::file_size(folder / file->name));
      written.files[f] = *std::move(file);
    }
    const auto hash = WriteStateManifest(folder.string(), written);
    ASSERT_TRUE(hash.ok()) << hash.status();
    if (const auto reader = StateReader::Open(folder.string()); reader.ok()) {
      EXPECT_EQ((*reader)->manifest_hash(), *hash);
    }
  }

  fs::path folder_;
  StateManifest manifest_;
};

TEST_F(StateFolder, GivesAnyRangeOfAnyParameter) {
  WriteTo(folder_);
  auto opened = StateReader::Open(folder_.string());
  ASSERT_TRUE(opened.ok()) << opened.status();
  StateReader& reader = **opened;
  EXPECT_EQ(reader.manifest().optimizer_steps, 12);
  EXPECT_EQ(reader.FindKind("exp_avg"), 1);
  EXPECT_EQ(reader.FindKind("ema"), -1);
  EXPECT_EQ(reader.FindParameter("b"), 1);
  EXPECT_EQ(reader.FindParameter("c"), -1);
  for (int64_t begin = 0; begin < 70; begin += 7) {
    for (int64_t count = 0; count <= 70 - begin; count += 3) {
      std::vector<float> values(count);
      ASSERT_TRUE(reader.Read(1, 0, begin, count, values.data()).ok());
      for (int64_t i = 0; i < count; ++i) ASSERT_EQ(values[i], ValueOf(1, 0, begin + i, 0));
    }
  }
  EXPECT_EQ(reader.Read(0, 1, 3, 3, nullptr).code(), absl::StatusCode::kOutOfRange);
}

TEST_F(StateFolder, IsVerifiedBySumsOfReadersThatCutItElsewhere) {
  WriteTo(folder_);
  std::vector<uint64_t> sums;
  std::unique_ptr<StateReader> last;
  for (const auto& [begin, end] : std::vector<std::pair<int64_t, int64_t>>{{0, 17}, {17, 18}, {18, 60}, {60, 70}}) {
    auto reader = StateReader::Open(folder_.string());
    ASSERT_TRUE(reader.ok()) << reader.status();
    std::vector<float> values(70);
    for (int kind = 0; kind < 2; ++kind) {
      ASSERT_TRUE((*reader)->Read(kind, 0, begin, end - begin, values.data()).ok());
      if (end == 70) {
        ASSERT_TRUE((*reader)->Read(kind, 1, 0, 5, values.data()).ok());
      }
    }
    sums.resize((*reader)->sums().size());
    for (size_t i = 0; i < sums.size(); ++i) sums[i] += (*reader)->sums()[i];
    last = *std::move(reader);
  }
  EXPECT_TRUE(last->Verify(sums, {0, 1}).ok());
  EXPECT_FALSE(last->Verify(last->sums(), {0}).ok()) << "a part is not the whole";
  EXPECT_TRUE(VerifyStateFolder(folder_.string()).ok());
}

// Every byte of every file counts.
TEST_F(StateFolder, IsRefusedWithAnyBitChangedAndNamesTheFile) {
  WriteTo(folder_);
  for (const char* name : {"part-00001-of-00003.safetensors", "manifest.json"}) {
    const std::string contents = Contents(folder_ / name);
    for (size_t at = 0; at < contents.size(); at += 3) {
      std::string changed = contents;
      changed[at] = static_cast<char>(changed[at] ^ (1 << (at % 8)));
      Replace(folder_ / name, changed);
      const absl::Status status = VerifyStateFolder(folder_.string());
      ASSERT_FALSE(status.ok()) << name << " with byte " << at << " changed";
      ASSERT_THAT(std::string(status.message()), HasSubstr((folder_ / name).string()));
    }
    Replace(folder_ / name, contents);
  }
  EXPECT_TRUE(VerifyStateFolder(folder_.string()).ok());
}

TEST_F(StateFolder, IsRefusedWithAnyFileCutShortOrGone) {
  WriteTo(folder_);
  for (const auto& entry : fs::directory_iterator(folder_)) {
    const std::string contents = Contents(entry.path());
    for (size_t bytes = 0; bytes < contents.size(); bytes += 5) {
      Replace(entry.path(), contents.substr(0, bytes));
      const absl::Status status = VerifyStateFolder(folder_.string());
      ASSERT_FALSE(status.ok()) << entry.path() << " cut to " << bytes;
      ASSERT_THAT(std::string(status.message()), HasSubstr(entry.path().string()));
    }
    fs::remove(entry.path());
    const absl::Status status = VerifyStateFolder(folder_.string());
    EXPECT_EQ(status.code(), absl::StatusCode::kNotFound) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(entry.path().filename().string()));
    Replace(entry.path(), contents);
  }
}

// Files of the same sizes and names, of a later save.
TEST_F(StateFolder, IsRefusedWithAFileOfAnotherCheckpoint) {
  WriteTo(folder_);
  const fs::path other = folder_ / "other";
  fs::create_directories(other);
  WriteTo(other, 0.5f);
  const std::string name = StateFileName(2, 3);
  fs::copy_file(other / name, folder_ / name, fs::copy_options::overwrite_existing);
  const absl::Status status = VerifyStateFolder(folder_.string());
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr((folder_ / name).string()), HasSubstr("master.a"), HasSubstr("another checkpoint")));
  fs::copy_file(other / "manifest.json", folder_ / "manifest.json", fs::copy_options::overwrite_existing);
  EXPECT_THAT(std::string(VerifyStateFolder(folder_.string()).message()), HasSubstr(StateFileName(0, 3)));
}

TEST_F(StateFolder, IsRefusedWithItsFilesExchanged) {
  manifest_.files[0].slices[0].count = 34;
  manifest_.files[1].slices[0] = {0, 34, 34, {}};
  manifest_.files[2].slices[0] = {0, 68, 2, {}};
  WriteTo(folder_);
  fs::rename(folder_ / StateFileName(0, 3), folder_ / "x");
  fs::rename(folder_ / StateFileName(1, 3), folder_ / StateFileName(0, 3));
  fs::rename(folder_ / "x", folder_ / StateFileName(1, 3));
  const absl::Status status = VerifyStateFolder(folder_.string());
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(std::string(status.message()), HasSubstr(StateFileName(0, 3)));
}

// A manifest with a right hash that makes no sense.
TEST_F(StateFolder, RefusesAManifestThatLeavesElementsOutOrNamesThemTwice) {
  for (const auto& [count, what] : {std::pair(29, "elements [29, 30) of parameter a are in no file"),
                                    std::pair(32, "elements [30, 32) of parameter a are in more than one file")}) {
    manifest_.files[0].slices[0] = {0, 0, count, {}};
    fs::remove_all(folder_);
    fs::create_directories(folder_);
    WriteTo(folder_);
    const absl::Status status = StateReader::Open(folder_.string()).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(status.message()), HasSubstr(what));
  }
}

TEST_F(StateFolder, RefusesNamesOfFilesElsewhere) {
  WriteTo(folder_);
  manifest_.files[0].name = "../" + manifest_.files[0].name;
  for (StateFile& file : manifest_.files) {
    for (StateSlice& slice : file.slices) slice.hashes = {0, 0};
  }
  ASSERT_TRUE(WriteStateManifest(folder_.string(), manifest_).ok());
  EXPECT_THAT(std::string(StateReader::Open(folder_.string()).status().message()), HasSubstr("plain name"));
}

TEST_F(StateFolder, KnowsItsOptimizerAndIsOfAdamWhereItNamesNone) {
  manifest_.optimizer = "sgd";
  WriteTo(folder_);
  EXPECT_EQ((*StateReader::Open(folder_.string()))->manifest().optimizer, "sgd");
  const std::string named = Contents(folder_ / "manifest.json");
  std::string unnamed = absl::StrReplaceAll(named, {{"\"optimizer\": \"sgd\",", ""}});
  ASSERT_NE(unnamed, named);
  // It begins with the hash of what follows.
  const size_t begin = std::string_view("{\"hash\": \"").size(), digits = 16;
  unnamed.replace(begin, digits, absl::StrFormat("%016x", HashBytes(std::string_view(unnamed).substr(begin + digits))));
  Replace(folder_ / "manifest.json", unnamed);
  const auto reader = StateReader::Open(folder_.string());
  ASSERT_TRUE(reader.ok()) << reader.status();
  EXPECT_EQ((*reader)->manifest().optimizer, "adam");
}

TEST_F(StateFolder, IsNotThereWithoutAManifest) {
  const absl::Status status = StateReader::Open(folder_.string()).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(status.message()), AllOf(HasSubstr(folder_.string()), HasSubstr("manifest.json")));
  fs::create_directory(folder_ / "policy_state");
  Replace(folder_ / "policy_state/manifest.json", "{}");
  EXPECT_THAT(std::string(StateReader::Open(folder_.string()).status().message()),
              HasSubstr("manifest.json; there is " + folder_.string() + "/policy_state"));
  fs::remove_all(folder_ / "policy_state");
  Replace(folder_ / "manifest.json", "{\"a\": 1}");
  EXPECT_THAT(std::string(StateReader::Open(folder_.string()).status().message()),
              HasSubstr("is not the manifest of a training state"));
}

TEST_F(StateFolder, HasNoFileThatWasNotFinished) {
  { ASSERT_TRUE(StateFileWriter::Create(folder_.string(), manifest_, 0).ok()); }
  EXPECT_TRUE(fs::is_empty(folder_));
}

}  // namespace
}  // namespace quartet
