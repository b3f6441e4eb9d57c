// The head of a request, as libmicrohttpd has read it.
#pragma once

#include <microhttpd.h>

#include <string>

#include "core/http/http_server.h"

namespace quartet {

// Reads what MHD_AccessHandlerCallback is told of a request when its head has come into `request`. `target` is what
// stands behind the method, as it came: libmicrohttpd shows it, and decodes it in place then. False where the head is
// malformed in a way that libmicrohttpd does not mind (kMalformedHeaders): where the request ends cannot be known then,
// and nothing that comes behind it may be taken for another.
bool ReadHead(MHD_Connection* connection, const std::string& target, const char* method, const char* url,
              const char* version, HttpRequest* request);

// Whether headers came behind the body, once all of it has come. An empty name ends them, too, and they cannot be
// looked at in the way that a head is. `method` as ReadHead was told.
bool HasTrailers(MHD_Connection* connection, const char* method);

}  // namespace quartet
