// Reads a batch from a client's stream: a header that says how many items follow, then the items.
#pragma once

#include <cstdint>
#include <optional>
#include <type_traits>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace quartet {

// Requests are messages with a oneof of `header` (which has num_items) and `item`.
template <class Request>
using HeaderOf = std::decay_t<decltype(std::declval<const Request&>().header())>;
template <class Request>
using ItemOf = std::decay_t<decltype(std::declval<const Request&>().item())>;

// Reads until the client has ended its writes. INVALID_ARGUMENT where the first message is not the header, a second
// header comes, or the number of items is not num_items. A stream that breaks looks like one that ends early.
// `Reader` has bool Read(Request*), as grpc::ServerReader and grpc::ServerReaderWriter do.
template <class Request, class Reader>
absl::Status ReadBatch(Reader* reader, std::optional<HeaderOf<Request>>* header, std::vector<ItemOf<Request>>* items) {
  header->reset();
  items->clear();
  Request request;
  while (reader->Read(&request)) {
    if (request.has_header()) {
      if (header->has_value()) return absl::InvalidArgumentError("a second header on one stream");
      *header = std::move(*request.mutable_header());
    } else if (request.has_item()) {
      if (!header->has_value()) return absl::InvalidArgumentError("an item before the header");
      if (items->size() >= (*header)->num_items()) {
        return absl::InvalidArgumentError(
            absl::StrCat("more items than header.num_items (", (*header)->num_items(), ") says"));
      }
      items->push_back(std::move(*request.mutable_item()));
    } else {
      return absl::InvalidArgumentError(
          absl::StrCat("message ", items->size() + (header->has_value() ? 1 : 0), " is neither header nor item"));
    }
  }
  if (!header->has_value()) return absl::InvalidArgumentError("the stream ended before its header");
  if (items->size() != (*header)->num_items()) {
    return absl::InvalidArgumentError(
        absl::StrCat("header.num_items is ", (*header)->num_items(), " but ", items->size(), " items came"));
  }
  return absl::OkStatus();
}

}  // namespace quartet
