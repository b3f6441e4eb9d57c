#include "core/safetensors/reader.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <thread>

namespace quartet {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

TEST(Shape, IsShownWithItsNumberOfElements) {
  EXPECT_EQ(ShapeText({2, 3}), "[2, 3]");
  EXPECT_EQ(NumelOf({2, 3}), 6);
  EXPECT_EQ(ShapeText({}), "[]");
  EXPECT_EQ(NumelOf({}), 1) << "a scalar";
  EXPECT_EQ(NumelOf({5, 0}), 0);
}

class CheckpointReaderTest : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = ::testing::TempDir() + "/reader_" + std::to_string(getpid()) + "_" +
              ::testing::UnitTest::GetInstance()->current_test_info()->name();
    std::filesystem::remove_all(folder_);
    std::filesystem::create_directories(folder_);
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  std::string WriteFile(const std::string& name, const std::string& content) {
    std::string path = folder_ + "/" + name;
    std::filesystem::remove(path);  // ext4 brings to the disk at once what overwrites a file
    std::ofstream(path, std::ios::binary) << content;
    return path;
  }
  static std::string FileBytes(const std::string& header, const std::string& data) {
    const uint64_t length = header.size();
    return std::string(reinterpret_cast<const char*>(&length), 8) + header + data;
  }
  // Opens a folder whose only file is `header` and `data`.
  absl::Status OpenBytes(const std::string& content) {
    WriteFile("model.safetensors", content);
    return CheckpointReader::Open(folder_).status();
  }
  absl::Status OpenHeader(const std::string& header, const std::string& data) {
    return OpenBytes(FileBytes(header, data));
  }

  std::string folder_;
};

