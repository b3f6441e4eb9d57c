// Fields of a record of the run folder, one line of a file there.
#pragma once

#include <string>

#include "core/errors/shown.h"
#include "nlohmann/json.hpp"

namespace quartet {

// `otherwise` where there is no such number.
inline double NumberIn(const nlohmann::json& record, const char* key, double otherwise) {
  const auto found = record.find(key);
  return found != record.end() && found->is_number() ? found->get<double>() : otherwise;
}

// "" where there is nothing; what is no text as JSON.
inline std::string TextIn(const nlohmann::json& record, const char* key) {
  const auto found = record.find(key);
  if (found == record.end() || found->is_null()) return "";
  if (found->is_string()) return found->get<std::string>();
  return OneLineJson(*found);
}

}  // namespace quartet
