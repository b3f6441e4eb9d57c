// Real ranks that hold a model between them.

#include <grpcpp/grpcpp.h>
#include <signal.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "core/model/initialize.h"
#include "gtest/gtest.h"
#include "proto/rollout.grpc.pb.h"
#include "tests/process_harness.h"
#include "tests/tiny_run.h"

namespace quartet {
namespace {

struct Answer {
  std::vector<int32_t> ids;
  std::vector<float> log_probs;
};

class TensorParallel : public testing::Test {
 protected:
  TensorParallel() : model_(harness_.Path("model")) {
    ModelConfig config = TinyModelConfig();
    config.hidden_size = 128;
    config.intermediate_size = 320;
    config.num_attention_heads = 8;
    config.num_key_value_heads = 4;
    config.head_dim = 16;
    config.initializer_range = 0.2;
    const absl::Status written = WriteRandomModel(config, HeadKind::kVocabulary, 7, Dtype::kF32, model_);
    EXPECT_TRUE(written.ok()) << written;
  }

  // A rollout of `engines` engines of `ranks` processes each.
  ProcessHarness::Service Start(int engines, int ranks) {
    ProcessHarness::Service rollout =
        StartRollout(harness_, model_,
                     {absl::StrCat("services.rollout.ranks=", engines * ranks), "services.rollout.threads=1",
                      absl::StrCat("rollout.tensor_parallel_size=", ranks)});
    EXPECT_FALSE(rollout.address.empty()) << harness_.Output(rollout.pid);
    return rollout;
  }

  static grpc::Status Generate(const std::string& address, int32_t max_new_tokens,
                               std::map<uint64_t, Answer>* answers) {
    const auto stub = Rollout::NewStub(grpc::CreateChannel(address, grpc::InsecureChannelCredentials()));
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(60));
    const auto stream = stub->Generate(&context);
    GenerateRequest request;
    request.mutable_header()->set_num_items(9);
    SamplingParams& sampling = *request.mutable_header()->mutable_sampling();
    sampling.set_top_p(1);
    sampling.set_n_samples(1);
    sampling.set_ignore_eos(true);
    sampling.set_max_new_tokens(max_new_tokens);
    stream->Write(request);
    for (int prompt = 0; prompt < 9; ++prompt) {
      Prompt& item = *request.mutable_item();
      item.Clear();
      item.set_index(prompt);
      for (int i = 0; i < 1 + 7 * prompt; ++i) item.add_ids((i * i + 5 * prompt) % 40);
      stream->Write(request);
    }
    stream->WritesDone();
    GenerateReply reply;
    while (stream->Read(&reply)) {
      const GeneratedSequence& sequence = reply.sequence();
      Answer& answer = (*answers)[sequence.prompt_index()];
      answer.ids.assign(sequence.tokens().ids().begin(), sequence.tokens().ids().end());
      answer.log_probs.assign(sequence.log_probs().begin(), sequence.log_probs().end());
    }
    return stream->Finish();
  }

  // No engine has had less than half of what another had.
  static void ExpectAllEnginesWorked(const std::string& address, int engines, int ranks) {
    if (ranks == 1) return;
    const auto stub = Rollout::NewStub(grpc::CreateChannel(address, grpc::InsecureChannelCredentials()));
    grpc::ClientContext context;
    ServiceInfo info;
    ASSERT_TRUE(stub->GetInfo(&context, GetInfoRequest(), &info).ok());
    ASSERT_EQ(info.ranks_size(), engines * ranks);
    int64_t least = std::numeric_limits<int64_t>::max(), most = 0;
    for (const RankInfo& rank : info.ranks()) {
      ASSERT_EQ(rank.groups_size(), 1);
      EXPECT_EQ(rank.groups(0).ranks(), ranks);
      least = std::min(least, rank.groups(0).sent_bytes());
      most = std::max(most, rank.groups(0).sent_bytes());
    }
    EXPECT_GT(2 * least, most);
    // Each of the 9 * 40 tokens is of one engine.
    EXPECT_EQ(info.metrics().at("rollout/generated_tokens"), 360);
  }

