#include "tests/rollout_load.h"

#include <grpcpp/grpcpp.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <memory>
#include <mutex>
#include <random>
#include <set>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "core/service/rpc/status_conversion.h"
#include "proto/rollout.grpc.pb.h"

namespace quartet {
namespace {

// Ids from here on are ordinary tokens of the tiny model as of real ones.
constexpr int kFirstToken = 3;
constexpr int kTokens = 32;

int64_t ResidentBytes(pid_t pid) {
  std::ifstream statm(absl::StrCat("/proc/", pid, "/statm"));
  int64_t size = 0, resident = 0;
  statm >> size >> resident;
  return resident * sysconf(_SC_PAGESIZE);
}

struct Call {
  GenerateHeader header;
  std::vector<Prompt> prompts;
  bool cancel = false;
  absl::Duration cancel_after;
};

Call DrawCall(const RolloutLoad& load, std::mt19937_64& random) {
  const auto draw = [&](int low, int high) { return std::uniform_int_distribution<int>(low, high)(random); };
  Call call;
  call.prompts.resize(draw(1, 4));
  for (size_t i = 0; i < call.prompts.size(); ++i) {
    call.prompts[i].set_index(i);
    const int length = draw(1, load.longest_prompt);
    for (int t = 0; t < length; ++t) call.prompts[i].add_ids(draw(kFirstToken, kFirstToken + kTokens - 1));
  }
  call.header.set_num_items(call.prompts.size());
  SamplingParams* sampling = call.header.mutable_sampling();
  sampling->set_temperature(1);
  sampling->set_top_p(1);
  sampling->set_n_samples(draw(1, 3));
  sampling->set_max_new_tokens(draw(1, load.longest_answer));
  sampling->set_seed(random());
  call.cancel = draw(1, load.cancel_one_of) == 1;
  call.cancel_after = absl::Milliseconds(draw(0, 50));
  return call;
}

// What is wrong with an answer to `call`, or "".
std::string Check(const Call& call, const GeneratedSequence& sequence, std::set<std::pair<uint64_t, int>>* seen) {
  if (sequence.prompt_index() >= call.prompts.size()) return "an answer to a prompt that was not asked";
  if (!seen->emplace(sequence.prompt_index(), sequence.sample()).second) return "an answer that came twice";
  const Prompt& prompt = call.prompts[sequence.prompt_index()];
  const int actions = sequence.tokens().ids_size() - prompt.ids_size();
  if (actions < 1 || actions > call.header.sampling().max_new_tokens()) return "an answer of another length than asked";
  if (!std::equal(prompt.ids().begin(), prompt.ids().end(), sequence.tokens().ids().begin())) {
    return "an answer behind another prompt";
  }
  if (sequence.log_probs_size() != actions) return "an answer without its log-probabilities";
  for (const float log_prob : sequence.log_probs()) {
    if (!std::isfinite(log_prob)) return "a log-probability that is not finite";
  }
  return "";
}

class LoadRun {
 public:
  explicit LoadRun(const RolloutLoad& load)
      : load_(load),
        stub_(Rollout::NewStub(grpc::CreateChannel(load.address, grpc::InsecureChannelCredentials()))),
        end_(absl::Now() + load.duration) {}

  absl::StatusOr<RolloutLoadReport> Run() {
    std::vector<std::thread> threads;
    for (int i = 0; i < load_.calls; ++i) threads.emplace_back([this, i] { Repeat(i); });
    while (absl::Now() < end_) {
      int64_t resident = 0;
      for (const pid_t pid : load_.processes) {
        const int64_t of_one = ResidentBytes(pid);
        resident += of_one;
        if (of_one > 0) continue;
        const std::lock_guard lock(mutex_);
        ++report_.mistakes[absl::StrCat("process ", pid, " has no memory")];
      }
      report_.resident.push_back(resident);
      absl::SleepFor(absl::Milliseconds(500));
    }
    for (std::thread& thread : threads) thread.join();
    grpc::ClientContext context;
    const grpc::Status told = stub_->GetInfo(&context, GetInfoRequest(), &report_.after);
    if (!told.ok()) return FromGrpc(told);
    return std::move(report_);
  }

 private:
  void Repeat(int thread) {
    std::mt19937_64 random(load_.seed * 1000003 + static_cast<uint64_t>(thread));
    while (absl::Now() < end_) {
      if (!One(DrawCall(load_, random))) {
        absl::SleepFor(absl::Milliseconds(std::uniform_int_distribution<int>(1, 40)(random)));
      }
    }
  }

  // False where the service refused it.
  bool One(const Call& call) {
    grpc::ClientContext context;
    context.set_deadline(absl::ToChronoTime(absl::Now() + load_.patience));
    const auto stream = stub_->Generate(&context);
    GenerateRequest request;
    *request.mutable_header() = call.header;
    bool open = stream->Write(request);
    for (const Prompt& prompt : call.prompts) {
      *request.mutable_item() = prompt;
      open = open && stream->Write(request);
    }
    stream->WritesDone();
    std::thread canceller;
    if (call.cancel) {
      canceller = std::thread([&] {
        absl::SleepFor(call.cancel_after);
        context.TryCancel();
      });
    }
    std::string mistake;
    std::set<std::pair<uint64_t, int>> seen;
    int64_t tokens = 0;
    for (GenerateReply reply; stream->Read(&reply);) {
      const std::string wrong =
          reply.has_sequence() ? Check(call, reply.sequence(), &seen) : "tokens that were not asked for";
      if (mistake.empty()) mistake = wrong;
      tokens += reply.sequence().log_probs_size();
    }
    const grpc::Status status = stream->Finish();
    if (canceller.joinable()) canceller.join();

    const std::lock_guard lock(mutex_);
    ++report_.calls;
    report_.tokens += tokens;
    if (!mistake.empty()) {
      ++report_.mistakes[mistake];
    } else if (status.ok()) {
      if (seen.size() == call.prompts.size() * static_cast<size_t>(call.header.sampling().n_samples())) {
        ++report_.answered;
      } else {
        ++report_.mistakes["a call that ended well without all of its answers"];
      }
    } else if (status.error_code() == grpc::StatusCode::RESOURCE_EXHAUSTED) {
      ++report_.refused;
      return false;
    } else if (call.cancel && status.error_code() == grpc::StatusCode::CANCELLED) {
      ++report_.cancelled;
    } else {
      ++report_.mistakes[FromGrpc(status).ToString()];
    }
    return true;
  }

  const RolloutLoad load_;
  const std::unique_ptr<Rollout::Stub> stub_;
  const absl::Time end_;
  std::mutex mutex_;
  RolloutLoadReport report_;
};

}  // namespace

int64_t RolloutLoadReport::resident_growth() const {
  const auto quarter = static_cast<int64_t>(resident.size()) / 4;
  if (quarter == 0) return 0;
  const auto begin = resident.begin();
  return *std::max_element(begin + 2 * quarter, resident.end()) -
         *std::max_element(begin + quarter, begin + 2 * quarter);
}

absl::StatusOr<RolloutLoadReport> OfferLoad(const RolloutLoad& load) { return LoadRun(load).Run(); }

}  // namespace quartet
