// An EpisodeHost without a policy, for agents that are scripts.
#pragma once

#include <cstdint>
#include <fstream>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/base/testing/scratch_folder.h"
#include "orchestrator/agents/episode_record.h"

namespace quartet {

// base_url is the path of a file, and each line that is written there a call: "refused", or the text of what is
// answered, which is one token, but none where the line is empty. All calls go on from each other. Thread safe.
class FileHost final : public EpisodeHost {
 public:
  OpenEpisode Open(uint64_t seed) override {
    const std::lock_guard lock(mutex_);
    seeds_.push_back(seed);
    const std::string key = absl::StrCat("episode", seeds_.size());
    open_[key] = seed;
    return {.key = key, .base_url = scratch_.path() + "/" + key, .api_key = "key of " + key};
  }

  EpisodeRecord Close(const std::string& key) override {
    const std::lock_guard lock(mutex_);
    EpisodeRecord record;
    EpisodeSequence sequence = {.ids = {static_cast<int32_t>(open_.at(key))}, .is_action = {false}};
    nlohmann::ordered_json messages = nlohmann::ordered_json::array();
    std::ifstream calls(scratch_.path() + "/" + key);
    for (std::string line; std::getline(calls, line);) {
      if (line == "refused") {
        ++record.refused;
        record.refusal = "the context is full";
        continue;
      }
      ++record.calls;
      record.response = line;
      if (line.empty()) continue;
      sequence.ids.push_back(static_cast<int32_t>(line.size()));
      sequence.is_action.push_back(true);
      ++sequence.turns;
      messages.push_back({{"role", "assistant"}, {"content", line}});
    }
    if (sequence.ids.size() > 1) {
      record.sequences.push_back(std::move(sequence));
      record.conversation = std::move(messages);
    }
    if (change_) change_(open_.at(key), &record);
    open_.erase(key);
    return record;
  }

  // Told of each record, and of the seed of its episode, before it is handed out. To be set before any is open.
  void SetChange(std::function<void(uint64_t seed, EpisodeRecord* record)> change) { change_ = std::move(change); }

  // Of the episodes that were opened, in that order.
  std::vector<uint64_t> seeds() const {
    const std::lock_guard lock(mutex_);
    return seeds_;
  }
  size_t open() const {
    const std::lock_guard lock(mutex_);
    return open_.size();
  }

 private:
  const ScratchFolder scratch_;
  std::function<void(uint64_t seed, EpisodeRecord* record)> change_;
  mutable std::mutex mutex_;
  std::map<std::string, uint64_t> open_;  // seeds, by key
  std::vector<uint64_t> seeds_;
};

}  // namespace quartet
