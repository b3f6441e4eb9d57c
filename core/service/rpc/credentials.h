// Channels and credentials of all processes of a run: mutual TLS from files, or none on loopback.
#pragma once

#include <grpcpp/channel.h>
#include <grpcpp/security/credentials.h>
#include <grpcpp/security/server_credentials.h>

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "core/network/address.h"
#include "proto/run_config.pb.h"

namespace quartet {

// Insecure where `tls` is empty. INVALID_ARGUMENT names a missing setting or what is wrong with a certificate
// (core/certificates/certificates.h), FAILED_PRECONDITION a key file that others than its owner may read, NOT_FOUND a
// missing file. `host` is how others reach the server, "" where that is not known.
absl::StatusOr<std::shared_ptr<grpc::ServerCredentials>> MakeServerCredentials(const TlsConfig& tls,
                                                                               const std::string& host = "");
absl::StatusOr<std::shared_ptr<grpc::ChannelCredentials>> MakeChannelCredentials(const TlsConfig& tls);

// A channel with the settings that all our clients use: keepalive, quick reconnection, no HTTP proxy, default message
// limits, a connection of its own. Above 0, at most `most_unread_bytes` of a stream wait here to be read; else gRPC
// lets as many come as it finds the connection to carry, which on one host is tens of MiB. Without `keepalive` who uses
// it finds by itself that nobody is at its other end any more: gRPC's counts the time in which this process is stopped.
std::shared_ptr<grpc::Channel> MakeChannel(const std::string& address,
                                           const std::shared_ptr<grpc::ChannelCredentials>& credentials,
                                           int most_unread_bytes = 0, bool keepalive = true);

}  // namespace quartet
