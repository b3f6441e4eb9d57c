// The key-value store through which ranks find each other: kept in rank 0's memory, served over gRPC to the others.
#pragma once

#include <grpcpp/channel.h>

#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "core/comm/store/key_value_store.h"
#include "proto/rank.grpc.pb.h"

namespace quartet {

// What a service sees as its store: nothing until it is opened, another store then, and an end to all waiting once it
// is closed. Thread safe.
class GatedStore final : public KeyValueStore {
 public:
  // `store` must outlive this object.
  void Open(KeyValueStore* store);
  // Ends every call, now and later, with CANCELLED (a waiting one within 0.1 s).
  void Close();

  absl::Status Set(const std::string& key, const std::string& value) override;
  absl::StatusOr<std::string> CompareSet(const std::string& key, const std::string& expected,
                                         const std::string& desired) override;
  absl::StatusOr<std::vector<std::string>> Wait(const std::vector<std::string>& keys, absl::Duration timeout) override;
  absl::StatusOr<int64_t> Add(const std::string& key, int64_t amount) override;
  absl::StatusOr<bool> Delete(const std::string& key) override;

 private:
  absl::StatusOr<KeyValueStore*> store() const;

  mutable std::mutex mutex_;
  KeyValueStore* store_ = nullptr;
  bool closed_ = false;
};

// Serves `store`, which must outlive it.
class RendezvousService final : public Rendezvous::Service {
 public:
  explicit RendezvousService(KeyValueStore* store) : store_(store) {}
  grpc::Status Set(grpc::ServerContext* context, const RendezvousSetRequest* request,
                   RendezvousSetReply* reply) override;
  grpc::Status Wait(grpc::ServerContext* context, const RendezvousWaitRequest* request,
                    RendezvousWaitReply* reply) override;
  grpc::Status Add(grpc::ServerContext* context, const RendezvousAddRequest* request,
                   RendezvousAddReply* reply) override;
  grpc::Status Delete(grpc::ServerContext* context, const RendezvousDeleteRequest* request,
                      RendezvousDeleteReply* reply) override;

 private:
  KeyValueStore* const store_;
};

// The store at the other end of `channel`. Calls other than Wait have a deadline of 30 s.
std::unique_ptr<KeyValueStore> MakeRemoteStore(std::shared_ptr<grpc::Channel> channel);

}  // namespace quartet
