// Real ranks that hold one model between them.

#include <grpcpp/grpcpp.h>
#include <signal.h>

#include <chrono>
#include <cstdint>
#include <map>
#include <string>
#include <thread>
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

  // A rollout of `ranks` processes that are one engine.
  ProcessHarness::Service Start(int ranks) {
    ProcessHarness::Service rollout = StartRollout(
        harness_, model_,
        {absl::StrCat("services.rollout.ranks=", ranks), absl::StrCat("rollout.tensor_parallel_size=", ranks)});
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

  ProcessHarness harness_;
  const std::string model_;
};

TEST_F(TensorParallel, RanksAnswerGreedilyAsOneDoes) {
  std::map<uint64_t, Answer> expected;
  for (const int ranks : {1, 2, 4}) {
    const auto [pid, address] = Start(ranks);
    std::map<uint64_t, Answer> answers;
    const grpc::Status status = Generate(address, 40, &answers);
    ASSERT_TRUE(status.ok()) << status.error_message() << harness_.Output(pid);
    ASSERT_EQ(answers.size(), 9u);
    if (ranks == 1) expected = answers;
    for (const auto& [prompt, answer] : answers) {
      EXPECT_EQ(answer.ids, expected[prompt].ids) << "prompt " << prompt << ", " << ranks << " ranks";
      ASSERT_EQ(answer.log_probs.size(), 40u);
      for (size_t t = 0; t < answer.log_probs.size(); ++t) {
        EXPECT_NEAR(answer.log_probs[t], expected[prompt].log_probs[t], 1e-4);
      }
    }
    kill(pid, SIGTERM);
    const ProcessHarness::Outcome outcome = harness_.Wait(pid, absl::Seconds(30));
    EXPECT_TRUE(outcome.ended && outcome.exit_code == 0) << outcome.exit_code << outcome.output;
  }
}

TEST_F(TensorParallel, ARankThatDiesEndsTheServiceWithAnErrorThatNamesIt) {
  const ProcessHarness::Service rollout = Start(2);
  grpc::Status status;
  std::thread caller([&] {
    std::map<uint64_t, Answer> answers;
    while (status.ok()) status = Generate(rollout.address, 180, &answers);
  });
  const std::vector<pid_t> ranks = harness_.Find("rollout/rank");
  EXPECT_EQ(ranks.size(), 2u) << harness_.Output(rollout.pid);
  if (ranks.size() == 2) kill(ranks[1], SIGKILL);
  caller.join();
  EXPECT_FALSE(status.error_message().empty());
  const ProcessHarness::Outcome outcome = harness_.Wait(rollout.pid, absl::Seconds(30));
  EXPECT_TRUE(outcome.ended);
  EXPECT_NE(outcome.exit_code, 0);
  EXPECT_NE(outcome.output.find("rank 1"), std::string::npos) << outcome.output;
  EXPECT_TRUE(harness_.Survivors(absl::Seconds(10)).empty());
}

}  // namespace
}  // namespace quartet
