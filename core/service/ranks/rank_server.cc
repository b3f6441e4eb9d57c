#include "core/service/ranks/rank_server.h"

#include <grpcpp/ext/proto_server_reflection_plugin.h>
#include <grpcpp/resource_quota.h>
#include <grpcpp/server.h>
#include <grpcpp/server_builder.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <fstream>
#include <future>
#include <mutex>
#include <set>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "core/base/files/files.h"
#include "core/base/logging.h"
#include "core/base/status_macros.h"
#include "core/base/time/deadline.h"
#include "core/comm/store/local_store.h"
#include "core/config/run_config.h"
#include "core/hardware/cores.h"
#include "core/http/page_server.h"
#include "core/network/address.h"
#include "core/prometheus/families.h"
#include "core/prometheus/gpu_figures.h"
#include "core/service/ranks/addresses/nccl_environment.h"
#include "core/service/ranks/addresses/port_reservation.h"
#include "core/service/ranks/addresses/rendezvous.h"
#include "core/service/ranks/call_metrics.h"
#include "core/service/ranks/group/rank_group.h"
#include "core/service/ranks/trace_service.h"
#include "core/service/rpc/batch_limits.h"
#include "core/service/rpc/call_deadline.h"
#include "core/service/rpc/credentials.h"
#include "core/service/rpc/health_service.h"
#include "core/service/rpc/local_listener.h"
#include "core/service/rpc/message_size.h"

namespace quartet {
namespace {

constexpr absl::Duration kPoll = absl::Milliseconds(50);
// How long calls that have been told to end may take to say so to their clients, and this rank to say so to others.
constexpr absl::Duration kLastWords = absl::Milliseconds(500);

class RankServerImpl final : public RankServer {
 public:
  explicit RankServerImpl(RankServerOptions options) : options_(std::move(options)) {}

  ~RankServerImpl() override { Shutdown(absl::ZeroDuration(), "it is not used any more"); }

