#include "core/service/ranks/addresses/rendezvous.h"

#include <grpcpp/client_context.h>
#include <grpcpp/server_context.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "core/base/status_macros.h"
#include "core/base/time/deadline.h"
#include "core/service/rpc/call_deadline.h"
#include "core/service/rpc/status_conversion.h"

namespace quartet {
namespace {

// How often a waiting call looks whether it should give up.
constexpr absl::Duration kSlice = absl::Milliseconds(100);

// Waits in slices, so that `stopped` ends it soon, and counts those: while this process does not run no time passes.
template <typename Stopped>
absl::StatusOr<std::vector<std::string>> WaitInSlices(KeyValueStore* store, const std::vector<std::string>& keys,
                                                      absl::Duration timeout, Stopped stopped) {
  for (absl::Duration left = timeout;; left -= kSlice) {
    absl::StatusOr<std::vector<std::string>> values = store->Wait(keys, std::min(left, kSlice));
    if (values.ok() || values.status().code() != absl::StatusCode::kDeadlineExceeded || left <= kSlice) return values;
    if (stopped()) {
      return absl::CancelledError(absl::StrCat("stopped while waiting for ", absl::StrJoin(keys, ", ")));
    }
  }
}

class RemoteStore final : public KeyValueStore {
 public:
  explicit RemoteStore(std::shared_ptr<grpc::Channel> channel) : stub_(Rendezvous::NewStub(std::move(channel))) {}

  absl::Status Set(const std::string& key, const std::string& value) override {
    RendezvousSetRequest request;
    request.set_key(key);
    request.set_value(value);
    return Store(request).status();
  }

  absl::StatusOr<std::string> CompareSet(const std::string& key, const std::string& expected,
                                         const std::string& desired) override {
    RendezvousSetRequest request;
    request.set_key(key);
    request.set_value(desired);
    request.set_expected(expected);
    return Store(request);
  }

  absl::StatusOr<std::vector<std::string>> Wait(const std::vector<std::string>& keys, absl::Duration timeout) override {
    timeout = std::max(timeout, absl::ZeroDuration());
    RendezvousWaitRequest request;
    for (const std::string& key : keys) request.add_keys(key);
    request.set_timeout_ms(absl::ToInt64Milliseconds(timeout));
    RendezvousWaitReply reply;
    grpc::ClientContext context;
    // Longer than the server's own: its error names the keys.
    SetDeadline(&context, Deadline::In(timeout + absl::Seconds(10)));
    QUARTET_RETURN_IF_ERROR(FromGrpc(stub_->Wait(&context, request, &reply)));
    if (reply.values_size() != static_cast<int>(keys.size())) {
      return absl::InternalError(absl::StrCat("asked for ", keys.size(), " values, received ", reply.values_size()));
    }
    return std::vector<std::string>(reply.values().begin(), reply.values().end());
  }

  absl::StatusOr<int64_t> Add(const std::string& key, int64_t amount) override {
    RendezvousAddRequest request;
    request.set_key(key);
    request.set_amount(amount);
    RendezvousAddReply reply;
    grpc::ClientContext context;
    SetDeadline(&context, Deadline::In(kCallTimeout));
    QUARTET_RETURN_IF_ERROR(FromGrpc(stub_->Add(&context, request, &reply)));
    return reply.sum();
  }

  absl::StatusOr<bool> Delete(const std::string& key) override {
    RendezvousDeleteRequest request;
    request.set_key(key);
    RendezvousDeleteReply reply;
    grpc::ClientContext context;
    SetDeadline(&context, Deadline::In(kCallTimeout));
    QUARTET_RETURN_IF_ERROR(FromGrpc(stub_->Delete(&context, request, &reply)));
    return reply.deleted();
  }

 private:
  static constexpr absl::Duration kCallTimeout = absl::Seconds(30);

  absl::StatusOr<std::string> Store(const RendezvousSetRequest& request) {
    RendezvousSetReply reply;
    grpc::ClientContext context;
    SetDeadline(&context, Deadline::In(kCallTimeout));
    QUARTET_RETURN_IF_ERROR(FromGrpc(stub_->Set(&context, request, &reply)));
    return reply.value();
  }