std::string ReadAll(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

constexpr char kTestdata[] = "core/safetensors/testdata";
const std::string kGolden = std::string(kTestdata) + "/model.safetensors";

template <class T>
std::vector<T> ReadTensor(const CheckpointReader& reader, const std::string& name) {
  const TensorInfo& info = reader.tensors().at(name);
  EXPECT_EQ(DtypeSize(info.dtype), sizeof(T));
  std::vector<T> values(info.numel());
  EXPECT_TRUE(reader.ReadRange(name, 0, info.numel(), values.data()).ok());
  return values;
}

// tools/golden/make_safetensors.py wrote the file with Python's safetensors and NumPy.
TEST_F(CheckpointReaderTest, ReadsWhatPythonWrote) {
  auto reader = CheckpointReader::Open(kTestdata);
  ASSERT_TRUE(reader.ok()) << reader.status();
  EXPECT_THAT((*reader)->files(), ElementsAre(kGolden));
  EXPECT_EQ((*reader)->tensors().size(), 11);
  EXPECT_THAT((*reader)->tensors().at("f32").shape, ElementsAre(2, 3));
  EXPECT_THAT(ReadTensor<float>(**reader, "f32"), ElementsAre(0.0f, 0.5f, 1.0f, 1.5f, 2.0f, 2.5f));
  EXPECT_THAT(ReadTensor<double>(**reader, "f64"), ElementsAre(3.25, -1e300));
  EXPECT_THAT(ReadTensor<uint16_t>(**reader, "f16"), ElementsAre(0x3c00, 0xc000));   // 1, -2
  EXPECT_THAT(ReadTensor<uint16_t>(**reader, "bf16"), ElementsAre(0x3f80, 0xc000));  // 1, -2
  EXPECT_THAT(ReadTensor<int64_t>(**reader, "i64"), ElementsAre(-1, int64_t{1} << 40));
  EXPECT_THAT(ReadTensor<int32_t>(**reader, "i32"), ElementsAre(-7));
  EXPECT_THAT(ReadTensor<int16_t>(**reader, "i16"), ElementsAre(-300, 300));
  EXPECT_THAT(ReadTensor<int8_t>(**reader, "i8"), ElementsAre(-128, 127));
  EXPECT_THAT(ReadTensor<uint8_t>(**reader, "bool"), ElementsAre(1, 0, 1));
  EXPECT_THAT((*reader)->tensors().at("scalar").shape, ElementsAre());
  EXPECT_THAT(ReadTensor<float>(**reader, "scalar"), ElementsAre(42.0f));
  EXPECT_THAT((*reader)->tensors().at("empty").shape, ElementsAre(0, 4));
  EXPECT_THAT(ReadTensor<float>(**reader, "empty"), ElementsAre());
}

TEST_F(CheckpointReaderTest, ReadsRangesAndCountsTheirBytes) {
  auto reader = CheckpointReader::Open(kTestdata);
  ASSERT_TRUE(reader.ok()) << reader.status();
  float values[3];
  ASSERT_TRUE((*reader)->ReadRange("f32", 2, 3, values).ok());
  EXPECT_THAT(values, ElementsAre(1.0f, 1.5f, 2.0f));
  EXPECT_EQ((*reader)->bytes_read(), 12);
  for (const auto& [begin, count] :
       std::vector<std::pair<int64_t, int64_t>>{{-1, 1}, {0, -1}, {0, 7}, {7, 0}, {6, 1}, {INT64_MAX, INT64_MAX}}) {
    EXPECT_EQ((*reader)->ReadRange("f32", begin, count, values).code(), absl::StatusCode::kOutOfRange) << begin;
  }
  const absl::Status missing = (*reader)->ReadRange("f33", 0, 1, values);
  EXPECT_EQ(missing.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(missing.message()), HasSubstr("f33"));
  EXPECT_EQ((*reader)->bytes_read(), 12);
}

TEST_F(CheckpointReaderTest, ServesManyThreads) {
  auto reader = CheckpointReader::Open(kTestdata);
  ASSERT_TRUE(reader.ok()) << reader.status();
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&reader] {
      for (int i = 0; i < 100; ++i) EXPECT_EQ(ReadTensor<float>(**reader, "f32")[5], 2.5f);
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ((*reader)->bytes_read(), 4 * 100 * 24);
}

TEST_F(CheckpointReaderTest, RefusesAFileCutAtAnyByte) {
  const std::string whole = ReadAll(kGolden);
  ASSERT_GT(whole.size(), 100);
  for (size_t size = 0; size < whole.size(); ++size) {
    const absl::Status status = OpenBytes(whole.substr(0, size));
    ASSERT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << size << " " << status;
    ASSERT_THAT(std::string(status.message()), HasSubstr(folder_ + "/model.safetensors")) << size;
  }
  EXPECT_EQ(OpenBytes(whole + "x").code(), absl::StatusCode::kInvalidArgument);
  EXPECT_TRUE(OpenBytes(whole).ok());
}

// Whatever a flipped bit makes of the header, it is refused or every tensor can be read.
TEST_F(CheckpointReaderTest, SurvivesAnyFlippedBitOfTheHeader) {
  const std::string whole = ReadAll(kGolden);
  uint64_t header_bytes;
  std::memcpy(&header_bytes, whole.data(), 8);
  int refused = 0;
  for (size_t byte = 0; byte < 8 + header_bytes; ++byte) {
    for (int bit = 0; bit < 8; ++bit) {
      std::string flipped = whole;
      flipped[byte] ^= 1 << bit;
      WriteFile("model.safetensors", flipped);
      auto reader = CheckpointReader::Open(folder_);
      if (!reader.ok()) {
        ASSERT_EQ(reader.status().code(), absl::StatusCode::kInvalidArgument) << reader.status();
        ++refused;
        continue;
      }
      for (const auto& [name, info] : (*reader)->tensors()) {
        std::vector<char> bytes(info.bytes);
        ASSERT_TRUE((*reader)->ReadRange(name, 0, info.numel(), bytes.data()).ok());
      }
    }
  }
  EXPECT_GT(refused, 4 * header_bytes);
}

TEST_F(CheckpointReaderTest, RefusesHostileHeaders) {
  const std::string data(16, 'x');
  const struct {
    std::string header;
    std::string message;
  } kCases[] = {
      {R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},"b":{"dtype":"F32","shape":[3],"data_offsets":[4,16]}})",
       "inside the tensor before it"},
      {R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"b":{"dtype":"F32","shape":[2],"data_offsets":[8,16]}})",
       "hole"},
      {R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[4,8]},"b":{"dtype":"F32","shape":[2],"data_offsets":[8,16]}})",
       "hole"},
      {R"({"a":{"dtype":"F32","shape":[3],"data_offsets":[0,12]}})",
       "16 bytes follow the header, but its tensors take 12"},
      {R"({"a":{"dtype":"F32","shape":[5],"data_offsets":[0,20]}})", "not within the 16 bytes"},
      {R"({"a":{"dtype":"F32","shape":[4],"data_offsets":[16,0]}})", "not within"},
      {R"({"a":{"dtype":"F32","shape":[3],"data_offsets":[0,16]}})", "takes 12"},
      {R"({"a":{"dtype":"F32","shape":[4],"data_offsets":[-16,0]}})", "pair of byte offsets"},
      {R"({"a":{"dtype":"F32","shape":[4],"data_offsets":[0,16.0]}})", "pair of byte offsets"},
      {R"({"a":{"dtype":"F32","shape":[4],"data_offsets":[0]}})", "pair of byte offsets"},
      {R"({"a":{"dtype":"F32","shape":[4294967296,4294967296,4],"data_offsets":[0,16]}})", "overflows"},
      {R"({"a":{"dtype":"F32","shape":[4611686018427387908],"data_offsets":[0,16]}})", "overflows"},
      {R"({"a":{"dtype":"F32","shape":[18446744073709551615],"data_offsets":[0,16]}})", "not a size"},
      {R"({"a":{"dtype":"F32","shape":[4294967296,4294967296,0],"data_offsets":[0,0]}})", "overflows"},
      {R"({"a":{"dtype":"F32","shape":[-4],"data_offsets":[0,16]}})", "not a size"},
      {R"({"a":{"dtype":"F32","shape":4,"data_offsets":[0,16]}})", "\"shape\" is not a list"},
      {R"({"a":{"dtype":"F8_E4M3","shape":[16],"data_offsets":[0,16]}})", "F8_E4M3"},
      {R"({"a":{"dtype":7,"shape":[16],"data_offsets":[0,16]}})", "dtype"},
      {R"({"a":{"dtype":"U8","shape":[16],"data_offsets":[0,16],"more":1}})", "more"},
      {R"({"a":{"dtype":"U8","shape":[16],"data_offsets":[0,16]},"a":{"dtype":"U8","shape":[16],"data_offsets":[0,16]}})",
       "stands twice"},
      {R"({"a":{"dtype":"U8","shape":[[[[[16]]]]],"data_offsets":[0,16]}})", "nested deeper"},
      {R"({"a":[]})", "not an object"},
      {R"([])", "not an object"},
      {R"({"__metadata__":[]})", "__metadata__"},
      {R"({"__metadata__":{"a":1}})", "__metadata__"},
      {R"({)", "line 1, column 1"},
      {std::string(1'000'000, '['), "nested deeper"},
      {"", "not well-formed JSON"},
  };
  for (const auto& test : kCases) {
    const absl::Status status = OpenHeader(test.header, data);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << test.header.substr(0, 200);
    EXPECT_THAT(std::string(status.message()), HasSubstr(test.message)) << test.header.substr(0, 200);
  }
}

