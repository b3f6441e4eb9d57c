#include "core/preflight/preflight_service.h"

#include <ATen/ops/zeros.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "core/base/status_macros.h"
#include "core/base/time/deadline.h"
#include "core/hardware/device.h"
#include "core/kernels/cpu/products/gemm.h"
#include "core/preflight/node_facts.h"
#include "core/preflight/preflight.grpc.pb.h"
#include "core/rank/rank_setup.h"
#include "core/service/ranks/addresses/host_address.h"
#include "core/service/ranks/addresses/nccl_environment.h"
#include "core/service/rpc/call_deadline.h"
#include "core/service/rpc/credentials.h"
#include "core/service/rpc/status_conversion.h"

namespace quartet {
namespace {

constexpr int kBarriers = 5;
constexpr int64_t kMaxBytes = int64_t{1} << 30;
constexpr size_t kChunk = 1 << 20;

using TimePoint = Deadline::Clock::time_point;

double Seconds(TimePoint begin, TimePoint end = Deadline::Clock::now()) {
  return std::chrono::duration<double>(end - begin).count();
}

// What a rank receives a second where all gather `bytes` together. Collective.
double GatherRate(ProcessGroup& group, at::Device device, int64_t bytes) {
  const int64_t part = std::max<int64_t>(1, bytes / 4 / group.size());
  const at::Tensor buffer = at::zeros({part * group.size()}, at::TensorOptions(device));
  const auto gather = [&] {
    group.AllGatherInPlace(buffer)->Wait();
    if (device.is_cuda()) c10::impl::VirtualGuardImpl(device.type()).synchronizeDevice(device.index());
  };
  gather();  // makes connections
  group.Barrier();
  const TimePoint begin = Deadline::Clock::now();
  gather();
  group.Barrier();
  return static_cast<double>(part * 4 * (group.size() - 1)) / Seconds(begin);
}

class PreflightService final : public RankService, public Preflight::Service {
 public:
  PreflightService(const RunConfig& config, const RankContext& context, RankGroup& group)
      : config_(config), context_(context), group_(group) {
    RegisterTyped<MeasureRequest, NodeFacts>(
        group, "Facts", RankGroup::Kind::kIndependent,
        [this](const MeasureRequest& request, NodeFacts* facts) { return Facts(request, facts); });
    RegisterTyped<RankMeasure, MeasureReply>(
        group, "Measure", RankGroup::Kind::kCollective,
        [this](const RankMeasure& request, MeasureReply* reply) { return Rates(request, reply); });
    RegisterTyped<PullFromRequest, PullFromReply>(
        group, "PullFrom", RankGroup::Kind::kIndependent,
        [this](const PullFromRequest& request, PullFromReply* reply) { return PullHere(request, reply); });
  }

  grpc::Service* grpc_service() override { return this; }

  absl::Status Load() override {
    QUARTET_ASSIGN_OR_RETURN(device_, EnterDeviceOf(context_));
    QUARTET_ASSIGN_OR_RETURN(world_, JoinRanks(context_, "preflight"));
    is_loaded_ = true;
    return absl::OkStatus();
  }

  grpc::Status Measure(grpc::ServerContext* context, const MeasureRequest* request, MeasureReply* reply) override {
    return ToGrpc([&] { return DoMeasure(*request, DeadlineOf(*context), reply); });
  }
  grpc::Status PullFrom(grpc::ServerContext* context, const PullFromRequest* request, PullFromReply* reply) override {
    return ToGrpc([&] { return DoPullFrom(*request, DeadlineOf(*context), reply); });
  }
  grpc::Status Pull(grpc::ServerContext* /*context*/, const PullRequest* request,
                    grpc::ServerWriter<PullChunk>* writer) override {
    return ToGrpc([&]() -> absl::Status {
      QUARTET_RETURN_IF_ERROR(CheckBytes(request->bytes()));
      PullChunk chunk;
      for (int64_t left = request->bytes(); left > 0; left -= static_cast<int64_t>(chunk.data().size())) {
        chunk.mutable_data()->resize(std::min<size_t>(kChunk, static_cast<size_t>(left)));
        if (!writer->Write(chunk)) break;
      }
      return absl::OkStatus();
    });
  }

