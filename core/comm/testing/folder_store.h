// A KeyValueStore in a folder, for ranks that are processes and have no server. LibTorch-free.
#pragma once

#include <memory>
#include <string>

#include "core/comm/store/key_value_store.h"

namespace quartet {

// `folder` exists; keys become files in it. Safe between processes.
std::unique_ptr<KeyValueStore> MakeFolderStore(const std::string& folder);

}  // namespace quartet
