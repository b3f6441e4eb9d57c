// What a service tells of its configuration, so that a client that has another can refuse it.
#pragma once

#include <map>
#include <string>
#include <string_view>

#include "proto/run_config.pb.h"

namespace quartet {

// ServiceFields, and of each folder of a model among them the hash of its config.json and adapter_config.json, under
// names that no field has ("actor.pretrain/config.json"): one path may be another folder on another host, or have been
// one when the service began. Files that cannot be read are left out.
std::map<std::string, std::string> ReportedFields(const RunConfig& config, std::string_view service);

// Whether it is the name of such a hash.
bool IsFileHash(std::string_view field);

}  // namespace quartet
