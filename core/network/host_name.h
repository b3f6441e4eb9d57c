// What this host is called.
#pragma once

#include <string>

namespace quartet {

// As `hostname` prints it; "localhost" where the system tells none. Thread safe.
std::string HostName();

}  // namespace quartet
