#include "core/certificates/certificates.h"

#include <arpa/inet.h>
#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/x509.h>
#include <openssl/x509_vfy.h>
#include <openssl/x509v3.h>

#include <ctime>
#include <memory>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "core/base/status_macros.h"
#include "core/errors/shown.h"

namespace quartet {
namespace {

template <auto free>
struct Free {
  template <typename T>
  void operator()(T* object) const {
    free(object);
  }
};
using Certificate = std::unique_ptr<X509, Free<X509_free>>;
using Certificates = std::vector<Certificate>;

std::unique_ptr<BIO, Free<BIO_free>> TextOf(const std::string& pem) {
  return std::unique_ptr<BIO, Free<BIO_free>>(BIO_new_mem_buf(pem.data(), static_cast<int>(pem.size())));
}

absl::StatusOr<Certificates> ReadCertificates(const std::string& file, const std::string& pem) {
  const auto text = TextOf(pem);
  Certificates certificates;
  while (X509* one = PEM_read_bio_X509(text.get(), nullptr, nullptr, nullptr)) certificates.emplace_back(one);
  const unsigned long last = ERR_peek_last_error();
  ERR_clear_error();
  // The end is "no further PEM"; anything else is a part that is damaged.
  const bool at_end = ERR_GET_LIB(last) == ERR_LIB_PEM && ERR_GET_REASON(last) == PEM_R_NO_START_LINE;
  if (!at_end) {
    return absl::InvalidArgumentError(absl::StrCat(file, ": certificate number ", certificates.size() + 1,
                                                   " is damaged: it is not what PEM looks like"));
  }
  if (certificates.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat(file, ": has no certificate in PEM form (\"-----BEGIN CERTIFICATE-----\")"));
  }
  return certificates;
}

std::string Date(const ASN1_TIME* time) {
  std::tm parts = {};
  if (ASN1_TIME_to_tm(time, &parts) != 1) return "a time that cannot be read";
  return absl::FormatTime("%Y-%m-%d %H:%M:%S UTC", absl::FromTM(parts, absl::UTCTimeZone()), absl::UTCTimeZone());
}

std::string Subject(const X509* certificate) {
  const auto text = std::unique_ptr<BIO, Free<BIO_free>>(BIO_new(BIO_s_mem()));
  X509_NAME_print_ex(text.get(), X509_get_subject_name(certificate), 0, XN_FLAG_RFC2253);
  char* data = nullptr;
  const long size = BIO_get_mem_data(text.get(), &data);
  return Quoted(std::string(data, size));
}

absl::Status CheckTime(const std::string& file, const X509* certificate, absl::Time now) {
  const std::time_t seconds = absl::ToTimeT(now);
  const ASN1_TIME *begin = X509_get0_notBefore(certificate), *end = X509_get0_notAfter(certificate);
  const std::string which = absl::StrCat(file, ": the certificate of ", Subject(certificate));
  if (ASN1_TIME_cmp_time_t(end, seconds) < 0) {
    return absl::InvalidArgumentError(absl::StrCat(which, " expired at ", Date(end)));
  }
  if (ASN1_TIME_cmp_time_t(begin, seconds) > 0) {
    return absl::InvalidArgumentError(absl::StrCat(which, " does not hold before ", Date(begin), ", and it is ",
                                                   absl::FormatTime("%Y-%m-%d %H:%M:%S UTC", now, absl::UTCTimeZone()),
                                                   " here"));
  }
  return absl::OkStatus();
}

absl::Status CheckKey(const CertificateFiles& files, const std::string& cert_file, X509* certificate) {
  const std::string key_file = absl::StrCat(files.section, ".key_file ", files.key_file);
  const auto text = TextOf(files.key);
  const auto no_password = [](char*, int, int, void*) { return 0; };
  const auto key = std::unique_ptr<EVP_PKEY, Free<EVP_PKEY_free>>(
      PEM_read_bio_PrivateKey(text.get(), nullptr, no_password, nullptr));
  ERR_clear_error();
  if (key == nullptr) {
    return absl::InvalidArgumentError(
        absl::StrCat(key_file, ": has no private key in PEM form, or one with a password"));
  }
  const bool own = X509_check_private_key(certificate, key.get()) == 1;
  ERR_clear_error();
  if (own) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(key_file, ": is not the key of the certificate in ", cert_file));
}

