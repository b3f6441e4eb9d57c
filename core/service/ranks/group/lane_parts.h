// A call's part, or its answer, as messages of a lane.
#pragma once

#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "core/service/rpc/message_size.h"
#include "proto/rank.pb.h"

namespace quartet {

// The rest is for the message around an item.
inline constexpr size_t kMaxRankItemBytes = kMaxMessageBytes - 4096;

// Whether each has room in a message. `of`: "for rank 1".
inline absl::Status CheckSizes(const std::string& of, const std::string& head, const std::vector<std::string>& items) {
  const auto check = [&](const std::string& what, const std::string& bytes) {
    if (bytes.size() <= kMaxRankItemBytes) return absl::OkStatus();
    return absl::InvalidArgumentError(absl::StrCat(what, " ", of, " has ", bytes.size(), " bytes; at most ",
                                                   kMaxRankItemBytes, " fit into a message"));
  };
  absl::Status fits = check("the header", head);
  for (size_t i = 0; i < items.size(); ++i) fits.Update(check(absl::StrCat("item ", i), items[i]));
  return fits;
}

// Gives `items` to `send` in messages of bounded size (an item that is larger has one to itself), the last of which is
// `last` with what is left of them. `of`: &RankMessage::mutable_work or that of an answer.
template <typename Send>
void SendInParts(LanePart last, std::vector<std::string> items, LanePart* (RankMessage::*of)(), Send send) {
  constexpr size_t kPartBytes = size_t{1} << 20;
  const auto send_part = [&](LanePart part) {
    RankMessage message;
    *(message.*of)() = std::move(part);
    send(std::move(message));
  };
  LanePart part;
  size_t bytes = 0;
  const auto make_room = [&](size_t more) {
    if (part.items_size() > 0 && bytes + more > kPartBytes) {
      part.set_call(last.call());
      send_part(std::exchange(part, LanePart()));
      bytes = 0;
    }
    bytes += more;
  };
  for (std::string& item : items) {
    make_room(item.size());
    part.add_items(std::move(item));
  }
  make_room(last.head().size());
  last.mutable_items()->Swap(part.mutable_items());
  last.set_last(true);
  send_part(std::move(last));
}

}  // namespace quartet
