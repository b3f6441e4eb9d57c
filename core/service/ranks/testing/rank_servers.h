// A service's ranks with their real servers, as parts of this process.
#pragma once

#include <gtest/gtest.h>

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "core/comm/agreed_error.h"
#include "core/config/run_config.h"
#include "core/service/ranks/rank_server.h"
#include "proto/rollout.grpc.pb.h"

namespace quartet {

// Records in which order each rank ran its calls.
struct Journal {
  std::atomic<int> slept = 0;  // calls that take their time have begun
  std::atomic<bool> released = false;
  std::atomic<int> ended = 0;  // lanes of the leader
  std::atomic<int> read = 0;   // messages of clients
  std::mutex mutex;
  std::vector<std::vector<std::string>> by_rank;
  std::function<void(int rank)> on_write;  // set before calls; from any thread
  void Write(int rank, const std::string& entry) {
    if (on_write) on_write(rank);
    std::lock_guard<std::mutex> lock(mutex);
    by_rank[rank].push_back(entry);
  }
  std::vector<std::string> Of(int rank) {
    std::lock_guard<std::mutex> lock(mutex);
    return by_rank[rank];
  }
};

// Reads what a client sends, to its end.
class FakeRollout : public Rollout::Service {
 public:
  explicit FakeRollout(Journal* journal) : journal_(journal) {}
  grpc::Status Generate(grpc::ServerContext*,
                        grpc::ServerReaderWriter<GenerateReply, GenerateRequest>* stream) override {
    GenerateRequest request;
    while (stream->Read(&request)) ++journal_->read;
    return grpc::Status(grpc::StatusCode::INVALID_ARGUMENT, "the batch is not whole");
  }

 private:
  Journal* const journal_;
};

class FakeService : public RankService {
 public:
  FakeService(const RankContext& context, RankGroup& group, Journal* journal, absl::Status load,
              const std::atomic<bool>* is_ready)
      : context_(context), load_(std::move(load)), is_ready_(is_ready), service_(journal) {
    const int rank = context.rank;
    group.Register("beside", RankGroup::Kind::kConcurrent, [](const RankInput&) { return RankOutput(); });
    // The last rank does not end.
    group.Register("beside_hang", RankGroup::Kind::kConcurrent,
                   [journal, last = rank == context.world_size - 1](const RankInput&) {
                     journal->slept += last;
                     while (last && !journal->released) absl::SleepFor(absl::Milliseconds(5));
                     return RankOutput();
                   });
    // Followers answer; the leader writes down what.
    group.OnEvents(
        {.on_event =
             [&group, rank, journal](int from, const std::string& event) {
               if (!group.is_leader()) return group.SendEvent(from, absl::StrCat(rank, ":", event));
               journal->Write(0, event);
             },
         .on_end = [rank, journal](int from, const std::string&) { journal->ended += rank == 0 && from > 0; }});
    for (auto [name, kind] :
         {std::pair("echo", RankGroup::Kind::kCollective), std::pair("look", RankGroup::Kind::kIndependent)}) {
      group.Register(name, kind, [rank, journal](const RankInput& in) -> absl::StatusOr<RankOutput> {
        journal->Write(rank, in.header);
        RankOutput out;
        out.summary = absl::StrCat(rank, ":", in.header);
        out.items = in.items;
        return out;
      });
      group.Register(absl::StrCat(name, "_fail"), kind, [rank](const RankInput& in) -> absl::StatusOr<RankOutput> {
        if (in.header == "all") return absl::FailedPreconditionError("not now");
        if (in.header.starts_with("text:") && rank == 1) return absl::FailedPreconditionError(in.header);
        if (in.header == "all full") return absl::ResourceExhaustedError("no room");
        if (in.header == "agreed") {
          absl::Status error = absl::ResourceExhaustedError("no room, as all know");
          MarkAgreed(&error);
          return error;
        }
        if (in.header == "throw" && rank == 1) throw std::runtime_error("boom");
        if (in.header == "one" && rank == 1) return absl::FailedPreconditionError("not me");
        return RankOutput();
      });
      // The last rank takes its time.
      group.Register(absl::StrCat(name, "_sleep"), kind,
                     [rank, journal, last = rank == context.world_size - 1](const RankInput& in) {
                       if (last) {
                         ++journal->slept;
                         absl::SleepFor(absl::Milliseconds(700));
                       }
                       journal->Write(rank, in.header);
                       return RankOutput();
                     });
    }
    // The last rank does not come to it.
    group.Register("echo_hang", RankGroup::Kind::kCollective,
                   [journal, last = rank == context.world_size - 1](const RankInput&) {
                     while (last && !journal->released) absl::SleepFor(absl::Milliseconds(5));
                     return RankOutput();
                   });
  }
  grpc::Service* grpc_service() override { return &service_; }
  absl::Status Load() override {
    loaded_store_ = context_.store->Set(absl::StrCat("seen/", context_.rank), "1").ok();
    return loaded_store_ ? load_ : absl::InternalError("no store");
  }
  bool IsReady() const override { return *is_ready_; }

