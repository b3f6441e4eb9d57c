// Updates the weights of a running rollout from a running policy_trainer while sequences are in flight, and prints what
// each part of an update took and what generation lost by it:
//
//   weight_update_benchmark --policy_trainer=HOST:PORT --rollout=HOST:PORT [--updates=5] [--sequences=32]
//
// Both must have been started afresh on the same model, version 0. Times are wall-clock seconds seen by the client.

#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <iostream>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/flags/parse.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "proto/policy_trainer.grpc.pb.h"
#include "proto/rollout.grpc.pb.h"

ABSL_FLAG(std::string, policy_trainer, "", "host:port");
ABSL_FLAG(std::string, rollout, "", "host:port");
ABSL_FLAG(int, updates, 5, "how many");
ABSL_FLAG(int, sequences, 32, "in flight all the time");
ABSL_FLAG(int, prompt, 96, "tokens of each");
ABSL_FLAG(int, answer, 1024, "tokens of each; end tokens do not end it");
ABSL_FLAG(double, pause_between, 5, "seconds of undisturbed generation before each update");

namespace quartet {
namespace {

// When each token came.
class Arrivals {
 public:
  void Add(int tokens) {
    const std::lock_guard lock(mutex_);
    for (int i = 0; i < tokens; ++i) times_.push_back(absl::Now());
  }
  int64_t Between(absl::Time from, absl::Time to) const {
    const std::lock_guard lock(mutex_);
    return std::lower_bound(times_.begin(), times_.end(), to) - std::lower_bound(times_.begin(), times_.end(), from);
  }

 private:
  mutable std::mutex mutex_;
  std::vector<absl::Time> times_;
};

void Exit(const std::string& call, const grpc::Status& status) {
  std::cerr << call << ": " << status.error_message() << '\n';
  std::_Exit(1);
}

// Seconds of one call.
double Timed(const std::string& name, const std::function<grpc::Status(grpc::ClientContext*)>& call) {
  grpc::ClientContext context;
  const absl::Time begin = absl::Now();
  const grpc::Status status = call(&context);
  if (!status.ok()) Exit(name, status);
  return absl::ToDoubleSeconds(absl::Now() - begin);
}

GenerateHeader Header() {
  GenerateHeader header;
  header.set_num_items(absl::GetFlag(FLAGS_sequences));
  header.set_stream_tokens(true);
  SamplingParams* sampling = header.mutable_sampling();
  sampling->set_temperature(1);
  sampling->set_top_p(1);
  sampling->set_n_samples(1);
  sampling->set_ignore_eos(true);
  sampling->set_max_new_tokens(absl::GetFlag(FLAGS_answer));
  return header;
}

// Keeps one call under way until the context is cancelled.
void Generate(Rollout::Stub* stub, grpc::ClientContext* context, Arrivals* arrivals) {
  const auto stream = stub->Generate(context);
  GenerateRequest request;
  *request.mutable_header() = Header();
  stream->Write(request);
  for (int i = 0; i < absl::GetFlag(FLAGS_sequences); ++i) {
    Prompt* prompt = request.mutable_item();
    prompt->Clear();
    prompt->set_index(i);
    for (int t = 0; t < absl::GetFlag(FLAGS_prompt); ++t) prompt->add_ids(1000 + 31 * i + 7 * t);
    stream->Write(request);
  }
  stream->WritesDone();
  for (GenerateReply reply; stream->Read(&reply);) {
    if (reply.has_tokens()) arrivals->Add(reply.tokens().ids_size());
  }
  const grpc::Status status = stream->Finish();
  if (status.error_code() != grpc::StatusCode::CANCELLED) {
    Exit("Generate (it should still be under way: a larger --answer)", status);
  }
}

int Main() {
  const auto channel = [](const std::string& address) {
    return grpc::CreateChannel(address, grpc::InsecureChannelCredentials());
  };
  const auto trainer = PolicyTrainer::NewStub(channel(absl::GetFlag(FLAGS_policy_trainer)));
  const auto rollout = Rollout::NewStub(channel(absl::GetFlag(FLAGS_rollout)));
  Arrivals arrivals;
  grpc::ClientContext generation;
  std::thread generator([&] { Generate(rollout.get(), &generation, &arrivals); });

  uint64_t trainer_calls = 0, rollout_calls = 0;
  const auto identify = [](CallIdentity* identity, uint64_t* calls) {
    identity->set_run_id("weight_update_benchmark");
    identity->set_epoch(1);
    identity->set_sequence(++*calls);
  };
  std::cout << "publish   pull   commit | publish to commit's end  without forwards | tokens/s before, during\n";
  for (int version = 1; version <= absl::GetFlag(FLAGS_updates); ++version) {
    const absl::Duration before = absl::Seconds(absl::GetFlag(FLAGS_pause_between));
    absl::SleepFor(before);
    PublishRequest publish;
    identify(publish.mutable_identity(), &trainer_calls);
    publish.set_version(version);
    PublishReply published;
    const absl::Time begin = absl::Now();
    const double publishing = Timed("Publish", [&](auto* c) { return trainer->Publish(c, publish, &published); });
    BeginUpdateRequest pull;
    identify(pull.mutable_identity(), &rollout_calls);
    *pull.mutable_manifest() = published.manifest();
    BeginUpdateReply pulled;
    const double pulling = Timed("BeginUpdate", [&](auto* c) { return rollout->BeginUpdate(c, pull, &pulled); });
    CommitUpdateRequest commit;
    identify(commit.mutable_identity(), &rollout_calls);
    commit.set_version(version);
    CommitUpdateReply committed;
    const double committing =
        Timed("CommitUpdate", [&](auto* c) { return rollout->CommitUpdate(c, commit, &committed); });
    const absl::Time end = absl::Now();
    const double whole = absl::ToDoubleSeconds(end - begin);
    std::cout << absl::StreamFormat(
                     "%7.3f %6.3f %8.3f | %23.3f %17.3f | %15.1f %7.1f\n", publishing, pulling, committing, whole,
                     committed.pause_seconds(),
                     static_cast<double>(arrivals.Between(begin - before, begin)) / absl::ToDoubleSeconds(before),
                     static_cast<double>(arrivals.Between(begin, end)) / whole)
              << std::flush;
  }
  generation.TryCancel();
  generator.join();
  return 0;
}

}  // namespace
}  // namespace quartet

int main(int argc, char** argv) {
  absl::ParseCommandLine(argc, argv);
  return quartet::Main();
}
