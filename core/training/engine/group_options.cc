#include "core/training/engine/group_options.h"

namespace quartet {

ProcessGroupOptions GroupOptions(const RankContext& context, const std::string& name) {
  ProcessGroupOptions options;
  options.rank = context.rank;
  options.size = context.world_size;
  options.device = context.device;
  options.host = context.host;
  options.timeout = context.collective_timeout;
  options.backend = context.collective_backend;
  options.name = name;
  return options;
}

}  // namespace quartet