  absl::Status Listen() {
    const RankEnvironment& place = options_.place;
    const ServicePlacement& placement = PlacementOf(options_.config, options_.service.service);
    QUARTET_RETURN_IF_ERROR(CheckListenAddress(options_.listen, options_.config.tls()));
    QUARTET_ASSIGN_OR_RETURN(const HostPort listen, ParseHostPort(options_.listen));
    QUARTET_ASSIGN_OR_RETURN(const PortReservation reservation,
                             Prefixed(absl::StrCat("services.", options_.service.service, ".listen (--listen)"),
                                      PortReservation::Make(listen)));
    HostPort advertised = reservation.address();
    if (!options_.advertised_host.empty()) advertised.host = options_.advertised_host;
    if (placement.device() == "cuda" && place.world_size > 1) {
      QUARTET_RETURN_IF_ERROR(PutNcclBehind(advertised.host));
    }
    // By this address it is reached by its other ranks, by rollouts that pull weights, and by who reads the address
    // file; clients that are told another may know it by another name.
    const bool reached_by_it =
        place.world_size > 1 || options_.service.service == "policy_trainer" || !options_.address_file.empty();
    QUARTET_ASSIGN_OR_RETURN(const std::shared_ptr<grpc::ServerCredentials> server_credentials,
                             MakeServerCredentials(options_.config.tls(), reached_by_it ? advertised.host : ""));
    QUARTET_ASSIGN_OR_RETURN(channel_credentials_, MakeChannelCredentials(options_.config.tls()));
    context_.service = options_.service.service;
    context_.rank = place.rank;
    context_.world_size = place.world_size;
    context_.local_rank = place.local_rank;
    context_.local_world_size = place.local_world_size;
    context_.host = advertised.host;
    context_.endpoint = advertised.ToString();
    context_.device = placement.device();
    context_.threads = ThreadsOfRank(placement.threads(), place.local_world_size);
    context_.collective_timeout = absl::Seconds(placement.collective_timeout_seconds());
    context_.device_memory_budget = placement.device_memory_budget();
    context_.host_memory_budget = placement.host_memory_budget();
    context_.collective_backend = placement.collective_backend();
    context_.configuration = ServiceFields(options_.config, context_.service);
    context_.store = &gate_;
    batch_limits_ =
        std::make_unique<BatchLimits>(absl::StrCat("services.", context_.service), placement.max_call_items(),
                                      placement.max_call_bytes(), placement.max_calls_bytes());
    context_.batch_limits = batch_limits_.get();

    group_ = RankGroup::Create(context_,
                               {.on_broken = [this](const absl::Status& s) { Broken(s); },
                                .on_lost = [this](const absl::Status& s) { OnLost(s); },
                                .on_leave = [this](const std::string& why) { OnLeave(why); }},
                               options_.service.heartbeat);
    trace_ = std::make_unique<TraceService>(context_, *group_);
    QUARTET_ASSIGN_OR_RETURN(service_, options_.service.create(options_.config, context_, *group_));

    static std::once_flag reflection;
    std::call_once(reflection, [] { grpc::reflection::InitProtoReflectionServerBuilderPlugin(); });
    grpc::ServerBuilder builder;
    if (options_.config.tls().ca_file().empty() && !options_.config.services().allow_other_users()) {
      QUARTET_ASSIGN_OR_RETURN(listener_, LocalListener::Listen(reservation.address(), reservation.needs_reuse_port()));
      listener_->AddTo(builder);
    } else {
      builder.AddListeningPort(reservation.address().ToString(), server_credentials);
    }
    builder.SetMaxReceiveMessageSize(kMaxMessageBytes);
    builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, reservation.needs_reuse_port() ? 1 : 0);
    builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS, 20'000);
    builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, 10'000);
    builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
    builder.AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS, 5'000);
    grpc::ResourceQuota quota(context_.service);
    quota.Resize(size_t{2} << 30);
    // Each rank's lane has one of the leader's, and another where the rank waits for the others.
    quota.SetMaxThreads(1024 + (place.rank == 0 ? 3 * place.world_size : 0));
    builder.SetResourceQuota(quota);
    std::vector<std::unique_ptr<grpc::experimental::ServerInterceptorFactoryInterface>> interceptors;
    interceptors.push_back(call_metrics_.Interceptor());
    builder.experimental().SetInterceptorCreators(std::move(interceptors));
    health_ = std::make_unique<HealthService>(std::set<std::string>{FullName()},
                                              [this] { return !unfit_ && service_->IsReady(); });
    builder.RegisterService(health_.get());
    builder.RegisterService(service_->grpc_service());
    builder.RegisterService(group_->service());
    builder.RegisterService(trace_.get());
    if (place.rank == 0) {
      local_store_ = MakeLocalStore();
      rendezvous_ = std::make_unique<RendezvousService>(local_store_.get());
      builder.RegisterService(rendezvous_.get());
    }
    server_ = builder.BuildAndStart();
    if (server_ == nullptr) {
      return absl::UnavailableError(
          absl::StrCat("cannot listen on ", reservation.address().ToString(),
                       ": the address is in use, or the TLS files do not fit together (the line above says which)"));
    }
    if (listener_ != nullptr) listener_->Start();
    if (place.rank == 0 && !placement.metrics_listen().empty()) {
      const MonitorConfig& monitor = options_.config.monitor();
      QUARTET_ASSIGN_OR_RETURN(
          metrics_, PageServer::Start({.section = "monitor",
                                       .listen_field = absl::StrCat("services.", context_.service, ".metrics_listen"),
                                       .listen = placement.metrics_listen(),
                                       .api_key_file = monitor.api_key_file(),
                                       .cert_file = monitor.cert_file(),
                                       .key_file = monitor.key_file(),
                                       .any_user = options_.config.services().allow_other_users()},
                                      {{"/metrics", [this] { return MetricsReply(Figures()); }}}));
      QUARTET_LOG(kInfo) << "figures for Prometheus: " << metrics_url();
    }
    if (place.rank == 0 && !options_.leader_file.empty()) {
      std::ofstream file(options_.leader_file);
      if (!(file << context_.endpoint << "\n" << std::flush)) {
        return absl::UnavailableError(absl::StrCat("cannot write ", options_.leader_file, ", which ranks meet by"));
      }
    }
    return absl::OkStatus();
  }

  absl::Status Serve() override {
    absl::Status status = MeetAndLoad();
    if (!status.ok() && !absl::IsCancelled(status)) broken_ = true;
    return status;
  }

