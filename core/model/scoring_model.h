// A model that the scorer has, as a configuration says it. Of no configuration, so that engines know it.
#pragma once

#include <cstdint>
#include <string>

namespace quartet {

struct ScoringModel {
  int source = -1;      // of which reward.source; -1: the reference
  std::string section;  // "reference", "reward.source[0]"
  std::string folder;
  std::string dtype;
  int zero_stage = 0;
  bool offload_param = false;
  std::string scalar_head = "";  // its name there; "": as config.json says
  // Most of one rank's forward; 0: no such limit.
  int64_t sequences = 0;
  int64_t tokens = 0;
  std::string tokens_option;

  bool is_reference() const { return source < 0; }
  std::string option() const { return section + (is_reference() ? ".pretrain" : ".model"); }
};

}  // namespace quartet
