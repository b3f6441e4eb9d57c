#include "core/zero/testing/golden_run.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/log_softmax.h>
#include <ATen/ops/tensor.h>
#include <google/protobuf/util/json_util.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <stdexcept>

#include "core/base/division.h"
#include "core/comm/testing/rank_threads.h"

namespace quartet {
namespace {

namespace fs = std::filesystem;

constexpr char kTestdata[] = "core/zero/testdata/";

int64_t PredictedTokens(const TokenIds& sequences) {
  int64_t count = 0;
  for (const auto& sequence : sequences) count += static_cast<int64_t>(sequence.size()) - 1;
  return count;
}

}  // namespace

TrainableModelOptions GoldenRun::Fp32(int stage, bool checkpointing) const {
  TrainableModelOptions options;
  options.model.device = TestDevice();
  options.model.zero_stage = stage;
  options.model.compute_dtype = at::kFloat;
  options.optimizer = MakeOptimizer(trainer);
  options.gradient_checkpointing = checkpointing;
  return options;
}

GoldenRun ReadGoldenRun(const std::string& model, const std::string& optimizer) {
  const auto json = nlohmann::json::parse(std::ifstream(kTestdata + model + ".json"));
  const auto& steps = json[optimizer];
  GoldenRun golden;
  golden.folder = kTestdata + model;
  golden.sequences = json["sequences"].get<TokenIds>();
  golden.losses = steps["losses"].get<std::vector<double>>();
  golden.grad_norms = steps["grad_norms"].get<std::vector<double>>();
  golden.average_loss = steps["average_loss"];
  const auto parsed = google::protobuf::util::JsonStringToMessage(steps["options"].dump(), &golden.trainer);
  if (!parsed.ok()) throw std::runtime_error(parsed.ToString());
  golden.learning_rate = golden.trainer.learning_rate();
  golden.max_norm = golden.trainer.max_norm();
  return golden;
}

PackedSequences PackIds(const TokenIds& sequences) {
  PackedSequences batch;
  batch.cu_seqlens = {0};
  std::vector<int64_t> ids;
  for (const auto& sequence : sequences) {
    ids.insert(ids.end(), sequence.begin(), sequence.end());
    batch.cu_seqlens.push_back(ids.size());
  }
  batch.ids_T = at::tensor(ids, at::TensorOptions(at::kLong));
  return batch;
}

at::Tensor NextTokenLoss(const PackedSequences& batch, const at::Tensor& hidden_TD, const at::Tensor& head_VD,
                         double weight) {
  const at::ScalarType type = WideType(hidden_TD.scalar_type());
  const at::Tensor log_probs = at::log_softmax(hidden_TD.to(type).matmul(head_VD.to(type).t()), -1);
  std::vector<int64_t> from;
  for (size_t i = 0; i + 1 < batch.cu_seqlens.size(); ++i) {
    for (int64_t t = batch.cu_seqlens[i]; t + 1 < batch.cu_seqlens[i + 1]; ++t) from.push_back(t);
  }
  const at::Tensor rows = at::tensor(from, at::TensorOptions(at::kLong));
  const at::Tensor targets = batch.ids_T.index_select(0, rows + 1).unsqueeze(1).to(hidden_TD.device());
  return log_probs.index_select(0, rows.to(hidden_TD.device())).gather(1, targets).sum() * -weight;
}

std::unique_ptr<TrainableModel> LoadOrDie(const std::string& folder, const TrainableModelOptions& options,
                                          ProcessGroup& group, Ledger& ledger) {
  auto model = TrainableModel::Load(folder, options, &group, &ledger);
  if (!model.ok()) throw std::runtime_error(model.status().ToString());
  return *std::move(model);
}

double Accumulate(TrainableModel& model, const TokenIds& sequences, int micro) {
  ProcessGroup& group = model.model().process_group();
  TokenIds mine;
  for (size_t i = group.rank(); i < sequences.size(); i += group.size()) mine.push_back(sequences[i]);
  const int most = CeilDivide(static_cast<int>(sequences.size()), group.size());
  double loss = 0;
  for (int begin = 0; begin < most; begin += micro) {
    const int end = std::min<int>(begin + micro, mine.size());
    const PackedSequences batch = begin < end ? PackIds({mine.begin() + begin, mine.begin() + end})
                                              : PackedSequences{at::empty({0}, at::kLong), {}};
    loss += model.ForwardBackward(batch, [&](const at::Tensor& hidden_TD, const at::Tensor& head_weight) {
      return NextTokenLoss(batch, hidden_TD, head_weight, 1.0 / PredictedTokens(sequences));
    });
  }
  at::Tensor total = at::tensor({loss}, at::TensorOptions(at::kDouble)).to(model.model().options().device);
  group.AllReduceSum(total)->Wait();
  return total.item<double>();
}

void RunMesh(int ranks, int shard_size, const std::function<void(Mesh&)>& body) {
  RunRanksOfStore(ranks, [&](KeyValueStore* store, const ProcessGroupOptions& options) {
    auto mesh = MakeMesh(store, options, shard_size == 0 ? ranks : shard_size);
    ASSERT_TRUE(mesh.ok()) << mesh.status();
    body(**mesh);
  });
}

ModelConfig DeepConfig() {
  ModelConfig config;
  config.model_type = "llama";
  config.vocab_size = 97;
  config.hidden_size = 48;
  config.intermediate_size = 80;
  config.num_hidden_layers = 16;
  config.num_attention_heads = 4;
  config.num_key_value_heads = 2;
  config.head_dim = 12;
  config.max_position_embeddings = 128;
  return config;
}

std::string FreshFolder(const std::string& name) {
  const fs::path folder = fs::path(testing::TempDir()) / ("golden_run_" + name);
  DoOnce([&folder] { fs::remove_all(folder); });
  return folder.string();
}

}  // namespace quartet