// That one of the authorities has signed the first certificate, by those that follow it where there are some.
absl::Status CheckAuthority(const CertificateFiles& files, const std::string& cert_file, const Certificates& chain,
                            absl::Time now) {
  const std::string ca_file = absl::StrCat(files.section, ".ca_file ", files.ca_file);
  QUARTET_ASSIGN_OR_RETURN(const Certificates authorities, ReadCertificates(ca_file, files.ca));
  const auto store = std::unique_ptr<X509_STORE, Free<X509_STORE_free>>(X509_STORE_new());
  for (const Certificate& one : authorities) X509_STORE_add_cert(store.get(), one.get());
  const auto others =
      std::unique_ptr<STACK_OF(X509), Free<[](STACK_OF(X509) * stack) { sk_X509_free(stack); }>>(sk_X509_new_null());
  for (size_t i = 1; i < chain.size(); ++i) sk_X509_push(others.get(), chain[i].get());
  for (const auto& [purpose, role] :
       {std::pair(X509_PURPOSE_SSL_SERVER, "a server's"), {X509_PURPOSE_SSL_CLIENT, "a client's"}}) {
    const auto context = std::unique_ptr<X509_STORE_CTX, Free<X509_STORE_CTX_free>>(X509_STORE_CTX_new());
    X509_STORE_CTX_init(context.get(), store.get(), chain.front().get(), others.get());
    X509_STORE_CTX_set_purpose(context.get(), purpose);
    X509_STORE_CTX_set_time(context.get(), 0, absl::ToTimeT(now));
    const bool holds = X509_verify_cert(context.get()) == 1;
    const int error = X509_STORE_CTX_get_error(context.get());
    const X509* at = X509_STORE_CTX_get_current_cert(context.get());
    ERR_clear_error();
    if (holds) continue;
    switch (error) {
      case X509_V_ERR_UNABLE_TO_GET_ISSUER_CERT:
      case X509_V_ERR_UNABLE_TO_GET_ISSUER_CERT_LOCALLY:
      case X509_V_ERR_UNABLE_TO_VERIFY_LEAF_SIGNATURE:
      case X509_V_ERR_DEPTH_ZERO_SELF_SIGNED_CERT:
      case X509_V_ERR_SELF_SIGNED_CERT_IN_CHAIN:
      case X509_V_ERR_CERT_SIGNATURE_FAILURE:
        return absl::InvalidArgumentError(absl::StrCat(cert_file, ": the certificate of ", Subject(chain.front().get()),
                                                       " is signed by no authority in ", ca_file));
      case X509_V_ERR_CERT_HAS_EXPIRED:
      case X509_V_ERR_CERT_NOT_YET_VALID:
        return CheckTime(at == chain.front().get() ? cert_file : ca_file, at == nullptr ? chain.front().get() : at,
                         now);
      case X509_V_ERR_INVALID_PURPOSE:
        return absl::InvalidArgumentError(
            absl::StrCat(cert_file, ": the certificate of ", Subject(at == nullptr ? chain.front().get() : at),
                         " must not be used as ", role,
                         " (extendedKeyUsage needs serverAuth and clientAuth, as each process is both)"));
      default:
        return absl::InvalidArgumentError(absl::StrCat(cert_file, ": the certificate of ", Subject(chain.front().get()),
                                                       " does not hold with ", ca_file, ": ",
                                                       X509_verify_cert_error_string(error)));
    }
  }
  return absl::OkStatus();
}

// What it is for: "DNS:localhost, IP:127.0.0.1".
std::string NamesOf(const X509* certificate) {
  std::vector<std::string> texts;
  auto* names = static_cast<GENERAL_NAMES*>(X509_get_ext_d2i(certificate, NID_subject_alt_name, nullptr, nullptr));
  for (int i = 0; i < sk_GENERAL_NAME_num(names); ++i) {
    const GENERAL_NAME* name = sk_GENERAL_NAME_value(names, i);
    if (name->type == GEN_DNS) {
      const auto* text = reinterpret_cast<const char*>(ASN1_STRING_get0_data(name->d.dNSName));
      texts.push_back("DNS:" + Shown(std::string(text, ASN1_STRING_length(name->d.dNSName))));
    } else if (name->type == GEN_IPADD) {
      const int size = ASN1_STRING_length(name->d.iPAddress);
      char text[INET6_ADDRSTRLEN] = "";
      if (size != 4 && size != 16) continue;
      inet_ntop(size == 4 ? AF_INET : AF_INET6, ASN1_STRING_get0_data(name->d.iPAddress), text, sizeof(text));
      texts.push_back(absl::StrCat("IP:", text));
    }
  }
  GENERAL_NAMES_free(names);
  return texts.empty() ? absl::StrCat("the subject ", Subject(certificate), " alone") : absl::StrJoin(texts, ", ");
}

absl::Status CheckName(const std::string& cert_file, X509* certificate, const std::string& host) {
  unsigned char address[16];
  const bool numeric =
      inet_pton(AF_INET, host.c_str(), address) == 1 || inet_pton(AF_INET6, host.c_str(), address) == 1;
  const bool holds = numeric ? X509_check_ip_asc(certificate, host.c_str(), 0) == 1
                             : X509_check_host(certificate, host.data(), host.size(), 0, nullptr) == 1;
  ERR_clear_error();
  if (holds) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(cert_file, ": the certificate is for ", NamesOf(certificate), ", and not for ", host,
                   ", by which others reach this service (subjectAltName needs ", numeric ? "IP:" : "DNS:", host, ")"));
}

}  // namespace

absl::Status CheckCertificate(const CertificateFiles& files, const std::string& host, absl::Time now) {
  const std::string cert_file = absl::StrCat(files.section, ".cert_file ", files.cert_file);
  QUARTET_ASSIGN_OR_RETURN(const Certificates chain, ReadCertificates(cert_file, files.cert));
  QUARTET_RETURN_IF_ERROR(CheckKey(files, cert_file, chain.front().get()));
  for (const Certificate& one : chain) QUARTET_RETURN_IF_ERROR(CheckTime(cert_file, one.get(), now));
  if (!files.ca_file.empty()) QUARTET_RETURN_IF_ERROR(CheckAuthority(files, cert_file, chain, now));
  return host.empty() ? absl::OkStatus() : CheckName(cert_file, chain.front().get(), host);
}

}  // namespace quartet
