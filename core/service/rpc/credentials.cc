#include "core/service/rpc/credentials.h"

#include <grpc/grpc_security_constants.h>
#include <grpcpp/create_channel.h>
#include <grpcpp/support/channel_arguments.h>
#include <limits.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/files/files.h"
#include "core/base/status_macros.h"
#include "core/certificates/certificates.h"
#include "core/service/rpc/message_size.h"

namespace quartet {
namespace {

bool IsEmpty(const TlsConfig& tls) {
  return tls.ca_file().empty() && tls.cert_file().empty() && tls.key_file().empty();
}

struct Pem {
  std::string ca, cert, key;
};

absl::StatusOr<Pem> ReadPem(const TlsConfig& tls, const std::string& host) {
  for (const auto& [field, path] :
       {std::pair("tls.ca_file", &tls.ca_file()), std::pair("tls.cert_file", &tls.cert_file()),
        std::pair("tls.key_file", &tls.key_file())}) {
    if (path->empty()) return absl::InvalidArgumentError(absl::StrCat(field, " is not set, but others of tls are"));
  }
  Pem pem;
  QUARTET_ASSIGN_OR_RETURN(pem.ca, Prefixed("tls.ca_file", ReadFile(tls.ca_file())));
  QUARTET_ASSIGN_OR_RETURN(pem.cert, Prefixed("tls.cert_file", ReadFile(tls.cert_file())));
  QUARTET_ASSIGN_OR_RETURN(pem.key, Prefixed("tls.key_file", ReadSecretFile(tls.key_file())));
  QUARTET_RETURN_IF_ERROR(CheckCertificate({.section = "tls",
                                            .ca_file = tls.ca_file(),
                                            .cert_file = tls.cert_file(),
                                            .key_file = tls.key_file(),
                                            .ca = pem.ca,
                                            .cert = pem.cert,
                                            .key = pem.key},
                                           host));
  return pem;
}

}  // namespace

absl::StatusOr<std::shared_ptr<grpc::ServerCredentials>> MakeServerCredentials(const TlsConfig& tls,
                                                                               const std::string& host) {
  if (IsEmpty(tls)) return grpc::InsecureServerCredentials();
  QUARTET_ASSIGN_OR_RETURN(const Pem pem, ReadPem(tls, host));
  grpc::SslServerCredentialsOptions options(GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY);
  options.pem_root_certs = pem.ca;
  options.pem_key_cert_pairs.push_back({pem.key, pem.cert});
  return grpc::SslServerCredentials(options);
}

absl::StatusOr<std::shared_ptr<grpc::ChannelCredentials>> MakeChannelCredentials(const TlsConfig& tls) {
  if (IsEmpty(tls)) return grpc::InsecureChannelCredentials();
  QUARTET_ASSIGN_OR_RETURN(const Pem pem, ReadPem(tls, ""));
  grpc::SslCredentialsOptions options;
  options.pem_root_certs = pem.ca;
  options.pem_private_key = pem.key;
  options.pem_cert_chain = pem.cert;
  return grpc::SslCredentials(options);
}

std::shared_ptr<grpc::Channel> MakeChannel(const std::string& address,
                                           const std::shared_ptr<grpc::ChannelCredentials>& credentials,
                                           int most_unread_bytes, bool keepalive) {
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, keepalive ? 20'000 : INT_MAX);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, 10'000);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
  arguments.SetInt(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 100);
  // Whatever its name says, this is how long one attempt to connect may take; on a busy machine 100 ms are not enough.
  arguments.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, 10'000);
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 1'000);
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  arguments.SetMaxReceiveMessageSize(kMaxMessageBytes);
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  if (most_unread_bytes > 0) {
    arguments.SetInt(GRPC_ARG_HTTP2_BDP_PROBE, 0);
    arguments.SetInt(GRPC_ARG_HTTP2_STREAM_LOOKAHEAD_BYTES, most_unread_bytes);
  }
  return grpc::CreateCustomChannel(address, credentials, arguments);
}

}  // namespace quartet