TEST_F(CheckpointReaderTest, RefusesAHeaderLongerThanTheFormatAllows) {
  std::string content = FileBytes("{}", "");
  const uint64_t length = 100'000'001;
  std::memcpy(content.data(), &length, 8);
  const std::string path = WriteFile("model.safetensors", content);
  std::filesystem::resize_file(path, 200'000'000);  // sparse
  EXPECT_THAT(std::string(CheckpointReader::Open(folder_).status().message()), HasSubstr("at most 100000000"));
}

TEST_F(CheckpointReaderTest, SaysWhichFilesItLookedFor) {
  absl::Status status = CheckpointReader::Open(folder_).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(status.message()), HasSubstr(folder_));
  EXPECT_THAT(std::string(status.message()), HasSubstr("model.safetensors.index.json"));
  EXPECT_THAT(std::string(status.message()), Not(HasSubstr("pytorch_model.bin")));
  WriteFile("pytorch_model.bin", "a pickle");
  EXPECT_THAT(std::string(CheckpointReader::Open(folder_).status().message()), HasSubstr("safe_serialization=True"));
  status = CheckpointReader::Open(folder_ + "/nowhere").status();
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(status.message()), HasSubstr("nowhere does not exist"));
}

TEST_F(CheckpointReaderTest, RefusesAPipeWithoutWaitingForIt) {
  ASSERT_EQ(mkfifo((folder_ + "/model.safetensors").c_str(), 0600), 0);
  EXPECT_THAT(std::string(CheckpointReader::Open(folder_).status().message()), HasSubstr("not a regular file"));
}

