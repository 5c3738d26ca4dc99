// nram keygen: a small authority, and certificates for servers and clients.

#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <iostream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/fd.h"
#include "base/file.h"
#include "base/status.h"
#include "base/tls/authority.h"
#include "base/tls/context.h"
#include "tools/nram/command.h"

namespace nram {
namespace {

constexpr int64_t kDaysMax = 3650;

struct KeygenFlags {
  std::vector<std::string> hosts;
  std::string client;
  std::string uri;
  std::string authority;
  std::string secret;
  std::string purpose;
  int64_t days = 365;

  void Register(ArgParser* parser) {
    parser->Repeated("host",
                     [this](absl::string_view value) {
                       hosts.emplace_back(value);
                       return absl::OkStatus();
                     },
                     {"NAME",
                      "a name or address at which clients dial the servers; give it for each\n"
                      "(default: those in server.pem, or localhost, 127.0.0.1, ::1 and this\nmachine's name)"});
    parser->String("client", &client,
                   {"NAME",
                    "the client's name, used in the servers' --access files (default: the name in\n"
                    "client.pem, or client)"});
    parser->String("uri", &uri, {"URI", "spiffe://..., the client's identity instead of its name"});
    parser->String("authority", &authority,
                   {"DIR", "use the authority in DIR and write only the client's files: one more\nclient"});
    parser->String("secret", &secret,
                   {"FILE",
                    "derive the authority from the secret in FILE, 32 bytes or more, and from\n"
                    "--purpose: machines with the same file make certificates of the same\n"
                    "authority. Its key is not written. Other users must not be able to read FILE"});
    parser->String("purpose", &purpose, {"TEXT", "for --secret: one authority for each, as in job-1234"});
    parser->Integer("days", 1, kDaysMax, &days, {"N", "days until the certificates expire (default: 365)"});
  }
};

absl::StatusOr<Authority> ReadAuthority(const std::string& directory) {
  NRAM_ASSIGN_OR_RETURN(std::string certificate, ReadFile(directory + "/ca.pem"));
  NRAM_ASSIGN_OR_RETURN(std::string key, ReadFile(directory + "/ca.key"));
  absl::StatusOr<Authority> authority = Authority::Read({std::move(certificate), std::move(key)});
  if (!authority.ok()) return Annotate(authority.status(), absl::StrCat("the authority in ", directory));
  return authority;
}

absl::StatusOr<Authority> DeriveAuthority(const std::string& file, const std::string& purpose) {
  NRAM_RETURN_IF_ERROR(CheckKeyMode(file));
  NRAM_ASSIGN_OR_RETURN(const std::string secret, ReadFile(file));
  absl::StatusOr<Authority> authority = Authority::Derive("nram-authority", secret, purpose);
  if (!authority.ok()) return Annotate(authority.status(), file);
  return authority;
}

absl::Status WriteSecret(const std::string& path, const std::string& text) {
  const mode_t former = umask(0077);
  const absl::Status status = WriteFileAtomically(path, text);
  umask(former);
  return status;
}

absl::Status WritePair(const std::string& directory, const std::string& name, const CertificatePair& pair) {
  // The key first: servers that see the certificate change find both.
  NRAM_RETURN_IF_ERROR(WriteSecret(absl::StrCat(directory, "/", name, ".key"), pair.key));
  return WriteFileAtomically(absl::StrCat(directory, "/", name, ".pem"), pair.certificate);
}

std::vector<std::string> OwnHosts() {
  std::vector<std::string> hosts = {"localhost", "127.0.0.1", "::1"};
  char name[256] = "";
  if (gethostname(name, sizeof name - 1) == 0 && name[0] != 0) hosts.emplace_back(name);
  return hosts;
}

// The wishes in the certificate that is there; nothing if there is none.
CertificateWishes FormerWishes(const std::string& path) {
  const absl::StatusOr<std::string> pem = ReadFile(path);
  const absl::StatusOr<CertificateWishes> wishes = pem.ok() ? WishesOf(*pem) : pem.status();
  return wishes.value_or(CertificateWishes{});
}

std::string DateAfter(int64_t days) {
  const time_t then = time(nullptr) + days * 86'400;
  tm parts{};
  gmtime_r(&then, &parts);
  char text[32];
  strftime(text, sizeof text, "%Y-%m-%d", &parts);
  return text;
}

absl::Status Keygen(const KeygenFlags& flags, const std::string& directory) {
  if (mkdir(directory.c_str(), 0700) != 0 && errno != EEXIST) return ErrnoStatus(errno, directory);
  const bool only_client = !flags.authority.empty();
  const std::string from = only_client ? flags.authority : directory;
  const bool is_derived = !flags.secret.empty();
  if (is_derived == flags.purpose.empty() || (is_derived && only_client)) {
    return absl::InvalidArgumentError("--secret and --purpose need each other, and exclude --authority");
  }
  if ((only_client || is_derived) && access((directory + "/ca.key").c_str(), F_OK) == 0) {
    return absl::FailedPreconditionError(
        absl::StrCat(directory, " has its own authority (ca.key): choose another directory"));
  }
  const bool has_authority = only_client || (!is_derived && access((from + "/ca.key").c_str(), F_OK) == 0);
  if (!has_authority && !is_derived && access((from + "/ca.pem").c_str(), F_OK) == 0) {
    return absl::FailedPreconditionError(
        absl::StrCat(from,
                     "/ca.pem exists without its key, ca.key: nothing can be signed. Add the key, or "
                     "choose another directory for a new authority"));
  }
  NRAM_ASSIGN_OR_RETURN(const Authority authority, has_authority ? ReadAuthority(from)
                                                   : is_derived  ? DeriveAuthority(flags.secret, flags.purpose)
                                                                 : Authority::Create("nram-authority"));
  NRAM_ASSIGN_OR_RETURN(const CertificatePair own, authority.Write());
  // A renewal without flags asks for the same again.
  CertificateWishes server_wishes = FormerWishes(directory + "/server.pem");
  CertificateWishes client_wishes = FormerWishes(directory + "/client.pem");
  server_wishes.name = "server";
  server_wishes.serves = true;
  if (!flags.hosts.empty()) server_wishes.hosts = flags.hosts;
  if (server_wishes.hosts.empty()) server_wishes.hosts = OwnHosts();
  if (!flags.client.empty() || client_wishes.name.empty()) {
    client_wishes.name = flags.client.empty() ? "client" : flags.client;
  }
  if (!flags.uri.empty()) client_wishes.uri = flags.uri;
  client_wishes.serves = false;
  server_wishes.days = client_wishes.days = flags.days;
  // All are made before the first is written, so that a mistake leaves the directory as it was.
  CertificatePair server;
  if (!only_client) {
    NRAM_ASSIGN_OR_RETURN(server, authority.Issue(server_wishes));
  }
  NRAM_ASSIGN_OR_RETURN(const CertificatePair client, authority.Issue(client_wishes));
  if (!has_authority && !is_derived) NRAM_RETURN_IF_ERROR(WriteSecret(directory + "/ca.key", own.key));
  NRAM_RETURN_IF_ERROR(WriteFileAtomically(directory + "/ca.pem", own.certificate));
  if (!only_client) NRAM_RETURN_IF_ERROR(WritePair(directory, "server", server));
  NRAM_RETURN_IF_ERROR(WritePair(directory, "client", client));

  const std::string who = client_wishes.uri.empty() ? "cn:" + client_wishes.name : client_wishes.uri;
  printf("%s: %s; good until %s\n", directory.c_str(),
         is_derived      ? "certificates of the secret's authority"
         : only_client   ? "certificate for one more client"
         : has_authority ? "new certificates of the existing authority"
                         : "a new authority and its certificates",
         DateAfter(flags.days).c_str());
  if (!only_client) {
    printf("  servers  ca.pem server.pem server.key   for %s\n", absl::StrJoin(server_wishes.hosts, ", ").c_str());
  }
  printf("  clients  ca.pem client.pem client.key   %s\n", who.c_str());
  if (is_derived) return absl::OkStatus();  // for scripts, which know what to do
  if (!only_client)
    printf("  you      ca.key                         signs certificates: keep it away from servers and clients\n");
  printf(
      "Copy these files to the machines, and give --tls-dir=DIR there (or NRAM_TLS_DIR). Renew with `nram keygen\n"
      "%s%s` before that day, and copy the files again; no restart is needed.\n",
      directory.c_str(), only_client ? absl::StrCat(" --authority=", flags.authority).c_str() : "");
  return absl::OkStatus();
}

int RunKeygen(KeygenFlags& flags, const Invocation& given) {
  if (given.words.size() != 1) {
    std::cerr << "nram keygen: give one directory for the files\nTry 'nram keygen --help'.\n";
    return 2;
  }
  return ToExitCode(Keygen(flags, given.words[0]), "nram keygen");
}

}  // namespace

Command KeygenCommand() {
  return DefineCommand<KeygenFlags>({"keygen", "make certificates for a pool",
                                     R"(usage: nram keygen DIR [flags]

Makes a small certificate authority in DIR (ca.pem, ca.key), and with it a certificate for servers
(server.pem, server.key) and one for clients (client.pem, client.key). If the authority exists, it
is kept and new certificates are made: run this command again to renew them. Servers and clients
use changed files without a restart.

)",
                                     R"(
You may use your own authority: servers and clients also accept ca.crt, tls.crt and tls.key, as
cert-manager writes them. A server's certificate needs "server auth" and the names that clients
dial.

example: nram keygen ~/pool-keys --host=node1 --host=node2 --host=10.0.0.7
         nram keygen ~/bobs-keys --authority=$HOME/pool-keys --client=bob
)",
                                     20},
                                    Words::kAny, &RunKeygen);
}

}  // namespace nram
