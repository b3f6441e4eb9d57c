#include "orchestrator/preflight/preflight.h"

#include <grpcpp/grpcpp.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <set>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "core/base/files/files.h"
#include "core/base/status_macros.h"
#include "core/base/time/deadline.h"
#include "core/config/run_config.h"
#include "core/config/services.h"
#include "core/model/lora.h"
#include "core/model/model_config.h"
#include "core/model/parameter_layout.h"
#include "core/preflight/node_facts.h"
#include "core/preflight/preflight.grpc.pb.h"
#include "core/service/rpc/call_deadline.h"
#include "core/service/rpc/credentials.h"
#include "core/service/rpc/status_conversion.h"
#include "core/training/engine/model_folder_check.h"

namespace quartet {
namespace {

// A parameter's master weight and Adam's two moments, in fp32.
constexpr int64_t kStateOfParameter = 12;

// For a service without models to listen, on whatever host it is.
constexpr absl::Duration kStart = absl::Minutes(2);
constexpr absl::Duration kPatience = absl::Seconds(5);  // before it is said what is waited for
constexpr absl::Duration kCall = absl::Minutes(2);
constexpr int64_t kCollectiveBytes = int64_t{16} << 20;
constexpr int64_t kPullBytes = int64_t{16} << 20;
// Pulls are made one after the other; more of them tell no more.
constexpr size_t kMaxPulls = 64;

// A file in the run's folder, by which others are seen to share it. Leaves the folder as it was.
class Token {
 public:
  static absl::StatusOr<std::unique_ptr<Token>> Make(const std::string& run_dir) {
    std::error_code error;
    const bool was_there = std::filesystem::exists(run_dir, error);
    std::unique_ptr<Token> token(new Token(run_dir, was_there));
    QUARTET_RETURN_IF_ERROR(MakeDirs(run_dir));
    QUARTET_RETURN_IF_ERROR(AtomicWriteFile(token->path(), ""));
    return token;
  }
  ~Token() {
    std::error_code ignored;
    std::filesystem::remove(path(), ignored);
    if (!was_there_) std::filesystem::remove(run_dir_, ignored);  // where it is empty
  }
  std::string path() const { return absl::StrCat(run_dir_, "/.check.", getpid()); }

 private:
  Token(std::string run_dir, bool was_there) : run_dir_(std::move(run_dir)), was_there_(was_there) {}
  const std::string run_dir_;
  const bool was_there_;
};

// One service without models.
class CheckedService {
 public:
  CheckedService(std::string name, std::string address, const std::shared_ptr<grpc::ChannelCredentials>& credentials,
                 Cancellation& cancellation)
      : name_(std::move(name)),
        address_(std::move(address)),
        channel_(MakeChannel(address_, credentials)),
        stub_(Preflight::NewStub(channel_)),
        cancellation_(cancellation) {}

  // Waits until it serves, and says so where that takes long.
  absl::StatusOr<MeasureReply> AwaitFacts(const std::string& token, TerminalView& view) {
    MeasureRequest request;
    request.set_token_file(token);
    const Deadline deadline = Deadline::In(kStart), patience = Deadline::In(kPatience);
    for (bool said = false;;) {
      // A connection comes about only while somebody waits for it.
      channel_->WaitForConnected(FromNow(absl::Seconds(1)));
      absl::StatusOr<MeasureReply> facts = Measure(request);
      if (!absl::IsUnavailable(facts.status()) || deadline.passed()) return facts;
      if (!said && patience.passed()) {
        view.PrintAndBegin(absl::StrCat("waiting for the ", name_, " at ", address_, ", at most ",
                                        absl::FormatDuration(kStart), " in all; it is started with --check"));
        said = true;
      }
      absl::SleepFor(absl::Milliseconds(100));
    }
  }
  absl::StatusOr<MeasureReply> Measure(const MeasureRequest& request) {
    return Call("Measure", &Preflight::Stub::Measure, request);
  }
  absl::StatusOr<PullFromReply> PullFrom(const PullFromRequest& request) {
    return Call("PullFrom", &Preflight::Stub::PullFrom, request);
  }

 private:
  template <typename Request, typename Reply>
  absl::StatusOr<Reply> Call(const char* call,
                             grpc::Status (Preflight::Stub::*method)(grpc::ClientContext*, const Request&, Reply*),
                             const Request& request) {
    QUARTET_RETURN_IF_ERROR(cancellation_.status());
    grpc::ClientContext context;
    context.set_deadline(FromNow(kCall));
    const Cancellation::Scope scope(&cancellation_, [&context] { context.TryCancel(); });
    Reply reply;
    const absl::Status status = FromGrpc((*stub_.*method)(&context, request, &reply));
    QUARTET_RETURN_IF_ERROR(cancellation_.status());
    if (status.ok()) return reply;
    const bool has_models = absl::IsUnimplemented(status);
    return absl::Status(status.code(), absl::StrCat("the ", name_, " at ", address_, ", ", call, ": ",
                                                    has_models ? "it was started without --check" : status.message()));
  }