 private:
  const RankContext& context_;
  const absl::Status load_;
  const std::atomic<bool>* const is_ready_;
  bool loaded_store_ = false;
  FakeRollout service_;
};

// A group of ranks that are parts of this process.
class Group {
 public:
  explicit Group(int world_size, std::vector<absl::Status> loads = {}, int collective_timeout_seconds = 300)
      : Group(world_size, world_size, std::move(loads), collective_timeout_seconds) {
    Serve();
  }
  // The first of the ranks listen, and do not serve yet. `change` what they are started with.
  Group(
      int world_size, int listening, std::vector<absl::Status> loads = {}, int collective_timeout_seconds = 300,
      const std::function<void(RankServerOptions*)>& change = [](RankServerOptions*) {})
      : groups(world_size), statuses(world_size) {
    journal.by_rank.resize(world_size);
    loads.resize(world_size);
    RunConfig config;
    config.mutable_services()->mutable_rollout()->set_collective_timeout_seconds(collective_timeout_seconds);
    config.mutable_services()->mutable_rollout()->set_metrics_listen("127.0.0.1:0");
    EXPECT_TRUE(ResolveRunConfig(&config, "/").ok());
    for (int r = 0; r < listening; ++r) {
      RankServerOptions options;
      options.service.service = "rollout";
      options.service.create = [this, r, load = loads[r]](
                                   const RunConfig&, const RankContext& context,
                                   RankGroup& group) -> absl::StatusOr<std::unique_ptr<RankService>> {
        groups[r] = &group;
        EXPECT_EQ(context.store->Set("x", "y").code(), absl::StatusCode::kFailedPrecondition);
        return std::make_unique<FakeService>(context, group, &journal, load, &is_ready);
      };
      options.config = config;
      options.place = {r, world_size, r, world_size};
      options.listen = "127.0.0.1:0";
      if (r > 0) options.leader = servers[0]->context().endpoint;
      options.on_broken = [this, r](const absl::Status& s) {
        std::lock_guard<std::mutex> lock(mutex);
        broken[r] = std::string(s.message());
      };
      options.on_leave = [this, r](const std::string& why) {
        std::lock_guard<std::mutex> lock(mutex);
        left[r] = why;
      };
      change(&options);
      servers.push_back(RankServer::Create(std::move(options)).value());
    }
  }
  void Serve() {
    std::vector<std::thread> threads;
    for (size_t r = 0; r < servers.size(); ++r) threads.emplace_back([this, r] { statuses[r] = servers[r]->Serve(); });
    for (std::thread& t : threads) t.join();
  }
  ~Group() {
    journal.released = true;
    // All at once, as where a launcher ends them.
    std::vector<std::thread> threads;
    for (auto& server : servers) {
      threads.emplace_back([&server] { server->Shutdown(absl::ZeroDuration(), "the test ends"); });
    }
    for (std::thread& t : threads) t.join();
  }

  absl::StatusOr<std::vector<RankOutput>> Run(const std::string& method, const std::string& header,
                                              absl::Duration timeout = absl::Seconds(60)) {
    std::vector<RankInput> inputs(groups.size());
    for (size_t r = 0; r < inputs.size(); ++r) {
      inputs[r].header = header;
      inputs[r].items.assign(r, absl::StrCat("item of ", r));
    }
    return groups[0]->Run(method, std::move(inputs), Deadline::In(timeout));
  }

  // By rank: why it was called broken, or told that another leaves.
  std::map<int, std::string> Broken() {
    std::lock_guard<std::mutex> lock(mutex);
    return broken;
  }
  std::map<int, std::string> Left() {
    std::lock_guard<std::mutex> lock(mutex);
    return left;
  }
  // Until all ranks are broken.
  std::map<int, std::string> AllBroken() {
    for (int i = 0; i < 3000 && Broken().size() < groups.size(); ++i) absl::SleepFor(absl::Milliseconds(10));
    return Broken();
  }

  Journal journal;
  std::atomic<bool> is_ready = true;
  std::vector<RankGroup*> groups;
  std::vector<absl::Status> statuses;
  std::mutex mutex;
  std::map<int, std::string> broken, left;
  std::vector<std::unique_ptr<RankServer>> servers;
};

inline bool Contains(const absl::Status& status, const std::string& word) {
  return std::string(status.message()).find(word) != std::string::npos;
}

}  // namespace quartet