 private:
  static absl::Status CheckBytes(int64_t bytes) {
    if (bytes >= 0 && bytes <= kMaxBytes) return absl::OkStatus();
    return absl::InvalidArgumentError(absl::StrCat("bytes is ", bytes, "; allowed: 0 to ", kMaxBytes));
  }

  absl::Status Facts(const MeasureRequest& request, NodeFacts* facts) const {
    *facts = ReadNodeFacts(config_.run_dir(), request.token_file());
    facts->set_interface(InterfaceOf(context_.host).value_or(""));
    if (device_.is_cuda() && context_.world_size > 1) {
      if (const char* said = std::getenv(kNcclInterface); said != nullptr) facts->set_nccl_socket_ifname(said);
    }
    if (device_.is_cuda()) {
      const DeviceMemory memory = ReadDeviceMemory(device_);
      facts->set_gpu_memory_bytes(memory.total);
      facts->set_gpu_memory_used_bytes(memory.others);
    } else {
      facts->set_cpu_kernels(std::string(CpuKernels()));
    }
    return absl::OkStatus();
  }

  absl::Status Rates(const RankMeasure& request, MeasureReply* reply) {
    if (world_->size() == 1) return absl::OkStatus();
    world_->Barrier();
    const TimePoint begin = Deadline::Clock::now();
    for (int i = 0; i < kBarriers; ++i) world_->Barrier();
    reply->set_barrier_seconds(Seconds(begin) / kBarriers);
    reply->set_all_gather_bytes_per_second(GatherRate(*world_, device_, request.bytes()));
    // One pair at a time: else two share a link.
    for (const PairRate& pair : request.pairs()) {
      if (context_.rank == pair.from_rank() || context_.rank == pair.to_rank()) {
        ProcessGroupOptions options = GroupOptions(
            context_, absl::StrCat("preflight_", request.call(), "_", pair.from_rank(), "_", pair.to_rank()));
        options.rank = context_.rank == pair.from_rank() ? 0 : 1;
        options.size = 2;
        options.rank_names = {pair.from_rank(), pair.to_rank()};
        QUARTET_ASSIGN_OR_RETURN(const std::unique_ptr<ProcessGroup> both, MakeProcessGroup(context_.store, options));
        PairRate* rate = reply->add_pairs();
        *rate = pair;
        rate->set_bytes_per_second(GatherRate(*both, device_, request.bytes()));
      }
      world_->Barrier();
    }
    return absl::OkStatus();
  }

  // The server answers before the ranks have met.
  absl::Status CheckLoaded() const {
    return is_loaded_ ? absl::OkStatus() : absl::UnavailableError("the ranks have not met yet");
  }