  const std::string name_, address_;
  const std::shared_ptr<grpc::Channel> channel_;
  const std::unique_ptr<Preflight::Stub> stub_;
  Cancellation& cancellation_;
};

// The first rank of each host.
std::vector<const RankCheck*> OneAHost(const MeasureReply& reply) {
  std::vector<const RankCheck*> ranks;
  std::set<std::string> seen;
  for (const RankCheck& rank : reply.ranks()) {
    if (seen.insert(rank.node().host()).second) ranks.push_back(&rank);
  }
  return ranks;
}

absl::Status PullWeights(CheckedService& rollout, TerminalView& view, PreflightFacts* facts) {
  const std::vector<const RankCheck*> to = OneAHost(facts->services.at("rollout"));
  const std::vector<const RankCheck*> from = OneAHost(facts->services.at("policy_trainer"));
  const size_t pulls = std::min(kMaxPulls, std::max(to.size(), from.size()));
  view.Begin("weight transfers", static_cast<int64_t>(pulls));
  for (size_t i = 0; i < pulls; ++i) {
    const RankCheck &puller = *to[i % to.size()], &source = *from[i % from.size()];
    PullFromRequest request;
    request.set_rank(puller.rank());
    request.set_endpoint(source.endpoint());
    request.set_bytes(kPullBytes);
    const absl::StatusOr<PullFromReply> reply = rollout.PullFrom(request);
    if (!reply.ok()) {
      return absl::Status(reply.status().code(), absl::StrCat(puller.node().host(), ": rank ", puller.rank(),
                                                              " of the rollout cannot pull from ", source.endpoint(),
                                                              ", rank ", source.rank(), " of the policy_trainer on ",
                                                              source.node().host(), ": ", reply.status().message()));
    }
    view.Progress(static_cast<int64_t>(i + 1));
    facts->links.push_back({.kind = "weight transfer",
                            .from_host = source.node().host(),
                            .to_host = puller.node().host(),
                            .bytes_per_second = static_cast<double>(kPullBytes) / reply->seconds(),
                            .first_bytes_seconds = reply->first_chunk_seconds()});
  }
  return absl::OkStatus();
}

}  // namespace

int64_t CheckpointBytes(const RunConfig& config, const std::vector<std::string>& services) {
  int64_t bytes = 0;
  for (const TrainerNames& names : kTrainers) {
    if (std::ranges::find(services, names.service) == services.end()) continue;
    const TrainerConfig& trainer = TrainerOf(config, names.section);
    const absl::StatusOr<ModelConfig> model = ReadTrainedModel(names.section, trainer);
    if (!model.ok()) continue;
    int64_t parameters = 0;
    for (const ParameterGroup& group : MakeTrainedLayout(*model, TrainedHead(names.section)).groups) {
      for (const ParameterSpec& parameter : group.parameters) parameters += parameter.numel();
    }
    const int64_t of_file = trainer.dtype() == "fp32" ? 4 : 2;
    bytes += parameters * (of_file + (config.train().save_optimizer() ? kStateOfParameter : 0));
  }
  return bytes;
}

absl::StatusOr<PreflightFacts> AskForFacts(const RunConfig& config, const std::vector<std::string>& names,
                                           TerminalView& view, Cancellation& cancellation) {
  QUARTET_ASSIGN_OR_RETURN(const auto credentials, MakeChannelCredentials(config.tls()));
  QUARTET_ASSIGN_OR_RETURN(const std::unique_ptr<Token> token, Token::Make(config.run_dir()));
  PreflightFacts facts;
  facts.own = ReadNodeFacts(config.run_dir(), token->path());
  facts.checkpoint_bytes = CheckpointBytes(config, names);
  std::map<std::string, std::unique_ptr<CheckedService>> services;
  // 1. Who is there, with what.
  for (const std::string& service : names) {
    services[service] =
        std::make_unique<CheckedService>(service, PlacementOf(config, service).listen(), credentials, cancellation);
    view.Begin("hosts of the " + service);
    QUARTET_RETURN_IF_ERROR(services[service]->AwaitFacts(token->path(), view).status());
    // Again, now that nothing is waited for: what its clock says is between what the own one says before and after.
    MeasureRequest request;
    request.set_token_file(token->path());
    const int64_t before = absl::ToUnixMicros(absl::Now());
    QUARTET_ASSIGN_OR_RETURN(const MeasureReply reply, services[service]->Measure(request));
    const int64_t after = absl::ToUnixMicros(absl::Now());
    for (const RankCheck& rank : reply.ranks()) {
      const int64_t there = rank.node().unix_micros();
      const int64_t ahead = there < before ? there - before : std::max<int64_t>(0, there - after);
      facts.clock_ahead.emplace(rank.node().host(), static_cast<double>(ahead) * 1e-6);
    }
    facts.services[service] = reply;
  }
  // 2. How fast, one service after the other: they share links.
  for (auto& [service, reply] : facts.services) {
    view.Begin("collectives of the " + service);
    MeasureRequest request;
    request.set_token_file(token->path());
    request.set_bytes(kCollectiveBytes);
    QUARTET_ASSIGN_OR_RETURN(reply, services[service]->Measure(request));
    for (const PairRate& pair : reply.pairs()) {
      facts.links.push_back({.kind = "collectives of the " + service,
                             .from_host = reply.ranks(pair.from_rank()).node().host(),
                             .to_host = reply.ranks(pair.to_rank()).node().host(),
                             .bytes_per_second = pair.bytes_per_second()});
    }
  }
  if (services.contains("rollout") && services.contains("policy_trainer")) {
    QUARTET_RETURN_IF_ERROR(PullWeights(*services.at("rollout"), view, &facts));
  }
  view.End();
  return facts;
}

std::vector<Finding> FindProblemsHere(const RunConfig& config, const std::vector<std::string>& services) {
  PreflightFacts facts;
  facts.own = ReadNodeFacts(config.run_dir(), "");
  facts.checkpoint_bytes = CheckpointBytes(config, services);
  *facts.services["run"].add_ranks()->mutable_node() = facts.own;
  return FindProblems(config, facts);
}

absl::Status ReportPreflight(const RunConfig& config, const PreflightFacts& facts, TerminalView& view) {
  const auto gibi = [](int64_t bytes) { return static_cast<double>(bytes) / static_cast<double>(1 << 30); };
  for (const NodeFacts* node : HostsOf(facts)) {
    std::vector<std::string> services;
    int gpus = 0;
    for (const auto& [service, reply] : facts.services) {
      const auto ranks = std::count_if(reply.ranks().begin(), reply.ranks().end(),
                                       [&](const RankCheck& rank) { return rank.node().host() == node->host(); });
      for (const RankCheck& rank : reply.ranks()) {
        gpus += rank.node().host() == node->host() && rank.node().gpu_memory_bytes() > 0;
      }
      if (ranks > 0) services.push_back(absl::StrCat(ranks, " of the ", service));
    }
    view.Print(absl::StrFormat(
        "%s: ranks %s%s; %d cores, memory %.1f of %.1f GiB free, /dev/shm %.1f GiB, run_dir %.0f GiB", node->host(),
        absl::StrJoin(services, ", "), gpus > 0 ? absl::StrCat(", on GPUs, driver ", node->gpu_driver()) : "",
        node->cores(), gibi(node->available_memory_bytes()), gibi(node->memory_bytes()),
        gibi(std::max<int64_t>(0, node->shared_memory_free_bytes())), gibi(node->disk_free_bytes())));
  }
  for (const auto& [service, reply] : facts.services) {
    if (reply.all_gather_bytes_per_second() == 0) continue;
    view.Print(absl::StrFormat("%s: all_gather over %d ranks %s a rank, barrier %.2f ms", service, reply.ranks_size(),
                               Gigabits(reply.all_gather_bytes_per_second()), reply.barrier_seconds() * 1e3));
  }
  for (const LinkRate& link : facts.links) {
    const double first = link.first_bytes_seconds;
    view.Print(absl::StrCat(link.from_host, " -> ", link.to_host, ", ", link.kind, ": ",
                            Gigabits(link.bytes_per_second),
                            first > 0 ? absl::StrFormat(", the first bytes after %.2g ms", first * 1e3) : ""));
  }
  const std::vector<Finding> findings = FindProblems(config, facts);
  int fatal = 0;
  for (const Finding& finding : findings) {
    fatal += finding.fatal;
    view.Print(absl::StrCat(finding.fatal ? "error: " : "warning: ", Describe(finding)));
  }
  if (fatal > 0) {
    return absl::FailedPreconditionError(
        absl::StrCat(fatal, fatal == 1 ? " finding is" : " findings are", " in the way of the run; nothing was begun"));
  }
  view.Print(findings.empty() ? "checked: nothing is in the way" : "checked: the run can begin");
  return absl::OkStatus();
}

}  // namespace quartet