  void Shutdown(absl::Duration grace, const std::string& why) override {
    {
      const std::lock_guard lock(stop_mutex_);
      stopping_ = true;
      stop_changed_.notify_all();
    }
    metrics_ = nullptr;
    if (health_ != nullptr) health_->Close();
    gate_.Close();
    if (group_ != nullptr) group_->Announce(why, broken_);
    if (server_ != nullptr) {
      const Deadline grace_end = Deadline::In(grace), end = Deadline::In(grace + kLastWords);
      if (listener_ != nullptr) listener_->Stop();
      const absl::Status status = absl::UnavailableError(absl::StrCat("the ", context_.service, " stops: ", why));
      call_metrics_.EndUnsent(status);
      // Takes no new calls from now on; returns once none is left, and no lane.
      std::thread shutdown([&] { server_->Shutdown(FromNow(grace + kLastWords)); });
      if (!call_metrics_.AwaitNone(grace_end) || !group_->AwaitCalls(grace_end)) {
        group_->EndCalls(status);
        service_->EndCalls(status);
        call_metrics_.AwaitNone(end);
      }
      service_->EndWork(end);
      group_->CloseLanes(Deadline::In(kLastWords));
      shutdown.join();
      if (!calls_ended_.exchange(true) && options_.on_calls_ended) options_.on_calls_ended();
    }
    if (group_ != nullptr) group_->Stop();
  }

  absl::Duration unwatched() const override {
    return context_.rank == 0 && health_ != nullptr ? health_->unwatched() : absl::ZeroDuration();
  }
  const RankContext& context() const override { return context_; }
  std::string metrics_url() const override { return metrics_ == nullptr ? "" : metrics_->url() + "/metrics"; }

 private:
  std::string Name() const { return absl::StrCat("rank ", context_.rank, " (", context_.endpoint, ")"); }

  // The service's full protobuf name, such as "quartet.Rollout": health clients may ask for it.
  std::string FullName() const {
    std::string name;
    bool upper = true;
    for (char c : context_.service) {
      if (c == '_') {
        upper = true;
      } else {
        name += upper ? static_cast<char>(c - 'a' + 'A') : c;
        upper = false;
      }
    }
    return "quartet." + name;
  }

  MetricFamilies Figures() {
    MetricFamilies families = call_metrics_.Collect();
    AddFigure(prometheus::MetricType::Gauge, "quartet_service_serving", "1 while the service takes calls.",
              {{"service", context_.service}}, health_->is_serving() ? 1 : 0, &families);
    AddFigure(prometheus::MetricType::Gauge, "quartet_service_ranks", "Processes that the service runs in.",
              {{"service", context_.service}}, context_.world_size, &families);
    service_->AddFigures(&families);
    AddGpuFigures(&families);
    AddProcessFigures(&families);
    return families;
  }

  void Broken(const absl::Status& status) {
    if (stopping_ || broken_.exchange(true)) return;
    unfit_ = true;
    group_->Announce(absl::StrCat(context_.rank == 0 ? "" : Name() + ": ", status.message()), /*broken=*/true);
    if (options_.on_broken) options_.on_broken(status);
  }

  void OnLost(const absl::Status& status) {
    unfit_ = true;
    if (!options_.leader_file.empty()) {
      std::unique_lock lock(stop_mutex_);
      stop_changed_.wait_for(lock, absl::ToChronoNanoseconds(options_.launcher_precedence),
                             [this] { return stopping_.load(); });
    }
    Broken(status);
  }

  void OnLeave(const std::string& why) {
    if (!stopping_ && options_.on_leave) options_.on_leave(why);
  }

  absl::StatusOr<std::string> FindLeader(const Deadline& deadline) {
    if (!options_.leader.empty()) return options_.leader;
    while (!stopping_) {
      absl::StatusOr<std::string> address = ReadFile(options_.leader_file);
      if (address.ok() && address->ends_with('\n')) return address->substr(0, address->size() - 1);
      if (deadline.passed()) {
        return absl::DeadlineExceededError("rank 0 did not start listening: its own messages say why");
      }
      absl::SleepFor(absl::Milliseconds(20));
    }
    return absl::CancelledError("stopped before rank 0 was found");
  }

