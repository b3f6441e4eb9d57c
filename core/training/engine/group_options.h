// Groups of a service's ranks.
#pragma once

#include <string>

#include "core/comm/process_group.h"
#include "core/service/ranks/rank_context.h"

namespace quartet {

// Of the group of all ranks of a service; `name` is the group's own within the service.
ProcessGroupOptions GroupOptions(const RankContext& context, const std::string& name);

}  // namespace quartet
