// A KeyValueStore within this process. LibTorch-free.
#pragma once

#include <memory>

#include "core/comm/store/key_value_store.h"

namespace quartet {

// For ranks that are threads (tests), for a group of one, and for the leader, which serves it to its peers.
std::unique_ptr<KeyValueStore> MakeLocalStore();

}  // namespace quartet
