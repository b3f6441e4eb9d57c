#include "core/http/http_access.h"

#include <unistd.h>

#include <string_view>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "core/base/files/files.h"
#include "core/base/status_macros.h"
#include "core/certificates/certificates.h"
#include "core/network/address.h"
#include "core/network/local_users.h"

namespace quartet {
namespace {

// In a time that does not depend on where they differ.
bool SameSecret(std::string_view given, std::string_view wanted) {
  unsigned difference = given.size() != wanted.size();
  for (size_t i = 0; i < given.size(); ++i) {
    difference |= static_cast<unsigned char>(given[i]) ^ static_cast<unsigned char>(wanted[i % wanted.size()]);
  }
  return difference == 0;
}

// "host", "host:port", "[v6]:port".
bool NamesLoopback(const std::string& host) {
  for (const std::string& address : {host, absl::StrCat(host, ":0")}) {
    const absl::StatusOr<HostPort> parsed = ParseHostPort(address);
    if (parsed.ok() && IsLoopback(parsed->host)) return true;
  }
  return false;
}

absl::StatusOr<std::string> ReadSecret(const std::string& field, const std::string& path) {
  return path.empty() ? "" : Prefixed(field, ReadSecretFile(path));
}

// What an Authorization header brings; "" where it is of another kind.
std::string GivenKey(const std::string& header) {
  constexpr std::string_view kBearer = "bearer ", kBasic = "basic ";
  const std::string lower = absl::AsciiStrToLower(header);
  if (lower.starts_with(kBearer)) return header.substr(kBearer.size());
  std::string pair;
  if (!lower.starts_with(kBasic) || !absl::Base64Unescape(header.substr(kBasic.size()), &pair)) return "";
  const size_t colon = pair.find(':');
  return colon == std::string::npos ? "" : pair.substr(colon + 1);
}

}  // namespace

absl::StatusOr<HttpAccess> HttpAccess::Read(const HttpAccessFields& fields) {
  HttpAccess access;
  access.section_ = fields.section;
  access.listen_field_ = fields.listen_field.empty() ? absl::StrCat(fields.section, ".listen") : fields.listen_field;
  access.listen_text_ = fields.listen;
  access.any_user_ = fields.any_user;
  QUARTET_ASSIGN_OR_RETURN(access.listen_, ParseHostPort(fields.listen));
  const auto field = [&](const char* name) { return absl::StrCat(fields.section, ".", name); };
  QUARTET_ASSIGN_OR_RETURN(access.api_key_, ReadSecret(field("api_key_file"), fields.api_key_file));
  absl::StripAsciiWhitespace(&access.api_key_);
  if (!fields.api_key_file.empty() && access.api_key_.empty()) {
    return absl::InvalidArgumentError(absl::StrCat(field("api_key_file"), " ", fields.api_key_file, " is empty"));
  }
  QUARTET_ASSIGN_OR_RETURN(access.private_key_, ReadSecret(field("key_file"), fields.key_file));
  if (!fields.cert_file.empty()) {
    QUARTET_ASSIGN_OR_RETURN(access.certificate_, Prefixed(field("cert_file"), ReadFile(fields.cert_file)));
    QUARTET_RETURN_IF_ERROR(CheckCertificate({.section = fields.section,
                                              .ca_file = "",
                                              .cert_file = fields.cert_file,
                                              .key_file = fields.key_file,
                                              .ca = "",
                                              .cert = access.certificate_,
                                              .key = access.private_key_},
                                             /*host=*/""));
  }
  return access;
}

absl::Status HttpAccess::not_yours() const {
  return absl::PermissionDeniedError(
      absl::StrCat("without an API key (", section_, ".api_key_file) programs of the ", "user ", NameOfUser(geteuid()),
                   " and of root alone are answered, unless services.allow_other_users ", "is true"));
}

absl::Status HttpAccess::Check(const HttpRequest& head) const {
  if (!api_key_.empty()) return CheckKey(head, api_key_);
  const std::string host = HeaderOf(head, "host");
  if (NamesLoopback(host)) return absl::OkStatus();
  return absl::PermissionDeniedError(absl::StrCat("the header Host is \"", host, "\"; without an API key (", section_,
                                                  ".api_key_file) only 127.0.0.1, ::1 and localhost are allowed"));
}

absl::StatusOr<std::unique_ptr<HttpServer>> HttpAccess::Start(HttpServerOptions options, HttpHandler* handler) const {
  options.listen = listen_;
  options.own_user_only = api_key_.empty() && !any_user_;
  options.certificate = certificate_;
  options.private_key = private_key_;
  absl::StatusOr<std::unique_ptr<HttpServer>> started = HttpServer::Start(options, handler);
  if (absl::IsUnavailable(started.status())) {
    return absl::UnavailableError(absl::StrCat(listen_field_, " is \"", listen_text_,
                                               "\": ", started.status().message(),
                                               "; choose another port (port 0 takes a free one)"));
  }
  return started;
}

absl::Status CheckKey(const HttpRequest& head, const std::string& key) {
  const std::string given = HeaderOf(head, "authorization");
  if (SameSecret(GivenKey(given), key)) return absl::OkStatus();
  return absl::UnauthenticatedError(given.empty()
                                        ? "the API key is missing: send the header \"Authorization: Bearer KEY\""
                                        : "the API key in the header \"Authorization: Bearer KEY\" is wrong");
}

std::string HeaderOf(const HttpRequest& request, const char* name) {
  const auto found = request.headers.find(name);
  return found == request.headers.end() ? "" : found->second;
}

}  // namespace quartet