  const std::unique_ptr<Rendezvous::Stub> stub_;
};

}  // namespace

void GatedStore::Open(KeyValueStore* store) {
  std::lock_guard<std::mutex> lock(mutex_);
  store_ = store;
}

void GatedStore::Close() {
  std::lock_guard<std::mutex> lock(mutex_);
  closed_ = true;
}

absl::StatusOr<KeyValueStore*> GatedStore::store() const {
  std::lock_guard<std::mutex> lock(mutex_);
  if (closed_) return absl::CancelledError("this rank is stopping");
  if (store_ == nullptr) {
    return absl::FailedPreconditionError(
        "the ranks do not know each other yet: the store can be used from RankService::Load on");
  }
  return store_;
}

absl::Status GatedStore::Set(const std::string& key, const std::string& value) {
  QUARTET_ASSIGN_OR_RETURN(KeyValueStore * store, this->store());
  return store->Set(key, value);
}

absl::StatusOr<std::string> GatedStore::CompareSet(const std::string& key, const std::string& expected,
                                                   const std::string& desired) {
  QUARTET_ASSIGN_OR_RETURN(KeyValueStore * store, this->store());
  return store->CompareSet(key, expected, desired);
}

absl::StatusOr<std::vector<std::string>> GatedStore::Wait(const std::vector<std::string>& keys,
                                                          absl::Duration timeout) {
  QUARTET_ASSIGN_OR_RETURN(KeyValueStore * store, this->store());
  auto values = WaitInSlices(store, keys, timeout, [this] {
    std::lock_guard<std::mutex> lock(mutex_);
    return closed_;
  });
  if (!absl::IsDeadlineExceeded(values.status())) return values;
  return absl::DeadlineExceededError(
      absl::StrCat(values.status().message(), " within ", absl::FormatDuration(timeout)));
}

absl::StatusOr<int64_t> GatedStore::Add(const std::string& key, int64_t amount) {
  QUARTET_ASSIGN_OR_RETURN(KeyValueStore * store, this->store());
  return store->Add(key, amount);
}

absl::StatusOr<bool> GatedStore::Delete(const std::string& key) {
  QUARTET_ASSIGN_OR_RETURN(KeyValueStore * store, this->store());
  return store->Delete(key);
}

grpc::Status RendezvousService::Set(grpc::ServerContext*, const RendezvousSetRequest* request,
                                    RendezvousSetReply* reply) {
  return ToGrpc([&]() -> absl::Status {
    if (!request->has_expected()) {
      reply->set_value(request->value());
      return store_->Set(request->key(), request->value());
    }
    QUARTET_ASSIGN_OR_RETURN(*reply->mutable_value(),
                             store_->CompareSet(request->key(), request->expected(), request->value()));
    return absl::OkStatus();
  });
}

grpc::Status RendezvousService::Wait(grpc::ServerContext* context, const RendezvousWaitRequest* request,
                                     RendezvousWaitReply* reply) {
  return ToGrpc([&]() -> absl::Status {
    QUARTET_ASSIGN_OR_RETURN(const std::vector<std::string> values,
                             WaitInSlices(store_, {request->keys().begin(), request->keys().end()},
                                          absl::Milliseconds(std::max<int64_t>(request->timeout_ms(), 0)),
                                          [context] { return context->IsCancelled(); }));
    reply->mutable_values()->Add(values.begin(), values.end());
    return absl::OkStatus();
  });
}

grpc::Status RendezvousService::Add(grpc::ServerContext*, const RendezvousAddRequest* request,
                                    RendezvousAddReply* reply) {
  return ToGrpc([&]() -> absl::Status {
    QUARTET_ASSIGN_OR_RETURN(const int64_t sum, store_->Add(request->key(), request->amount()));
    reply->set_sum(sum);
    return absl::OkStatus();
  });
}

grpc::Status RendezvousService::Delete(grpc::ServerContext*, const RendezvousDeleteRequest* request,
                                       RendezvousDeleteReply* reply) {
  return ToGrpc([&]() -> absl::Status {
    QUARTET_ASSIGN_OR_RETURN(const bool deleted, store_->Delete(request->key()));
    reply->set_deleted(deleted);
    return absl::OkStatus();
  });
}

std::unique_ptr<KeyValueStore> MakeRemoteStore(std::shared_ptr<grpc::Channel> channel) {
  return std::make_unique<RemoteStore>(std::move(channel));
}

}  // namespace quartet