  absl::Status DoMeasure(const MeasureRequest& request, const Deadline& deadline, MeasureReply* reply) {
    QUARTET_RETURN_IF_ERROR(CheckLoaded());
    QUARTET_RETURN_IF_ERROR(CheckBytes(request.bytes()));
    QUARTET_ASSIGN_OR_RETURN(const std::vector<NodeFacts> facts,
                             RunOnAll<NodeFacts>(group_, "Facts", request, deadline));
    std::vector<int> first;  // rank of each host, in the order of the ranks
    std::map<std::string, int> hosts;
    for (int rank = 0; rank < static_cast<int>(facts.size()); ++rank) {
      RankCheck* check = reply->add_ranks();
      check->set_rank(rank);
      *check->mutable_node() = facts[rank];
      check->set_endpoint(context_.world_size == 1 ? context_.endpoint : group_.endpoints()[rank]);
      if (hosts.emplace(facts[rank].host(), rank).second) first.push_back(rank);
    }
    if (request.bytes() == 0 || facts.size() == 1) return absl::OkStatus();
    RankMeasure measure;
    measure.set_bytes(request.bytes());
    measure.set_call(++calls_);
    // A ring of two hosts is one pair.
    for (size_t i = 0; i + 1 < first.size() || (i + 1 == first.size() && i > 1); ++i) {
      PairRate* pair = measure.add_pairs();
      pair->set_from_rank(first[i]);
      pair->set_to_rank(first[(i + 1) % first.size()]);
    }
    QUARTET_ASSIGN_OR_RETURN(const std::vector<MeasureReply> rates,
                             RunOnAll<MeasureReply>(group_, "Measure", measure, deadline));
    reply->set_barrier_seconds(rates[0].barrier_seconds());
    reply->set_all_gather_bytes_per_second(rates[0].all_gather_bytes_per_second());
    for (int rank = 0; rank < static_cast<int>(rates.size()); ++rank) {
      for (const PairRate& pair : rates[rank].pairs()) {
        if (pair.from_rank() == rank) *reply->add_pairs() = pair;
      }
    }
    return absl::OkStatus();
  }

  absl::Status DoPullFrom(const PullFromRequest& request, const Deadline& deadline, PullFromReply* reply) {
    QUARTET_RETURN_IF_ERROR(CheckLoaded());
    QUARTET_RETURN_IF_ERROR(CheckBytes(request.bytes()));
    if (request.rank() < 0 || request.rank() >= context_.world_size) {
      return absl::InvalidArgumentError(
          absl::StrCat("rank is ", request.rank(), "; allowed: 0 to ", context_.world_size - 1));
    }
    QUARTET_ASSIGN_OR_RETURN(const std::vector<PullFromReply> replies,
                             RunOnAll<PullFromReply>(group_, "PullFrom", request, deadline));
    *reply = replies[request.rank()];
    return absl::OkStatus();
  }

  absl::Status PullHere(const PullFromRequest& request, PullFromReply* reply) const {
    if (request.rank() != context_.rank) return absl::OkStatus();
    QUARTET_ASSIGN_OR_RETURN(const auto credentials, MakeChannelCredentials(config_.tls()));
    const std::shared_ptr<grpc::Channel> channel = MakeChannel(request.endpoint(), credentials);
    grpc::ClientContext context;
    context.set_deadline(FromNow(absl::Minutes(1)));
    PullRequest pull;
    pull.set_bytes(request.bytes());
    const TimePoint begin = Deadline::Clock::now();
    const auto stream = Preflight::NewStub(channel)->Pull(&context, pull);
    PullChunk chunk;
    TimePoint first{};
    int64_t received = 0;
    while (stream->Read(&chunk)) {
      if (received == 0) first = Deadline::Clock::now();
      received += static_cast<int64_t>(chunk.data().size());
    }
    QUARTET_RETURN_IF_ERROR(FromGrpc(stream->Finish()));
    if (received != request.bytes()) {
      return absl::DataLossError(absl::StrCat(received, " bytes came of ", request.bytes()));
    }
    reply->set_seconds(Seconds(begin));
    reply->set_first_chunk_seconds(Seconds(begin, first));
    return absl::OkStatus();
  }

  const RunConfig config_;
  const RankContext& context_;
  RankGroup& group_;
  at::Device device_ = at::kCPU;
  std::unique_ptr<ProcessGroup> world_;
  std::atomic<bool> is_loaded_ = false;
  std::atomic<int64_t> calls_ = 0;
};

}  // namespace

absl::StatusOr<std::unique_ptr<RankService>> CreatePreflight(const RunConfig& config, const RankContext& context,
                                                             RankGroup& group) {
  return std::make_unique<PreflightService>(config, context, group);
}

}  // namespace quartet
