#include "core/service/rank_server.h"

#include <grpcpp/ext/proto_server_reflection_plugin.h>
#include <grpcpp/resource_quota.h>
#include <grpcpp/server.h>
#include <grpcpp/server_builder.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <filesystem>
#include <future>
#include <mutex>
#include <set>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "core/base/files.h"
#include "core/base/logging.h"
#include "core/base/status_macros.h"
#include "core/comm/local_store.h"
#include "core/config/run_config.h"
#include "core/service/address.h"
#include "core/service/credentials.h"
#include "core/service/health_service.h"
#include "core/service/port_reservation.h"
#include "core/service/rank_group.h"
#include "core/service/rendezvous.h"

namespace quartet {
namespace {

constexpr absl::Duration kPoll = absl::Milliseconds(50);
// How long calls that have been told to end may take to say so to their clients.
constexpr absl::Duration kLastWords = absl::Milliseconds(500);
// How long a rank that could not load stays, so that the others learn why.
constexpr absl::Duration kFarewell = absl::Seconds(2);
constexpr char kFailedKey[] = "rank_server/failed";
constexpr char kStoppedKey[] = "rank_server/stopped";

std::chrono::system_clock::time_point In(absl::Duration duration) {
  return std::chrono::system_clock::now() + absl::ToChronoMilliseconds(duration);
}

std::vector<std::string> KeyOfEach(const std::string& prefix, int world_size) {
  std::vector<std::string> keys;
  for (int r = 0; r < world_size; ++r) keys.push_back(absl::StrCat(prefix, r));
  return keys;
}

class RankServerImpl final : public RankServer {
 public:
  explicit RankServerImpl(RankServerOptions options) : options_(std::move(options)) {}

  ~RankServerImpl() override { Shutdown(absl::ZeroDuration(), "it is not used any more"); }

  absl::Status Listen() {
    const RankEnvironment& place = options_.place;
    const ServicePlacement& placement = PlacementOf(options_.config, options_.service.service);
    QUARTET_RETURN_IF_ERROR(CheckListenAddress(options_.listen, options_.config.tls()));
    QUARTET_ASSIGN_OR_RETURN(const HostPort listen, ParseHostPort(options_.listen));
    QUARTET_ASSIGN_OR_RETURN(const PortReservation reservation, PortReservation::Make(listen));
    QUARTET_ASSIGN_OR_RETURN(const std::shared_ptr<grpc::ServerCredentials> server_credentials,
                             MakeServerCredentials(options_.config.tls()));
    QUARTET_ASSIGN_OR_RETURN(channel_credentials_, MakeChannelCredentials(options_.config.tls()));

    HostPort advertised = reservation.address();
    if (!options_.advertised_host.empty()) advertised.host = options_.advertised_host;
    context_.service = options_.service.service;
    context_.rank = place.rank;
    context_.world_size = place.world_size;
    context_.local_rank = place.local_rank;
    context_.local_world_size = place.local_world_size;
    context_.host = advertised.host;
    context_.endpoint = advertised.ToString();
    context_.device = placement.device();
    const int cores = std::max(1u, std::thread::hardware_concurrency());
    context_.threads = placement.threads() > 0 ? placement.threads() : std::max(1, cores / place.local_world_size);
    context_.collective_timeout = absl::Seconds(placement.collective_timeout_seconds());
    context_.device_memory_budget = placement.device_memory_budget();
    context_.host_memory_budget = placement.host_memory_budget();
    context_.collective_backend = placement.collective_backend();
    context_.store = &gate_;

    group_ = RankGroup::Create(context_, channel_credentials_, [this](const absl::Status& s) { Broken(s); });
    QUARTET_ASSIGN_OR_RETURN(service_, options_.service.create(options_.config, context_, *group_));

    static std::once_flag reflection;
    std::call_once(reflection, [] { grpc::reflection::InitProtoReflectionServerBuilderPlugin(); });
    grpc::ServerBuilder builder;
    builder.AddListeningPort(reservation.address().ToString(), server_credentials);
    builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, reservation.needs_reuse_port() ? 1 : 0);
    builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS, 20'000);
    builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, 10'000);
    builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
    builder.AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS, 5'000);
    grpc::ResourceQuota quota(context_.service);
    quota.Resize(size_t{2} << 30);
    quota.SetMaxThreads(1024);
    builder.SetResourceQuota(quota);
    health_ =
        std::make_unique<HealthService>(std::set<std::string>{FullName()}, [this] { return service_->IsReady(); });
    builder.RegisterService(health_.get());
    builder.RegisterService(service_->grpc_service());
    builder.RegisterService(group_->service());
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
    if (place.rank == 0 && !options_.leader_file.empty()) {
      QUARTET_RETURN_IF_ERROR(AtomicWriteFile(options_.leader_file, context_.endpoint));
    }
    return absl::OkStatus();
  }

