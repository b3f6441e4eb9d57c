// A call's part, or its answer, as messages of a lane.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "core/service/ranks/group/rank_group.h"
#include "core/service/rpc/message_size.h"

namespace quartet {

// The rest is for the message around an item.
inline constexpr size_t kMaxRankItemBytes = kMaxMessageBytes - 4096;

// Whether each has room in a message.
inline absl::Status CheckItems(const std::string& what, const std::vector<std::string>& items) {
  for (size_t i = 0; i < items.size(); ++i) {
    if (items[i].size() <= kMaxRankItemBytes) continue;
    return absl::InvalidArgumentError(absl::StrCat("item ", i, " ", what, " has ", items[i].size(), " bytes; at most ",
                                                   kMaxRankItemBytes, " fit into a message"));
  }
  return absl::OkStatus();
}

inline absl::Status CheckSizes(int rank, const RankInput& input) {
  if (input.header.size() > kMaxRankItemBytes) {
    return absl::InvalidArgumentError(absl::StrCat("the header for rank ", rank, " has ", input.header.size(),
                                                   " bytes; at most ", kMaxRankItemBytes, " fit into a message"));
  }
  return CheckItems(absl::StrCat("for rank ", rank), input.items);
}

// Gives `items` to `send` in messages of bounded size (an item that is larger has one to itself), LaneWork or
// LaneAnswer. The last, which may have none, has room for `rest` bytes more.
template <typename Part, typename Send>
void SendInParts(uint64_t call, std::vector<std::string> items, size_t rest, Send send) {
  constexpr size_t kPartBytes = size_t{1} << 20;
  Part part;
  size_t bytes = 0;
  const auto make_room = [&](size_t more) {
    if (part.items_size() > 0 && bytes + more > kPartBytes) {
      send(std::exchange(part, Part()));
      bytes = 0;
    }
    part.set_call(call);
    bytes += more;
  };
  for (std::string& item : items) {
    make_room(item.size());
    part.add_items(std::move(item));
  }
  make_room(rest);
  part.set_last(true);
  send(std::move(part));
}

}  // namespace quartet
