// Answers a second through each way to a reward, with the defaults of its reward.source: 256 answers of about 600
// characters at a time, as one step of a run brings them, from the first that is handed over to the last that is done.
// Command and HTTP server are those of examples/rewards, in Python; the gRPC server is one in this process.
//
//   bazel build //scorer:answer_sources_benchmark && bazel-bin/scorer/answer_sources_benchmark
//
// (in the repository: the examples' paths are relative to it)
#include <benchmark/benchmark.h>
#include <grpcpp/grpcpp.h>

#include <latch>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/config/run_config.h"
#include "core/service/process/piped_process.h"
#include "proto/reward.grpc.pb.h"
#include "scorer/answer_sources.h"

namespace quartet {
namespace {

constexpr int kAnswers = 256;

class Judge final : public RewardModel::Service {
 public:
  Judge() {
    grpc::ServerBuilder builder;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port_);
    builder.RegisterService(this);
    server_ = builder.BuildAndStart();
  }
  std::string url() const { return absl::StrCat("grpc://127.0.0.1:", port_); }

 private:
  grpc::Status Reward(grpc::ServerContext*, const RewardRequest* request, RewardReply* reply) override {
    for (const RewardItem& item : request->items()) reply->add_results()->set_reward(item.response() == item.label());
    return grpc::Status::OK;
  }

  int port_ = 0;
  std::unique_ptr<grpc::Server> server_;
};

std::vector<std::shared_ptr<const Answer>> Answers(const std::string& end, const std::string& label) {
  std::vector<std::shared_ptr<const Answer>> answers;
  for (int i = 0; i < kAnswers; ++i) {
    auto answer = std::make_shared<Answer>();
    answer->prompt = "What is 7 times 12? Reason step by step.\n";
    for (int line = 0; line < 12; ++line) {
      absl::StrAppend(&answer->response, "Step ", line, " of answer ", i, ": seven times twelve.\n");
    }
    answer->response += end;
    answer->query = answer->prompt + answer->response;
    answer->label = label;
    answers.push_back(std::move(answer));
  }
  return answers;
}

void Score(benchmark::State& state, const std::vector<std::string>& overrides, const std::string& end,
           const std::string& label) {
  RunConfig config;
  if (const absl::Status status = ApplyOverrides(overrides, &config); !status.ok()) {
    return state.SkipWithError(std::string(status.message()).c_str());
  }
  if (const absl::Status status = ResolveRunConfig(&config, ""); !status.ok()) {
    return state.SkipWithError(std::string(status.message()).c_str());
  }
  const auto sources = AnswerSources::Create(config.reward());
  if (!sources.ok()) return state.SkipWithError(std::string(sources.status().message()).c_str());
  const auto answers = Answers(end, label);
  std::string error;
  const auto score_all = [&] {
    std::latch left(kAnswers);
    for (const auto& answer : answers) {
      (*sources)->Score(answer, {}, [&](int, const absl::StatusOr<Reward>& reward) {
        if (!reward.ok()) error = reward.status().ToString();
        left.count_down();
      });
    }
    left.wait();
  };
  score_all();  // programs are started with the first answers
  for (auto _ : state) score_all();
  if (!error.empty()) return state.SkipWithError(error.c_str());
  state.SetItemsProcessed(state.iterations() * kAnswers);
}

void Math(benchmark::State& state) {
  Score(state, {"reward.source.0.rule=math"}, "So it is $\\boxed{\\frac{168}{2}}$.", "84");
}
void Command(benchmark::State& state) {
  Score(state, {"reward.source.0.command=python3 examples/rewards/command.py"}, "84", "84");
}
void Http(benchmark::State& state) {
  const auto server = PipedProcess::Start({.argv = {"python3", "examples/rewards/http_server.py", "0"}});
  if (!server.ok()) return state.SkipWithError(server.status().ToString().c_str());
  const auto line = (*server)->ReadLine(1000, Deadline::In(absl::Seconds(60)), {});
  if (!line.ok()) return state.SkipWithError(line.status().ToString().c_str());
  Score(state, {absl::StrCat("reward.source.0.remote_url=http://127.0.0.1:", line->substr(line->rfind(' ') + 1))}, "84",
        "84");
}
void Grpc(benchmark::State& state) {
  const Judge judge;
  Score(state, {"reward.source.0.remote_url=" + judge.url()}, "84", "84");
}
void Code(benchmark::State& state) {
  Score(state, {"reward.source.0.code=python"}, "```python\nprint(7 * int(input()))\n```\n",
        R"({"inputs": ["12"], "outputs": ["84"]})");
}

BENCHMARK(Math)->UseRealTime()->Unit(benchmark::kMillisecond);
BENCHMARK(Command)->UseRealTime()->Unit(benchmark::kMillisecond);
BENCHMARK(Http)->UseRealTime()->Unit(benchmark::kMillisecond);
BENCHMARK(Grpc)->UseRealTime()->Unit(benchmark::kMillisecond);
BENCHMARK(Code)->UseRealTime()->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace quartet