  absl::Status Serve() override {
    QUARTET_RETURN_IF_ERROR(Meet());
    absl::Status loaded = LoadAll();
    if (!loaded.ok()) {
      Farewell();
      return loaded;
    }
    health_->SetServing(true);
    QUARTET_LOG(kInfo) << "serving on " << context_.endpoint;
    if (context_.rank == 0 && !options_.address_file.empty()) {
      QUARTET_RETURN_IF_ERROR(AtomicWriteFile(options_.address_file, context_.endpoint));
    }
    return absl::OkStatus();
  }

  void Shutdown(absl::Duration grace, const std::string& why) override {
    stopping_ = true;
    if (health_ != nullptr) health_->Close();
    if (local_store_ != nullptr) (void)local_store_->Set(kStoppedKey, "1");
    gate_.Close();
    {
      std::lock_guard<std::mutex> lock(watch_mutex_);
      if (watch_context_ != nullptr) watch_context_->TryCancel();
    }
    if (server_ != nullptr) {
      std::promise<void> ended;
      std::thread last_words([&] {
        if (ended.get_future().wait_for(absl::ToChronoMilliseconds(grace)) == std::future_status::ready) return;
        const absl::Status status = absl::UnavailableError(absl::StrCat("the ", context_.service, " stops: ", why));
        group_->EndCalls(status);
        service_->EndCalls(status);
      });
      server_->Shutdown(In(grace + kLastWords));  // returns as soon as no call is left
      ended.set_value();
      last_words.join();
      if (!calls_ended_.exchange(true) && options_.on_calls_ended) options_.on_calls_ended();
    }
    if (group_ != nullptr) group_->Stop();
    std::lock_guard<std::mutex> lock(shutdown_mutex_);
    if (watch_.joinable()) watch_.join();
  }

  const RankContext& context() const override { return context_; }

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

  void Broken(const absl::Status& status) {
    if (stopping_ || broken_.exchange(true)) return;
    if (options_.on_broken) options_.on_broken(status);
  }

  absl::StatusOr<std::string> FindLeader(absl::Time deadline) {
    if (!options_.leader.empty()) return options_.leader;
    while (!stopping_) {
      absl::StatusOr<std::string> address = ReadFile(options_.leader_file);
      if (address.ok()) return address;
      if (absl::Now() > deadline) {
        return absl::DeadlineExceededError("rank 0 did not start listening: its own messages say why");
      }
      absl::SleepFor(absl::Milliseconds(20));
    }
    return absl::CancelledError("stopped before rank 0 was found");
  }

  // All ranks know each other afterwards.
  absl::Status Meet() {
    const absl::Time deadline = absl::Now() + options_.connect_timeout;
    if (context_.rank == 0) {
      gate_.Open(local_store_.get());
    } else {
      QUARTET_ASSIGN_OR_RETURN(const std::string leader, FindLeader(deadline));
      std::shared_ptr<grpc::Channel> channel = MakeChannel(leader, channel_credentials_);
      while (!channel->WaitForConnected(In(kPoll))) {
        if (stopping_) return absl::CancelledError("stopped before rank 0 was reached");
        if (absl::Now() > deadline) {
          return absl::UnavailableError(absl::StrCat("cannot reach rank 0 at ", leader, " within ",
                                                     absl::FormatDuration(options_.connect_timeout),
                                                     ": is it running, and do all ranks have the same services.",
                                                     context_.service, ".listen and tls settings?"));
        }
      }
      remote_store_ = MakeRemoteStore(channel);
      gate_.Open(remote_store_.get());
      StartWatch(leader, channel);
    }
    QUARTET_RETURN_IF_ERROR(group_->Start(std::max(deadline - absl::Now(), absl::Seconds(1))));
    if (context_.rank == 0 && !options_.leader_file.empty()) {
      // All have read it. The folder is the launcher's, made for this file; it goes too, should the launcher be killed.
      std::error_code ignored;
      std::filesystem::remove(options_.leader_file, ignored);
      std::filesystem::remove(std::filesystem::path(options_.leader_file).parent_path(), ignored);
    }
    return absl::OkStatus();
  }

