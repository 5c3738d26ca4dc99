#ifndef NRAM_BASE_TLS_TEST_CERTIFICATES_H_
#define NRAM_BASE_TLS_TEST_CERTIFICATES_H_

// A directory with an authority's certificates for servers and clients, as `nram keygen` makes it.

#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "base/tls/authority.h"
#include "base/tls/context.h"
#include "gtest/gtest.h"

namespace nram {

class TestCertificates {
 public:
  explicit TestCertificates(const std::string& name = "tls")
      : directory_(absl::StrCat(::testing::TempDir(), "/", name, ".", getpid())),
        authority_(Authority::Create("test-authority").value()) {
    std::filesystem::create_directories(directory_);
    Write("ca.pem", authority_.Write()->certificate);
    Issue({.name = "server", .serves = true, .hosts = {"localhost", "127.0.0.1", "::1"}});
    Issue({.name = "client"});
  }
  ~TestCertificates() { std::filesystem::remove_all(directory_); }
  TestCertificates(const TestCertificates&) = delete;

  // Replaces server.pem or client.pem, and its key. `by`: another authority.
  void Issue(const CertificateWishes& wishes, const Authority* by = nullptr) {
    const CertificatePair pair = (by == nullptr ? authority_ : *by).Issue(wishes).value();
    const std::string name = wishes.serves ? "server" : "client";
    Write(name + ".key", pair.key);
    Write(name + ".pem", pair.certificate);
  }
  void Write(const std::string& name, const std::string& text) {
    const std::string path = absl::StrCat(directory_, "/", name);
    std::ofstream(path, std::ios::trunc) << text;
    chmod(path.c_str(), 0600);
  }
  std::shared_ptr<TlsContext> Load(TlsRole role) const {
    return TlsContext::Load(TlsFiles::In(directory_, role).value(), role).value();
  }
  const std::string& directory() const { return directory_; }

 private:
  const std::string directory_;
  const Authority authority_;
};

}  // namespace nram

#endif  // NRAM_BASE_TLS_TEST_CERTIFICATES_H_
