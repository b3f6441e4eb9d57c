#include "core/service/rpc/service_version.h"

#include "core/version/version.h"
#include "proto/protocol_version.h"

namespace quartet {

void SayVersion(ServiceInfo* info) {
  info->set_protocol_version(kProtocolVersion);
  info->set_min_protocol_version(kMinProtocolVersion);
  info->set_version(VersionText());
}

}  // namespace quartet
