// What is wrong, or slow, of what services without models tell of their hosts and links. No I/O.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "core/preflight/preflight.pb.h"
#include "proto/run_config.pb.h"

namespace quartet {

struct Finding {
  // With it no run could begin, or none that is what it says; else it could be better.
  bool fatal = false;
  // "host3", what was found there, and what to do: a sentence each.
  std::string where, what, remedy;
};
// "host3: ...; ..."
std::string Describe(const Finding& finding);

// "9.41 Gb/s".
std::string Gigabits(double bytes_per_second);

// What a rank of one host receives from one of another.
struct LinkRate {
  std::string kind;  // "collectives", "weight transfer": rates of one kind are comparable
  std::string from_host, to_host;
  double bytes_per_second = 0;
  double first_bytes_seconds = 0;  // until they had come, with the connection; 0: not measured
};

struct PreflightFacts {
  NodeFacts own;                                 // of the host that asks
  int64_t checkpoint_bytes = 0;                  // about what one of the run takes
  std::map<std::string, MeasureReply> services;  // by name
  // By how much a host's clock is at least ahead of the own one, seconds; negative: behind.
  std::map<std::string, double> clock_ahead;
  std::vector<LinkRate> links;
};

// Each host once, in the order of the services and their ranks.
std::vector<const NodeFacts*> HostsOf(const PreflightFacts& facts);

// Fatal ones first. A link is slow where it carries less than half of cluster.inter_node_gbps, where that is stated, or
// less than a third of the best of its kind; where all slow links are those of one host, it is that host's.
std::vector<Finding> FindProblems(const RunConfig& config, const PreflightFacts& facts);

}  // namespace quartet