  absl::Status MeetAndLoad() {
    QUARTET_RETURN_IF_ERROR(Meet());
    QUARTET_RETURN_IF_ERROR(LoadAll());
    health_->SetServing(true);
    QUARTET_LOG(kInfo) << "serving on " << context_.endpoint;
    if (context_.rank == 0 && !options_.address_file.empty()) {
      QUARTET_RETURN_IF_ERROR(AtomicWriteFile(options_.address_file, context_.endpoint));
    }
    return absl::OkStatus();
  }

  // All ranks know each other afterwards.
  absl::Status Meet() {
    const Deadline deadline = Deadline::In(options_.connect_timeout);
    std::shared_ptr<grpc::Channel> channel;
    if (context_.rank == 0) {
      gate_.Open(local_store_.get());
    } else {
      QUARTET_ASSIGN_OR_RETURN(const std::string leader, FindLeader(deadline));
      channel = MakeChannel(leader, channel_credentials_, 0, /*keepalive=*/false);  // the group has its own
      while (!channel->WaitForConnected(FromNow(kPoll))) {
        if (stopping_) return absl::CancelledError("stopped before rank 0 was reached");
        if (deadline.passed()) {
          return absl::UnavailableError(absl::StrCat("cannot reach rank 0 at ", leader, " within ",
                                                     absl::FormatDuration(options_.connect_timeout),
                                                     ": is it running, and do all ranks have the same services.",
                                                     context_.service, ".listen and tls settings?"));
        }
      }
      remote_store_ = MakeRemoteStore(channel);
      gate_.Open(remote_store_.get());
    }
    // The others wait for longer than rank 0, which alone knows who is missing.
    const absl::Duration more = context_.rank == 0 ? absl::ZeroDuration() : options_.connect_timeout / 10;
    return group_->Start(channel, std::max(deadline.left(), absl::Seconds(1)) + more);
  }

  // Loads on this rank's executor thread; the error of whichever rank fails first is the error of all.
  absl::Status LoadAll() {
    std::atomic<bool> done{false};
    absl::Status mine;
    std::thread loader([&] {
      mine = Prefixed(Name() + ": cannot load", group_->RunHere([this] { return service_->Load(); }));
      done = true;
      group_->ReportLoad(mine);
    });
    absl::Status all = group_->WaitUntilAllLoaded();
    // The load cannot be broken off. Another rank's error is reported at once: this rank may be in a collective that
    // will not end.
    if (!all.ok() && !done) Broken(all);
    loader.join();
    // Where another rank failed first, this rank's error may be only what followed from it.
    if (!mine.ok() && mine.message() != all.message()) QUARTET_LOG(kError) << std::string(mine.message());
    // What was wrong here is wrong, whoever says so first.
    if (absl::IsInvalidArgument(mine) || absl::IsNotFound(mine)) return absl::Status(mine.code(), all.message());
    return all;
  }

  const RankServerOptions options_;
  std::mutex stop_mutex_;
  std::condition_variable stop_changed_;  // with stopping_
  std::atomic<bool> stopping_{false};
  std::atomic<bool> broken_{false};
  std::atomic<bool> unfit_{false};  // NOT_SERVING for good
  std::atomic<bool> calls_ended_{false};
  std::shared_ptr<grpc::ChannelCredentials> channel_credentials_;
  // In the order in which each needs those before it.
  std::unique_ptr<KeyValueStore> local_store_;   // on rank 0
  std::unique_ptr<KeyValueStore> remote_store_;  // on others
  GatedStore gate_;
  std::unique_ptr<BatchLimits> batch_limits_;
  RankContext context_;
  std::unique_ptr<HealthService> health_;
  std::unique_ptr<RendezvousService> rendezvous_;
  std::unique_ptr<RankGroup> group_;
  std::unique_ptr<TraceService> trace_;
  std::unique_ptr<RankService> service_;
  std::unique_ptr<LocalListener> listener_;  // where other users of this host are kept out
  CallMetrics call_metrics_;
  std::unique_ptr<grpc::Server> server_;
  std::unique_ptr<PageServer> metrics_;  // of rank 0, where it is asked for
};

}  // namespace

absl::StatusOr<std::unique_ptr<RankServer>> RankServer::Create(RankServerOptions options) {
  auto server = std::make_unique<RankServerImpl>(std::move(options));
  QUARTET_RETURN_IF_ERROR(server->Listen());
  return server;
}

}  // namespace quartet