TEST_F(CheckpointReaderTest, ReadsALinkedFileAsCachesKeepThem) {
  std::filesystem::create_directories(folder_ + "/blobs");
  std::filesystem::create_directories(folder_ + "/snapshot");
  WriteFile("blobs/1234", ReadAll(kGolden));
  std::filesystem::create_symlink("../blobs/1234", folder_ + "/snapshot/model.safetensors");
  EXPECT_TRUE(CheckpointReader::Open(folder_ + "/snapshot").ok());
  std::filesystem::remove(folder_ + "/blobs/1234");
  const absl::Status dangling = CheckpointReader::Open(folder_ + "/snapshot").status();
  EXPECT_EQ(dangling.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(dangling.message()), HasSubstr("snapshot/model.safetensors"));
}

TEST_F(CheckpointReaderTest, SaysWhenAFileShrinksUnderIt) {
  const std::string path = WriteFile("model.safetensors", ReadAll(kGolden));
  auto reader = CheckpointReader::Open(folder_);
  ASSERT_TRUE(reader.ok());
  std::filesystem::resize_file(path, 20);
  float values[6];
  const absl::Status status = (*reader)->ReadRange("f32", 0, 6, values);
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(std::string(status.message()), HasSubstr("\"f32\""));
}

class ShardedTest : public CheckpointReaderTest {
 protected:
  void WriteShards() {
    WriteFile("one.safetensors", FileBytes(R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]}})", "\1\2"));
    WriteFile("two.safetensors", FileBytes(R"({"b":{"dtype":"U8","shape":[3],"data_offsets":[0,3]}})", "\3\4\5"));
  }
  absl::Status OpenIndex(const std::string& index) {
    WriteFile("model.safetensors.index.json", index);
    return CheckpointReader::Open(folder_).status();
  }
};

TEST_F(ShardedTest, ReadsEachTensorFromItsFile) {
  WriteShards();
  ASSERT_TRUE(OpenIndex(R"({"metadata":{"total_size":5},
                            "weight_map":{"a":"one.safetensors","b":"two.safetensors"}})")
                  .ok());
  auto reader = CheckpointReader::Open(folder_);
  ASSERT_EQ((*reader)->files().size(), 2);
  EXPECT_THAT(ReadTensor<uint8_t>(**reader, "a"), ElementsAre(1, 2));
  EXPECT_THAT(ReadTensor<uint8_t>(**reader, "b"), ElementsAre(3, 4, 5));
}

TEST_F(ShardedTest, RefusesAnIndexThatDoesNotFitItsFiles) {
  WriteShards();
  const struct {
    const char* index;
    const char* message;
  } kCases[] = {
      {R"({"weight_map":{"a":"one.safetensors","b":"one.safetensors"}})", "\"b\": is not there"},
      {R"({"weight_map":{"a":"one.safetensors","c":"two.safetensors"}})", "\"b\": is not named in"},
      {R"({"weight_map":{"a":"two.safetensors","b":"one.safetensors"}})", "by "},
      {R"({"weight_map":{}})", "empty"},
      {R"({"weight_map":[]})", "weight_map"},
      {R"([])", "weight_map"},
      {R"({"weight_map":{"a":1}})", "not a string"},
      {R"({"weight_map":{"a":"../one.safetensors"}})", "plain name"},
      {R"({"weight_map":{"a":"/etc/passwd"}})", "plain name"},
      {R"({"weight_map":{"a":".."}})", "plain name"},
      {R"({"weight_map":{"a":""}})", "plain name"},
      {R"({"weight_map":{"a":"one.safetensors\u0000"}})", "plain name"},
      {R"({"weight_map":{"a":"one.)", "line 1"},
  };
  for (const auto& test : kCases) {
    const absl::Status status = OpenIndex(test.index);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << test.index;
    EXPECT_THAT(std::string(status.message()), HasSubstr(test.message)) << test.index;
  }
}

TEST_F(ShardedTest, NamesAFileThatIsMissing) {
  WriteShards();
  const absl::Status status = OpenIndex(R"({"weight_map":{"a":"one.safetensors","b":"three.safetensors"}})");
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(status.message()), HasSubstr(folder_ + "/three.safetensors"));
  EXPECT_THAT(std::string(status.message()), HasSubstr("model.safetensors.index.json"));
}

}  // namespace
}  // namespace quartet
