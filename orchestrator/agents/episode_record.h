// Between what runs an agent and what answers its calls: where an episode is reached, and what it leaves.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "orchestrator/agents/episode.h"

namespace quartet {

// Where an agent finds its policy. Nobody else knows key and address: both are random.
struct OpenEpisode {
  std::string key;       // its name here
  std::string base_url;  // http://127.0.0.1:PORT/episodes/KEY/v1
  std::string api_key;
};

// What of an episode the policy has made.
struct EpisodeRecord {
  std::vector<EpisodeSequence> sequences;  // none where no call was answered with a token
  // Of the answer that was asked for last, with which the last sequence ends:
  nlohmann::ordered_json conversation;  // a list of messages, with that answer
  std::string response;                 // its text
  bool truncated = false;               // cut by a limit, without an end token
  bool overlong = false;                // by one of the run's, not by what the request allowed

  int64_t calls = 0;          // that were answered and delivered
  int64_t refused = 0;        // that were not, by the fault of who called
  std::string refusal;        // what one of them was told
  double policy_seconds = 0;  // in which at least one call was under way
  std::string no_room;        // what a call still waited for at the end, of a policy that had no room
  // An error of ours: the episode has failed, whatever its agent reports.
  absl::Status policy;
};

// Has open episodes. Thread safe.
class EpisodeHost {
 public:
  virtual ~EpisodeHost() = default;
  // Draws of an episode follow from `seed`, its requests, and how often these came; not from when.
  virtual OpenEpisode Open(uint64_t seed) = 0;
  // Gives up the calls that are under way, refuses those that come later, and forgets the episode.
  virtual EpisodeRecord Close(const std::string& key) = 0;
};

}  // namespace quartet
