// What a process group is made with.
#pragma once

#include <string>
#include <vector>

#include "absl/time/time.h"

namespace quartet {

struct ProcessGroupOptions {
  int rank = 0;
  int size = 1;
  // "cpu": shared memory or Gloo. "cuda": NCCL (in builds with --config=cuda). "meta": a dry group of any rank and
  // size, which meets no peers and needs no store: collectives return at once, leave what tensors hold as it is, and
  // are counted.
  std::string device = "cpu";
  // Of device "cpu", or of the group that a dry one stands for. "auto": shared memory where all ranks are on one host,
  // else Gloo; "gloo" or "shm": that one. Sums are the same bits over both.
  std::string backend = "auto";
  // Address that sockets are bound to.
  std::string host = "127.0.0.1";
  // Longest time of one collective.
  absl::Duration timeout = absl::Seconds(300);
  // Prefix of this group's keys; a group made anew needs a new one.
  std::string name = "default";
  // What the ranks of this group are called in messages and traces; empty: their numbers in this group.
  std::vector<int> rank_names;
};

}  // namespace quartet
