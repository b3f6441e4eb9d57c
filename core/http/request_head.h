// The head of a request, as libmicrohttpd has read it.
#pragma once

#include <microhttpd.h>

#include <string>

#include "core/http/http_server.h"

namespace quartet {

// What stands behind the method, as it came: libmicrohttpd shows it before it decodes it in place.
struct RawTarget {
  const char* at = nullptr;
  std::string text;
};

// Reads what MHD_AccessHandlerCallback is told of a request when its head has come into `request`. False where the head
// is malformed in a way that libmicrohttpd does not mind (kMalformedHeaders): where the request ends cannot be known
// then, and nothing that comes behind it may be taken for another.
bool ReadHead(MHD_Connection* connection, const RawTarget& target, const char* method, const char* url,
              const char* version, HttpRequest* request);

// Whether headers came behind the body, once all of it has come. An empty name ends them, too, and they cannot be
// looked at in the way that a head is. `method` as ReadHead was told.
bool HasTrailers(MHD_Connection* connection, const char* method);

}  // namespace quartet