  ProcessHarness harness_;
  const std::string model_;
};

TEST_F(TensorParallel, RanksAnswerGreedilyAsOneDoes) {
  std::map<uint64_t, Answer> expected;
  for (const auto& [engines, ranks] : {std::pair(1, 1), {1, 2}, {1, 4}, {2, 2}}) {
    const auto [pid, address] = Start(engines, ranks);
    std::map<uint64_t, Answer> answers;
    const grpc::Status status = Generate(address, 40, &answers);
    ASSERT_TRUE(status.ok()) << status.error_message() << harness_.Output(pid);
    ASSERT_EQ(answers.size(), 9u);
    if (expected.empty()) expected = answers;
    for (const auto& [prompt, answer] : answers) {
      EXPECT_EQ(answer.ids, expected[prompt].ids) << "prompt " << prompt << ", " << engines << " x " << ranks;
      ASSERT_EQ(answer.log_probs.size(), 40u);
      for (size_t t = 0; t < answer.log_probs.size(); ++t) {
        EXPECT_NEAR(answer.log_probs[t], expected[prompt].log_probs[t], 1e-4);
      }
    }
    ExpectAllEnginesWorked(address, engines, ranks);
    kill(pid, SIGTERM);
    const ProcessHarness::Outcome outcome = harness_.Wait(pid, absl::Seconds(30));
    EXPECT_TRUE(outcome.ended && outcome.exit_code == 0) << outcome.exit_code << outcome.output;
  }
}

// Over 4 ranks each of its 2 key/value heads is on two.
TEST_F(TensorParallel, ARunBringsItsUpdatesToAllEngines) {
  const TinyRun run = WriteTinyRun(harness_, WriteTinyModel(harness_, "tiny"), 1, {"services.rollout.ranks=4"});
  for (const int ranks : {2, 4}) {
    SCOPED_TRACE(ranks);
    const std::string run_dir = harness_.Path(absl::StrCat("run", ranks));
    std::vector<std::string> arguments = run.arguments;
    for (const std::string& more : {std::string("--launch"), "--set=run_dir=" + run_dir,
                                    absl::StrCat("--set=rollout.tensor_parallel_size=", ranks)}) {
      arguments.push_back(more);
    }
    const auto outcome = harness_.Run("orchestrator/orchestrator", arguments, absl::Seconds(120));
    ASSERT_EQ(outcome.exit_code, 0) << outcome.output;
    const std::vector<nlohmann::json> metrics = ReadRecords(run_dir + "/metrics.jsonl");
    ASSERT_EQ(metrics.size(), 3u);
    for (int step = 0; step < 3; ++step) {
      // The rollout's weights are the trainer's.
      EXPECT_LT(metrics[step].at("rollout/log_prob_diff_max").get<double>(), 1e-4) << step;
      EXPECT_EQ(metrics[step].at("policy_version").get<int>(), step);
    }
  }
}

TEST_F(TensorParallel, ARankThatDiesEndsTheServiceWithAnErrorThatNamesIt) {
  const ProcessHarness::Service rollout = Start(2, 2);
  grpc::Status status;
  std::thread caller([&] {
    std::map<uint64_t, Answer> answers;
    while (status.ok()) status = Generate(rollout.address, 180, &answers);
  });
  const std::vector<pid_t> ranks = harness_.Find("rollout/rank");
  EXPECT_EQ(ranks.size(), 4u) << harness_.Output(rollout.pid);
  if (ranks.size() == 4) kill(ranks[3], SIGKILL);
  caller.join();
  EXPECT_FALSE(status.error_message().empty());
  const ProcessHarness::Outcome outcome = harness_.Wait(rollout.pid, absl::Seconds(30));
  EXPECT_TRUE(outcome.ended);
  EXPECT_NE(outcome.exit_code, 0);
  EXPECT_NE(outcome.output.find("rank 3"), std::string::npos) << outcome.output;
  EXPECT_TRUE(harness_.Survivors(absl::Seconds(10)).empty());
}

}  // namespace
}  // namespace quartet
