// What is wrong with certificates, before anybody connects: where they are used, TLS says little more than that it
// failed. LibTorch-free and gRPC-free.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"

namespace quartet {

// Files in PEM form.
struct CertificateFiles {
  std::string section;  // of the configuration: errors name "<section>.cert_file"
  std::string ca_file;  // of the authorities that both sides trust; "": whoever connects has those
  std::string cert_file, key_file;
  std::string ca, cert, key;  // what is in them
};

// Whether a server that is reached as `host`, a name or a numeric address ("": its name is not looked at), can use them
// at `now`, and where there are authorities as a client, too: the key is the certificate's; it has begun and not
// expired; one of the authorities, which has not expired, has signed it; it is for `host`. INVALID_ARGUMENT names the
// file, the date or names, and what is wrong.
absl::Status CheckCertificate(const CertificateFiles& files, const std::string& host, absl::Time now = absl::Now());

}  // namespace quartet