  // A call that lasts as long as rank 0 does.
  void StartWatch(const std::string& leader, const std::shared_ptr<grpc::Channel>& channel) {
    std::lock_guard<std::mutex> lock(watch_mutex_);
    if (stopping_) return;
    watch_context_ = std::make_unique<grpc::ClientContext>();
    watch_ = std::thread([this, leader, stub = std::shared_ptr<Rendezvous::Stub>(Rendezvous::NewStub(channel))] {
      RendezvousWaitRequest request;
      request.add_keys(kStoppedKey);
      request.set_timeout_ms(absl::ToInt64Milliseconds(absl::Hours(24 * 365)));
      RendezvousWaitReply reply;
      const grpc::Status status = stub->Wait(watch_context_.get(), request, &reply);
      if (status.error_code() == grpc::StatusCode::UNAVAILABLE) {
        Broken(absl::UnavailableError(absl::StrCat("rank 0 (", leader, ") is gone: ", status.error_message())));
      }
    });
  }

  // Loads on this rank's executor thread; the error of whichever rank fails first is the error of all.
  absl::Status LoadAll() {
    std::atomic<bool> done{false};
    absl::Status mine;
    std::thread loader([&] {
      mine = group_->RunHere([this] { return service_->Load(); });
      done = true;
    });
    absl::Status others;
    while (!done && others.ok() && !stopping_) others = FailureOfAnother(kPoll);
    // The load cannot be broken off. Another rank's error is reported at once: this rank may be in a collective that
    // will not end.
    if (!others.ok()) {
      Announce(others);
      Broken(others);
    }
    loader.join();
    if (!others.ok()) return others;
    if (!mine.ok()) {
      absl::Status named(mine.code(), absl::StrCat(Name(), ": cannot load: ", std::string(mine.message())));
      // Where another rank failed first, this rank's error may be only what followed from it.
      absl::StatusOr<std::string> first = gate_.CompareSet(kFailedKey, "", std::string(named.message()));
      if (first.ok() && !first->empty() && *first != named.message()) {
        QUARTET_LOG(kError) << std::string(named.message());
        Announce(absl::AbortedError(*first));
        return absl::AbortedError(*first);
      }
      Announce(named);
      return named;
    }
    QUARTET_RETURN_IF_ERROR(gate_.Set(absl::StrCat("rank_server/loaded/", context_.rank), "1"));
    const std::vector<std::string> loaded = KeyOfEach("rank_server/loaded/", context_.world_size);
    for (;;) {
      absl::Status all = gate_.Wait(loaded, kPoll).status();
      if (all.ok()) return all;
      if (all.code() != absl::StatusCode::kDeadlineExceeded) return all;
      others = FailureOfAnother(absl::ZeroDuration());
      if (!others.ok()) {
        Announce(others);
        return others;
      }
    }
  }

  absl::Status FailureOfAnother(absl::Duration timeout) {
    absl::StatusOr<std::vector<std::string>> failed = gate_.Wait({kFailedKey}, timeout);
    if (failed.ok()) return absl::AbortedError(failed->front());
    // The store's own failure is for the watch to tell.
    if (failed.status().code() != absl::StatusCode::kDeadlineExceeded) absl::SleepFor(absl::Milliseconds(20));
    return absl::OkStatus();
  }

  void Announce(const absl::Status& status) {
    QUARTET_LOG(kError) << std::string(status.message());
    (void)gate_.Set(absl::StrCat("rank_server/left/", context_.rank), "1");
  }

  // Gives the other ranks a moment to learn the cause before this one, and the store with it, goes.
  void Farewell() {
    if (stopping_) return;
    (void)gate_.Wait(KeyOfEach("rank_server/left/", context_.world_size), kFarewell);
  }

  const RankServerOptions options_;
  std::atomic<bool> stopping_{false};
  std::atomic<bool> broken_{false};
  std::atomic<bool> calls_ended_{false};
  std::shared_ptr<grpc::ChannelCredentials> channel_credentials_;
  // In the order in which each needs those before it.
  std::unique_ptr<KeyValueStore> local_store_;   // on rank 0
  std::unique_ptr<KeyValueStore> remote_store_;  // on others
  GatedStore gate_;
  RankContext context_;
  std::unique_ptr<HealthService> health_;
  std::unique_ptr<RendezvousService> rendezvous_;
  std::unique_ptr<RankGroup> group_;
  std::unique_ptr<RankService> service_;
  std::unique_ptr<grpc::Server> server_;
  std::mutex watch_mutex_;
  std::unique_ptr<grpc::ClientContext> watch_context_;  // guarded by watch_mutex_
  std::thread watch_;
  std::mutex shutdown_mutex_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<RankServer>> RankServer::Create(RankServerOptions options) {
  auto server = std::make_unique<RankServerImpl>(std::move(options));
  QUARTET_RETURN_IF_ERROR(server->Listen());
  return server;
}

}  // namespace quartet
