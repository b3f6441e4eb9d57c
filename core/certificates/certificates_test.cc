#include "core/certificates/certificates.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>

namespace quartet {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

// What the program openssl makes.
class CertificatesTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    Folder() = ::testing::TempDir() + "/certificates_test_" + std::to_string(getpid());
    std::filesystem::create_directories(Folder());
    MakeAuthority("ca");
    MakeAuthority("other");
    Make("service", "ca", "subjectAltName=DNS:node7.example.org,DNS:localhost,IP:127.0.0.1");
    Make("server_only", "ca", "extendedKeyUsage=serverAuth");
    Make("nameless", "ca", "basicConstraints=CA:FALSE");
  }
  static void TearDownTestSuite() { std::filesystem::remove_all(Folder()); }

  static std::string& Folder() {
    static auto* folder = new std::string;
    return *folder;
  }
  static void Run(const std::string& command) {
    const std::string whole = "cd " + Folder() + " && " + command + " 2>>log";
    ASSERT_EQ(std::system(whole.c_str()), 0) << Text("log");
  }
  static void MakeAuthority(const std::string& name) {
    Run("openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=" + name + " -keyout " + name + ".key -out " +
        name + ".pem");
  }
  static void Make(const std::string& name, const std::string& authority, const std::string& extension) {
    std::ofstream(Folder() + "/ext") << extension;
    Run("openssl req -newkey rsa:2048 -nodes -subj /CN=quartet -keyout " + name +
        ".key -out csr && openssl x509 -req -in csr -CA " + authority + ".pem -CAkey " + authority +
        ".key -CAcreateserial -days 1 -extfile ext -out " + name + ".pem");
  }
  static std::string Text(const std::string& name) {
    std::stringstream text;
    text << std::ifstream(Folder() + "/" + name).rdbuf();
    return text.str();
  }
  static CertificateFiles Files(const std::string& cert, const std::string& ca = "ca") {
    CertificateFiles files = {.section = "tls", .cert_file = cert + ".pem", .key_file = cert + ".key"};
    files.cert = Text(files.cert_file);
    files.key = Text(files.key_file);
    if (ca.empty()) return files;
    files.ca_file = ca + ".pem";
    files.ca = Text(files.ca_file);
    return files;
  }
  static std::string Error(const CertificateFiles& files, const std::string& host = "", absl::Time now = absl::Now()) {
    const absl::Status status = CheckCertificate(files, host, now);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    return std::string(status.message());
  }
};

TEST_F(CertificatesTest, HoldForTheNamesThatTheyAreFor) {
  for (const std::string host : {"", "node7.example.org", "localhost", "127.0.0.1"}) {
    EXPECT_EQ(CheckCertificate(Files("service"), host), absl::OkStatus());
    EXPECT_EQ(CheckCertificate(Files("service", ""), host), absl::OkStatus())
        << "of a server whose clients have the authority";
  }
  EXPECT_EQ(CheckCertificate(Files("ca"), ""), absl::OkStatus()) << "signed by itself";
  EXPECT_EQ(
      Error(Files("service"), "10.0.0.7"),
      "tls.cert_file service.pem: the certificate is for DNS:node7.example.org, DNS:localhost, IP:127.0.0.1, and not "
      "for 10.0.0.7, by which others reach this service (subjectAltName needs IP:10.0.0.7)");
  EXPECT_THAT(Error(Files("service"), "node8.example.org"), HasSubstr("needs DNS:node8.example.org"));
  EXPECT_THAT(Error(Files("nameless"), "127.0.0.1"), HasSubstr("is for the subject \"CN=quartet\" alone"));
}

TEST_F(CertificatesTest, AreNamedWithTheDateWhereTheyHaveExpiredOrNotBegun) {
  const absl::Time now = absl::Now();
  EXPECT_THAT(
      Error(Files("service"), "", now + absl::Hours(36)),
      AllOf(HasSubstr("tls.cert_file service.pem: the certificate of \"CN=quartet\" expired at "),
            HasSubstr(absl::FormatTime("%Y-%m-%d ", now + absl::Hours(24), absl::UTCTimeZone())), HasSubstr(" UTC")));
  EXPECT_THAT(Error(Files("service"), "", now - absl::Hours(1)), HasSubstr("does not hold before "));
  EXPECT_THAT(Error(Files("service", ""), "", now + absl::Hours(36)), HasSubstr("expired at "));
}

TEST_F(CertificatesTest, OfAForeignAuthorityOrForOneRoleAloneAreRefused) {
  EXPECT_EQ(Error(Files("service", "other")),
            "tls.cert_file service.pem: the certificate of \"CN=quartet\" is signed by no authority in tls.ca_file "
            "other.pem");
  EXPECT_THAT(Error(Files("server_only")), HasSubstr("must not be used as a client's"));
  EXPECT_EQ(CheckCertificate(Files("server_only", ""), ""), absl::OkStatus());
}

TEST_F(CertificatesTest, SayWhichFileIsNotWhatItShouldBe) {
  CertificateFiles files = Files("service");
  files.key = Text("other.key");
  EXPECT_EQ(Error(files), "tls.key_file service.key: is not the key of the certificate in tls.cert_file service.pem");
  files.key = files.cert;
  EXPECT_THAT(Error(files), HasSubstr("tls.key_file service.key: has no private key"));
  files.cert = files.key = Text("service.key");
  EXPECT_THAT(Error(files), HasSubstr("tls.cert_file service.pem: has no certificate in PEM form"));
  files = Files("service");
  files.ca.clear();
  EXPECT_THAT(Error(files), HasSubstr("tls.ca_file ca.pem: has no certificate"));
  files.cert[files.cert.size() / 2] = '*';
  EXPECT_THAT(Error(files), HasSubstr("tls.cert_file service.pem: certificate number 1 is damaged"));
}

}  // namespace
}  // namespace quartet
