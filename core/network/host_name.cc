#include "core/network/host_name.h"

#include <limits.h>
#include <unistd.h>

namespace quartet {

std::string HostName() {
  char name[HOST_NAME_MAX + 1] = "";
  return gethostname(name, sizeof(name)) == 0 && *name != '\0' ? name : "localhost";
}

}  // namespace quartet
