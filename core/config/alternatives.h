// Fields of which one is set in another's place.
#pragma once

#include "proto/run_config.pb.h"

namespace quartet {

// Of fields that say the same in two ways, such as train.max_steps and train.num_episodes: takes out of `config` the
// one that is in the place of what `later` sets, which is about to go over it. Where `later` says both, or 0, which is
// none, nothing is taken.
void MakeWayFor(const RunConfig& later, RunConfig* config);

}  // namespace quartet
