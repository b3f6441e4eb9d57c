// Reads a batch from a client's stream: a header that says how many items follow, then the items.
#pragma once

#include <cstdint>
#include <type_traits>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "core/base/byte_budget.h"
#include "core/service/rpc/batch_limits.h"

namespace quartet {

// Requests are messages with a oneof of `header` (which has num_items) and `item`.
template <class Request>
using HeaderOf = std::decay_t<decltype(std::declval<const Request&>().header())>;
template <class Request>
using ItemOf = std::decay_t<decltype(std::declval<const Request&>().item())>;

template <class Request>
struct Batch {
  HeaderOf<Request> header;
  std::vector<ItemOf<Request>> items;
  ByteBudget::Share share;  // for as long as the items are there
};

// Puts a batch together, message by message. INVALID_ARGUMENT where the first message is not the header, a second
// header comes, or the number of items is not num_items; else as BatchLimits says.
template <class Request>
class BatchReader {
 public:
  // `limits` outlives the batch.
  explicit BatchReader(BatchLimits* limits) : limits_(*limits) { batch_.share = limits->NewShare(); }

  // Takes the next message, which may be used again.
  absl::Status Take(Request* request) {
    if (request->has_header()) {
      if (has_header_) return absl::InvalidArgumentError("a second header on one stream");
      has_header_ = true;
      batch_.header = std::move(*request->mutable_header());
      return limits_.CheckItems(batch_.header.num_items());
    }
    if (!request->has_item()) {
      return absl::InvalidArgumentError(
          absl::StrCat("message ", batch_.items.size() + (has_header_ ? 1 : 0), " is neither header nor item"));
    }
    if (!has_header_) return absl::InvalidArgumentError("an item before the header");
    if (batch_.items.size() >= batch_.header.num_items()) {
      return absl::InvalidArgumentError(
          absl::StrCat("more items than header.num_items (", batch_.header.num_items(), ") says"));
    }
    if (absl::Status s = limits_.Grow(&batch_.share, static_cast<int64_t>(request->item().SpaceUsedLong())); !s.ok()) {
      return s;
    }
    batch_.items.push_back(std::move(*request->mutable_item()));
    return absl::OkStatus();
  }

  // Those that have come.
  std::vector<ItemOf<Request>>& items() { return batch_.items; }

  // The client has ended its writes; a stream that breaks looks the same. Once.
  absl::StatusOr<Batch<Request>> End() {
    if (!has_header_) return absl::InvalidArgumentError("the stream ended before its header");
    if (batch_.items.size() != batch_.header.num_items()) {
      return absl::InvalidArgumentError(
          absl::StrCat("header.num_items is ", batch_.header.num_items(), " but ", batch_.items.size(), " items came"));
    }
    return std::move(batch_);
  }

 private:
  const BatchLimits& limits_;
  Batch<Request> batch_;
  bool has_header_ = false;
};

// Reads until the client has ended its writes, or an error. `Reader` has bool Read(Request*), as grpc::ServerReader and
// grpc::ServerReaderWriter do.
template <class Request, class Reader>
absl::StatusOr<Batch<Request>> ReadBatch(Reader* reader, BatchLimits* limits) {
  BatchReader<Request> batch(limits);
  Request request;
  while (reader->Read(&request)) {
    if (absl::Status s = batch.Take(&request); !s.ok()) return s;
  }
  return batch.End();
}

}  // namespace quartet
