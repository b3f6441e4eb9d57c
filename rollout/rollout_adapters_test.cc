// Adapters alone as the weights of a new version, for a model that the rollout has.

#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include "core/model/lora.h"
#include "core/model/parameter_layout.h"
#include "core/safetensors/reader.h"
#include "core/weights/tensor_hash.h"
#include "gtest/gtest.h"
#include "rollout/testing/fake_publisher.h"
#include "rollout/testing/test_service.h"

namespace quartet {
namespace {

namespace fs = std::filesystem;

constexpr char kTrainedAdapters[] = "core/model/testdata/llama_lora";  // of kTestModel

LoraConfig LoraOfThem() {
  LoraConfig lora;
  lora.set_r(8);
  lora.set_alpha(16);
  return lora;
}

// The sum over all elements as the files have them, positions through the tensors in the order of the layout.
uint64_t HashOfFolder(const std::string& folder) {
  const auto reader = *CheckpointReader::Open(folder);
  uint64_t hash = 0;
  int64_t position = 0;
  for (const ParameterGroup& group : MakeParameterLayout(*ReadModelConfig(folder), HeadKind::kVocabulary).groups) {
    for (const ParameterSpec& parameter : group.parameters) {
      const TensorInfo& info = reader->tensors().at(parameter.name);
      std::vector<char> bytes(info.numel() * DtypeSize(info.dtype));
      EXPECT_TRUE(reader->ReadRange(parameter.name, 0, info.numel(), bytes.data()).ok());
      hash += HashElements(bytes.data(), info.dtype, position, info.numel());
      position += info.numel();
    }
  }
  return hash;
}

// The trained adapters as version `version`; with the manifest that says what they belong to.
struct PublishedAdapters {
  explicit PublishedAdapters(uint64_t version) {
    const auto reader = *CheckpointReader::OpenFile(std::string(kTrainedAdapters) + "/adapter_model.safetensors");
    std::vector<ParameterSpec> tensors;
    std::vector<std::vector<char>> values;
    for (const auto& [name, info] : reader->tensors()) {
      tensors.push_back({.name = name, .shape = info.shape});
      EXPECT_EQ(info.dtype, Dtype::kF32);
      EXPECT_TRUE(reader->ReadRange(name, 0, info.numel(), values.emplace_back(info.numel() * 4).data()).ok());
    }
    publisher = std::make_unique<FakePublisher>(version, Dtype::kF32, tensors, values, 2);
    manifest = publisher->manifest();
    manifest.mutable_adapters()->set_base_hash(HashOfFolder(kTestModel));
    manifest.mutable_adapters()->set_scale(2);
  }
  std::unique_ptr<FakePublisher> publisher;
  WeightManifest manifest;
};

class RolloutAdaptersTest : public testing::TestWithParam<Group> {};
INSTANTIATE_TEST_SUITE_P(Groups, RolloutAdaptersTest, testing::ValuesIn(kGroups), NameOf);

// However ranks share the model, it is as if they had been loaded with it; and so it is after a sleep without the
// model.
TEST_P(RolloutAdaptersTest, AreTakenByThemselvesAndKeptThroughASleepWithoutTheModel) {
  const PublishedAdapters published(4);
  TestService whole(GetParam());
  const auto of_model = whole.Ids(0);
  const auto adapted = [] {
    TestService loaded({}, [](RolloutConfig* rollout) { rollout->set_pretrain(kTrainedAdapters); });
    return loaded.Ids(0);
  }();
  ASSERT_NE(adapted, of_model);

  TestService service(GetParam(), nullptr, LoraOfThem());
  EXPECT_EQ(service.Ids(0), of_model) << "new adapters add nothing";
  uint64_t bytes = 0;
  const grpc::Status begun = service.Begin(published.manifest, &bytes);
  ASSERT_TRUE(begun.ok()) << begun.error_message();
  uint64_t most = 0;
  for (const TensorEntry& tensor : published.manifest.tensors()) most += tensor.shape(0) * tensor.shape(1) * 4;
  EXPECT_LE(bytes, most * GetParam().ranks);
  ASSERT_TRUE(service.Commit(4).ok());
  EXPECT_EQ(service.Ids(4), adapted);

  const int64_t parameters = service.Bytes("parameters");
  uint64_t released = 0;
  ASSERT_TRUE(service.Sleep(&released, 2).ok());
  EXPECT_GT(released, 0u);
  EXPECT_LT(service.Bytes("parameters"), parameters / 2);
  const grpc::Status woken = service.WakeUp();
  ASSERT_TRUE(woken.ok()) << woken.error_message();
  ASSERT_TRUE(service.Resume().ok());
  EXPECT_EQ(service.Ids(4), adapted);

  // The same while it sleeps: the model comes when it wakes up.
  ASSERT_TRUE(service.Sleep(&released, 2).ok());
  const PublishedAdapters next(5);
  ASSERT_TRUE(service.Begin(next.manifest).ok());
  ASSERT_TRUE(service.Commit(5).ok());
  ASSERT_TRUE(service.WakeUp().ok());
  ASSERT_TRUE(service.Resume().ok());
  EXPECT_EQ(service.Ids(5), adapted);
}

TEST_P(RolloutAdaptersTest, AreRefusedByNameWhereTheyAreNotWhatTheRolloutAdds) {
  TestService service(GetParam(), nullptr, LoraOfThem());
  const auto before = service.Ids(0);
  const PublishedAdapters good(1);
  const auto refusal = [&](const std::function<void(WeightManifest*)>& change) {
    WeightManifest manifest = good.manifest;
    change(&manifest);
    const grpc::Status status = service.Begin(manifest);
    EXPECT_EQ(status.error_code(), grpc::StatusCode::FAILED_PRECONDITION);
    EXPECT_EQ(service.Ids(0), before);
    return status.error_message();
  };
  const auto expect = [](const std::string& message, const std::string& part) {
    EXPECT_NE(message.find(part), std::string::npos) << message;
  };
  expect(refusal([](auto* m) { m->mutable_adapters()->set_base_hash(m->adapters().base_hash() + 1); }),
         "are adapters of another model");
  expect(refusal([](auto* m) { m->mutable_adapters()->set_scale(4); }),
         "are added times 4, and the rollout adds its own");
  expect(refusal([](auto* m) { m->clear_adapters(); }), "testdata/llama alone");
  const std::string missing = good.manifest.tensors(good.manifest.tensors_size() - 1).name();
  expect(refusal([](auto* m) { m->mutable_tensors()->RemoveLast(); }), missing);
  expect(refusal([](auto* m) { m->mutable_tensors(0)->set_shape(0, m->tensors(0).shape(0) + 1); }),
         good.manifest.tensors(0).name());
  ASSERT_TRUE(service.Begin(good.manifest).ok());
}

TEST(RolloutUpdate, OfAdaptersIsRefusedByARolloutOfWholeModels) {
  TestService service({});
  const grpc::Status status = service.Begin(PublishedAdapters(1).manifest);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::FAILED_PRECONDITION);
  EXPECT_NE(status.error_message().find("are adapters, and this rollout takes whole models"), std::string::npos)
      << status.error_message();
}

// New weights of the model alone would be taken for those of model and adapters.
TEST(RolloutUpdate, OfAWholeModelIsRefusedByARolloutOfAFolderOfAdapters) {
  TestService service({}, [](RolloutConfig* rollout) { rollout->set_pretrain(kTrainedAdapters); });
  const auto before = service.Ids(0);
  const grpc::Status status = service.Begin(Publish(1, /*negate=*/false)->manifest());
  EXPECT_EQ(status.error_code(), grpc::StatusCode::FAILED_PRECONDITION);
  EXPECT_NE(status.error_message().find("are a whole model's"), std::string::npos) << status.error_message();
  EXPECT_EQ(service.Ids(0), before);
}

// It never answers with adapters on no model, or on another.
TEST_P(RolloutAdaptersTest, DoNotWakeUpWithoutTheirModelNorOnAnother) {
  const fs::path folder = fs::path(testing::TempDir()) / ("slept_" + NameOf({GetParam(), 0}));
  fs::remove_all(folder);
  fs::copy(kTestModel, folder);
  TestService service(
      GetParam(), [&](RolloutConfig* rollout) { rollout->set_pretrain(folder.string()); }, LoraOfThem());
  ASSERT_TRUE(service.Begin(PublishedAdapters(1).manifest).ok());
  ASSERT_TRUE(service.Commit(1).ok());
  const auto before = service.Ids(1);
  uint64_t released = 0;
  ASSERT_TRUE(service.Sleep(&released, 2).ok());

  const fs::path weights = folder / "model.safetensors", elsewhere = folder / "elsewhere";
  fs::rename(weights, elsewhere);
  grpc::Status status = service.WakeUp();
  EXPECT_FALSE(status.ok());
  EXPECT_NE(status.error_message().find(folder.string()), std::string::npos) << status.error_message();
  EXPECT_FALSE(service.Resume().ok());

  fs::copy_file(elsewhere, weights);
  {
    std::fstream file(weights, std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(-1000, std::ios::end);
    file.put('\x11');
  }
  status = service.WakeUp();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::FAILED_PRECONDITION);
  EXPECT_NE(status.error_message().find("is another than when the rollout was started"), std::string::npos)
      << status.error_message();
  EXPECT_FALSE(service.Resume().ok());

  fs::rename(elsewhere, weights);
  ASSERT_TRUE(service.WakeUp().ok());
  ASSERT_TRUE(service.Resume().ok());
  EXPECT_EQ(service.Ids(1), before);
}

}  // namespace
}  // namespace quartet
