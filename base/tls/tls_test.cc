// The handshake, the records and the channel of TLS, over socket pairs.

#include <fcntl.h>
#include <glog/logging.h>
#include <linux/capability.h>
#include <openssl/ssl.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/fd.h"
#include "base/file.h"
#include "base/poll_until.h"
#include "base/test_seed.h"
#include "base/tls/authority.h"
#include "base/tls/channel.h"
#include "base/tls/context.h"
#include "base/tls/handshake.h"
#include "base/tls/pump.h"
#include "base/tls/records.h"
#include "base/tls/test_read_all.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace nram {
namespace {

using ::testing::HasSubstr;

constexpr int64_t kDayS = 86'400;

void WriteText(const std::string& path, const std::string& text, mode_t mode = 0600) {
  std::ofstream(path, std::ios::trunc) << text;
  chmod(path.c_str(), mode);
}

struct Pair {
  Pair() {
    int ends[2];
    EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, ends), 0);
    client.reset(ends[0]);
    server.reset(ends[1]);
  }
  UniqueFd client, server;
};

class TlsTest : public ::testing::Test {
 protected:
  TlsTest() : authority_(Authority::Create("test-authority").value()) {
    directory_ = absl::StrCat(::testing::TempDir(), "/tls.", getpid());
    std::filesystem::create_directories(directory_);
    WriteText(directory_ + "/ca.pem", authority_.Write()->certificate);
    Issue({.name = "server", .serves = true, .hosts = {"localhost", "10.0.0.7"}});
    Issue({.name = "alice"});
  }
  ~TlsTest() override { std::filesystem::remove_all(directory_); }

  void Issue(const CertificateWishes& wishes, const Authority* by = nullptr) {
    const CertificatePair pair = (by == nullptr ? &authority_ : by)->Issue(wishes).value();
    const std::string at = directory_ + (wishes.serves ? "/server" : "/client");
    WriteText(at + ".pem", pair.certificate);
    WriteText(at + ".key", pair.key);
  }
  std::shared_ptr<TlsContext> Load(TlsRole role) {
    return TlsContext::Load(TlsFiles::In(directory_, role).value(), role).value();
  }
  struct Outcome {
    absl::Status client, server;
    TlsSession client_session, server_session;
  };
  // Both ends take turns until both are done, or one has failed and the other has seen it.
  Outcome Shake(const Pair& pair, const std::string& host = "localhost") {
    return Shake(pair, Load(TlsRole::kClient).get(), Load(TlsRole::kServer).get(), host);
  }
  static Outcome Shake(const Pair& pair, TlsContext* client_context, TlsContext* server_context,
                       const std::string& host) {
    TlsHandshake client(client_context, pair.client.get(), host);
    TlsHandshake server(server_context, pair.server.get());
    Outcome outcome;
    bool client_done = false, server_done = false;
    for (int i = 0; i < 100 && !(client_done && server_done); ++i) {
      if (!client_done) {
        const auto step = client.Go();
        outcome.client = step.status();
        client_done = !step.ok() || *step == TlsHandshake::Step::kDone;
      }
      if (!server_done) {
        const auto step = server.Go();
        outcome.server = step.status();
        server_done = !step.ok() || *step == TlsHandshake::Step::kDone;
      }
    }
    EXPECT_TRUE(client_done && server_done);
    if (outcome.client.ok()) outcome.client_session = client.Take();
    if (outcome.server.ok()) outcome.server_session = server.Take();
    return outcome;
  }
  // The error that a client gets from a server that refuses it, although its own handshake has ended well.
  static absl::Status WhatTheClientHears(const Pair& pair, const Outcome& outcome) {
    Channel channel(pair.client.get(), &outcome.client_session);
    std::byte byte;
    const iovec piece{&byte, 1};
    return channel.Receive({&piece, 1}).status();
  }

  std::string directory_;
  Authority authority_;
};

TEST_F(TlsTest, BothEndsKnowEachOther) {
  Issue({.name = "bob", .uri = "spiffe://site/bob"});
  Pair pair;
  const Outcome outcome = Shake(pair);
  ASSERT_TRUE(outcome.client.ok() && outcome.server.ok()) << outcome.client << outcome.server;
  EXPECT_EQ(outcome.client_session.peer.identity(), "cn:server");
  EXPECT_EQ(outcome.server_session.peer.identity(), "spiffe://site/bob");
  EXPECT_EQ(outcome.client_session.to_send.bytes, outcome.server_session.to_receive.bytes);
  EXPECT_EQ(outcome.client_session.to_receive.bytes, outcome.server_session.to_send.bytes);
  EXPECT_NE(outcome.client_session.to_receive.bytes, outcome.client_session.to_send.bytes);
}

TEST_F(TlsTest, AnAddressIsAHostToo) {
  Pair pair;
  const Outcome outcome = Shake(pair, "10.0.0.7");
  EXPECT_TRUE(outcome.client.ok()) << outcome.client;
}

TEST_F(TlsTest, AServerOfAnotherHostIsRefused) {
  for (const std::string host : {"other", "10.0.0.8", "server"}) {
    Pair pair;
    const Outcome outcome = Shake(pair, host);
    EXPECT_THAT(std::string(outcome.client.message()), HasSubstr("another host")) << host;
    EXPECT_FALSE(outcome.server.ok());
  }
}

TEST_F(TlsTest, AClientsCertificateMakesNoServer) {
  const CertificatePair pair_of = authority_.Issue({.name = "mallory", .hosts = {"localhost"}}).value();
  WriteText(directory_ + "/server.pem", pair_of.certificate);
  WriteText(directory_ + "/server.key", pair_of.key);
  Pair pair;
  EXPECT_THAT(std::string(Shake(pair).client.message()), HasSubstr("not for servers"));
}

TEST_F(TlsTest, AServersCertificateMakesNoClient) {
  const CertificatePair pair_of = authority_.Issue({.name = "server2", .serves = true}).value();
  WriteText(directory_ + "/client.pem", pair_of.certificate);
  WriteText(directory_ + "/client.key", pair_of.key);
  Pair pair;
  const Outcome outcome = Shake(pair);
  EXPECT_THAT(std::string(outcome.server.message()), HasSubstr("not for clients"));
}

TEST_F(TlsTest, AnotherAuthoritysAreRefusedAndTold) {
  const Authority other = Authority::Create("other").value();
  Issue({.name = "eve"}, &other);
  Pair pair;
  const Outcome outcome = Shake(pair);
  ASSERT_TRUE(outcome.client.ok()) << "TLS 1.3 ends at the client first: " << outcome.client;
  EXPECT_THAT(std::string(outcome.server.message()), HasSubstr("no authority in this side's ca.pem"));
  EXPECT_THAT(std::string(WhatTheClientHears(pair, outcome).message()), HasSubstr("does not know the authority"));
}

TEST_F(TlsTest, ExpiredOnesAreRefusedAndTold) {
  Issue({.name = "alice", .begins_s = time(nullptr) - 10 * kDayS, .days = 9});
  Pair pair;
  const Outcome outcome = Shake(pair);
  EXPECT_THAT(std::string(outcome.server.message()), HasSubstr("expired"));
  EXPECT_THAT(std::string(WhatTheClientHears(pair, outcome).message()), HasSubstr("expired"));
}

TEST_F(TlsTest, AServerDoesNotBeginWithAnExpiredOne) {
  const CertificateWishes past{
      .name = "server", .serves = true, .hosts = {"localhost"}, .begins_s = time(nullptr) - 10 * kDayS, .days = 9};
  Issue(past);
  const absl::Status refused = TlsContext::Load(*TlsFiles::In(directory_, TlsRole::kServer), TlsRole::kServer).status();
  EXPECT_THAT(std::string(refused.message()), AllOf(HasSubstr("server.pem has expired"), HasSubstr("nram keygen")));
  // A client's is left to the servers, whose clocks count.
  Issue({.name = "alice", .begins_s = past.begins_s, .days = 9});
  EXPECT_NE(Load(TlsRole::kClient), nullptr);
}

TEST_F(TlsTest, OneThatEndsWhileItServesIsLoggedOnceADay) {
  const auto server = Load(TlsRole::kServer);
  const int64_t ends_s = server->expires_s();
  EXPECT_FALSE(server->TakeExpiryNotice(ends_s - 1));
  EXPECT_TRUE(server->TakeExpiryNotice(ends_s));
  EXPECT_FALSE(server->TakeExpiryNotice(ends_s + kDayS - 1));
  EXPECT_TRUE(server->TakeExpiryNotice(ends_s + kDayS));
  EXPECT_FALSE(Load(TlsRole::kClient)->TakeExpiryNotice(ends_s + kDayS));
}

TEST_F(TlsTest, ACertificateThatNamesNobodyIsRefused) {
  EXPECT_FALSE(authority_.Issue({.name = ""}).ok());
  EXPECT_FALSE(authority_.Issue({.name = "a b"}).ok());
  EXPECT_FALSE(authority_.Issue({.name = "a", .hosts = {"x,DNS:y"}}).ok());
  EXPECT_FALSE(authority_.Issue({.name = "a", .uri = "https://x"}).ok());
}

TEST_F(TlsTest, APeerThatSpeaksSomethingElseIsTold) {
  Pair pair;
  const std::string plain = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
  ASSERT_EQ(send(pair.client.get(), plain.data(), plain.size(), 0), static_cast<ssize_t>(plain.size()));
  TlsHandshake server(Load(TlsRole::kServer).get(), pair.server.get());
  EXPECT_THAT(std::string(server.Go().status().message()), HasSubstr("the client does not speak TLS"));
}

// Runs `body` on a thread to which the modes of files apply, even where root runs the test.
void WithoutRightsOverFiles(const std::function<void()>& body) {
  std::thread([&] {
    __user_cap_header_struct header{_LINUX_CAPABILITY_VERSION_3, 0};
    __user_cap_data_struct rights[_LINUX_CAPABILITY_U32S_3]{};
    ASSERT_EQ(syscall(SYS_capget, &header, rights), 0);
    constexpr uint32_t kKept = ~(1u << CAP_DAC_OVERRIDE | 1u << CAP_DAC_READ_SEARCH);
    for (uint32_t* const set : {&rights[0].effective, &rights[0].permitted, &rights[0].inheritable}) *set &= kKept;
    ASSERT_EQ(syscall(SYS_capset, &header, rights), 0);
    body();
  }).join();
}

// OpenSSL's own word for it is that it is no PEM file.
TEST_F(TlsTest, AFileThatThisUserMayNotReadIsCalledSo) {
  Issue({.name = "alice"});
  const TlsFiles files = *TlsFiles::In(directory_, TlsRole::kClient);
  for (const std::string& path : {files.key, files.certificate, files.authorities}) {
    SCOPED_TRACE(path);
    ASSERT_EQ(chmod(path.c_str(), 0), 0);
    std::string message;
    WithoutRightsOverFiles([&] { message = TlsContext::Load(files, TlsRole::kClient).status().ToString(); });
    EXPECT_THAT(message, HasSubstr(path + ": this user must be able to read it: Permission denied"));
    ASSERT_EQ(chmod(path.c_str(), 0600), 0);
  }
  EXPECT_TRUE(TlsContext::Load(files, TlsRole::kClient).ok());
}

TEST_F(TlsTest, FilesAreCheckedAndNamed) {
  WriteText(directory_ + "/client.key", "", 0600);
  EXPECT_THAT(
      std::string(TlsContext::Load(*TlsFiles::In(directory_, TlsRole::kClient), TlsRole::kClient).status().message()),
      HasSubstr("client.key"));
  // Another certificate's key, of the same kind and of another.
  Issue({.name = "alice"});
  const std::string key = *ReadFile(directory_ + "/client.key");
  Issue({.name = "alice"});
  WriteText(directory_ + "/client.key", key, 0600);
  EXPECT_THAT(
      std::string(TlsContext::Load(*TlsFiles::In(directory_, TlsRole::kClient), TlsRole::kClient).status().message()),
      HasSubstr("client.key: this key does not belong to " + directory_ + "/client.pem"));
  Issue({.name = "alice"});
  chmod((directory_ + "/client.key").c_str(), 0604);
  EXPECT_THAT(
      std::string(TlsContext::Load(*TlsFiles::In(directory_, TlsRole::kClient), TlsRole::kClient).status().message()),
      HasSubstr("chmod"));
  const TlsFiles files = *TlsFiles::In(directory_, TlsRole::kServer);
  std::filesystem::rename(files.certificate, directory_ + "/elsewhere");
  EXPECT_THAT(std::string(TlsContext::Load(files, TlsRole::kServer).status().message()),
              HasSubstr("server.pem: this user must be able to read it: No such file"));
  std::filesystem::remove(directory_ + "/ca.pem");
  EXPECT_THAT(std::string(TlsFiles::In(directory_, TlsRole::kClient).status().message()), HasSubstr("ca.pem"));
}

// The good certificates remain in use, whatever a file holds while it is written.
TEST_F(TlsTest, ChangedFilesAreTakenWhenTheyFit) {
  const auto server = Load(TlsRole::kServer);
  const auto client = Load(TlsRole::kClient);
  const auto look_again = [](TlsContext* context) {
    const timespec more{1, 100'000'000};  // files are looked at once a second
    nanosleep(&more, nullptr);
    return context->Get();
  };
  const auto before = server->Get();
  for (const std::string half : {"", "-----BEGIN CERTIFICATE-----\nMIIB"}) {
    WriteText(directory_ + "/server.pem", half);
    EXPECT_EQ(look_again(server.get()), before);
  }
  Issue({.name = "renewed", .serves = true, .hosts = {"localhost"}});
  EXPECT_NE(look_again(server.get()), before);
  Pair pair;
  const Outcome outcome = Shake(pair, client.get(), server.get(), "localhost");
  ASSERT_TRUE(outcome.client.ok()) << outcome.client;
  EXPECT_EQ(outcome.client_session.peer.identity(), "cn:renewed");
}

// --- The channel.

class ChannelTest : public TlsTest {
 protected:
  void SetUp() override {
    const Outcome outcome = Shake(pair_);
    ASSERT_TRUE(outcome.client.ok() && outcome.server.ok()) << outcome.client << outcome.server;
    client_ = std::make_unique<Channel>(pair_.client.get(), &outcome.client_session);
    server_ = std::make_unique<Channel>(pair_.server.get(), &outcome.server_session);
  }

  Pair pair_;
  std::unique_ptr<Channel> client_, server_;
};

// Pieces of any sizes, sent and received in turns, arrive as they were sent.
TEST_F(ChannelTest, CarriesBytesInAnySlicing) {
  std::mt19937_64 random(TestSeed());
  const auto slices = [&](std::vector<std::byte>* bytes, size_t begin) {
    std::vector<iovec> pieces;
    for (size_t at = begin; at < bytes->size() && pieces.size() < 20;) {
      const size_t most = random() % 3 == 0 ? 200'000 : random() % 2 == 0 ? 5'000 : 70;
      const size_t step = std::min<size_t>(random() % most, bytes->size() - at);
      pieces.push_back({bytes->data() + at, step});
      at += step;
    }
    return pieces;
  };
  std::vector<std::byte> sent(8 << 20), received(sent.size());
  for (std::byte& byte : sent) byte = static_cast<std::byte>(random());
  size_t taken = 0, got = 0;
  while (got < sent.size()) {
    if (random() % 2 == 0 && (taken < sent.size() || client_->has_output())) {
      const auto pieces = slices(&sent, taken);
      const auto n = client_->Send(pieces);
      ASSERT_TRUE(n.ok()) << n.status();
      taken += *n;
    } else {
      const auto pieces = slices(&received, got);
      const auto n = server_->Receive(pieces);
      ASSERT_TRUE(n.ok()) << n.status();
      ASSERT_FALSE(n->ended);
      got += n->bytes;
      if (n->drained) {
        ASSERT_FALSE(server_->has_input()) << "drained, and there is more";
      }
    }
  }
  EXPECT_TRUE(received == sent);
}

TEST_F(ChannelTest, AByteThatIsChangedRepeatedOrLeftOutIsFound) {
  std::mt19937_64 random(TestSeed());
  std::array<std::byte, 3000> data{}, back{};
  for (int round = 0; round < 60; ++round) {
    SetUp();
    Pair wire;  // the test takes the client's records here, and passes them on
    const Outcome outcome = Shake(wire);
    Channel sender(wire.client.get(), &outcome.client_session);
    Pair other;
    Channel receiver(other.server.get(), &outcome.server_session);
    std::vector<std::byte> records;
    for (int i = 0; i < 3; ++i) {
      const iovec piece{data.data(), data.size()};
      ASSERT_EQ(*sender.Send({&piece, 1}), data.size());
      std::array<std::byte, 8192> raw;
      const ssize_t n = recv(wire.server.get(), raw.data(), raw.size(), MSG_DONTWAIT);
      ASSERT_GT(n, 0);
      records.insert(records.end(), raw.begin(), raw.begin() + n);
    }
    const size_t one = records.size() / 3;
    switch (round % 4) {
      case 0:  // any bit but of the first record, which must arrive
        records[one + random() % (2 * one)] ^= static_cast<std::byte>(1 << random() % 8);
        break;
      case 1:
        std::copy_n(records.begin(), one, records.begin() + one);
        break;
      case 2:
        std::swap_ranges(records.begin() + one, records.begin() + 2 * one, records.begin() + 2 * one);
        break;
      case 3:
        records.erase(records.begin() + one, records.begin() + 2 * one);
        break;
    }
    ASSERT_EQ(send(other.client.get(), records.data(), records.size(), 0), static_cast<ssize_t>(records.size()));
    other.client.reset();
    size_t got = 0;
    absl::Status status;
    bool ended = false;
    while (status.ok() && !ended) {
      const iovec piece{back.data(), back.size()};
      const auto n = receiver.Receive({&piece, 1});
      status = n.status();
      if (!n.ok()) break;
      got += n->bytes;
      ended = n->ended;
    }
    EXPECT_FALSE(status.ok()) << "round " << round;
    EXPECT_LT(got, 3 * data.size());
    EXPECT_GE(got, data.size());
  }
}

// --- The pump.

class PumpTest : public TlsTest {
 protected:
  static void WriteAll(int fd, const std::string& all) {
    for (size_t at = 0; at < all.size();) {
      const ssize_t n = send(fd, all.data() + at, all.size() - at, MSG_NOSIGNAL);
      ASSERT_GT(n, 0);
      at += n;
    }
  }
  // The plain ends, blocking, of a connection with a pump at each end.
  void Join(UniqueFd* client, UniqueFd* server, std::shared_ptr<const Pump::Link>* client_link) {
    Pair wire;
    const Outcome outcome = Shake(wire);
    ASSERT_TRUE(outcome.client.ok() && outcome.server.ok()) << outcome.client << outcome.server;
    Pair of_client, of_server;
    *client_link = client_pump_.Add(std::move(wire.client), &outcome.client_session, std::move(of_client.server), {});
    server_pump_.Add(std::move(wire.server), &outcome.server_session, std::move(of_server.server), {});
    *client = std::move(of_client.client);
    *server = std::move(of_server.client);
    for (const int fd : {client->get(), server->get()}) fcntl(fd, F_SETFL, 0);
  }

  Pump client_pump_, server_pump_;
};

TEST_F(PumpTest, CarriesBothWaysUntilAnEndIsClosed) {
  std::mt19937_64 random(TestSeed());
  std::vector<std::thread> threads;
  for (int i = 0; i < 8; ++i) {
    std::string there(3'000'000 + i, 0), back(2'000'000, 0);
    for (char& byte : there) byte = static_cast<char>(random());
    for (char& byte : back) byte = static_cast<char>(random());
    auto client = std::make_shared<UniqueFd>(), server = std::make_shared<UniqueFd>();
    std::shared_ptr<const Pump::Link> link;
    ASSERT_NO_FATAL_FAILURE(Join(client.get(), server.get(), &link));
    threads.emplace_back([=] { WriteAll(client->get(), there); });
    threads.emplace_back([=] {
      std::string got(there.size(), 0);
      EXPECT_EQ(recv(server->get(), got.data(), got.size(), MSG_WAITALL), static_cast<ssize_t>(got.size()));
      EXPECT_TRUE(got == there);
      WriteAll(server->get(), back);
      server->reset();
    });
    threads.emplace_back([=] {
      EXPECT_TRUE(ReadAll(client->get()) == back);
      client->reset();
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_TRUE(PollUntil(DeadlineAfterMs(20'000), 1, [&] { return client_pump_.count() + server_pump_.count() == 0; }));
}

TEST_F(PumpTest, APlainEndThatIsClosedClosesTheOther) {
  UniqueFd client, server;
  std::shared_ptr<const Pump::Link> link;
  ASSERT_NO_FATAL_FAILURE(Join(&client, &server, &link));
  server.reset();
  EXPECT_EQ(ReadAll(client.get()), "");
  client.reset();
  EXPECT_TRUE(PollUntil(DeadlineAfterMs(20'000), 1, [&] { return client_pump_.count() + server_pump_.count() == 0; }));
}

// Processor time of all threads of pumps so far, ns.
int64_t PumpNs() {
  int64_t ns = 0;
  for (const std::string& task : ListDirectory("/proc/self/task")) {
    const std::string at = "/proc/self/task/" + task;
    if (ReadFile(at + "/comm").value_or("") != "nram-pump\n") continue;
    ns += strtoll(ReadFile(at + "/schedstat").value_or("0").c_str(), nullptr, 10);
  }
  return ns;
}

// The peer has closed, and gRPC does not take the earlier bytes: the kernel reports the end at each poll.
TEST_F(PumpTest, DoesNotSpinWhileAPlainEndTakesNothing) {
  Pair wire, of_client, of_server;
  const Outcome outcome = Shake(wire);
  ASSERT_TRUE(outcome.client.ok() && outcome.server.ok());
  auto peer = std::make_unique<Pump>();
  peer->Add(std::move(wire.client), &outcome.client_session, std::move(of_client.server), {});
  server_pump_.Add(std::move(wire.server), &outcome.server_session, std::move(of_server.server), {});
  UniqueFd client = std::move(of_client.client), server = std::move(of_server.client);
  fcntl(server.get(), F_SETFL, 0);
  // More than the plain end's buffers hold.
  const std::string some(64 * 1024, 'x');
  for (const int64_t until_ns = DeadlineAfterMs(500); MonotonicNs() < until_ns;) {
    if (send(client.get(), some.data(), some.size(), MSG_NOSIGNAL) < 0) poll(nullptr, 0, 5);
  }
  peer.reset();
  poll(nullptr, 0, 100);
  const int64_t before_ns = PumpNs(), began_ns = MonotonicNs();
  poll(nullptr, 0, 500);
  EXPECT_LT(PumpNs() - before_ns, (MonotonicNs() - began_ns) / 4);
  EXPECT_GT(ReadAll(server.get()).size(), 100'000u);
}

TEST_F(PumpTest, TellsWhatTheServerSaysOfACertificate) {
  const Authority other = Authority::Create("other").value();
  Issue({.name = "eve"}, &other);
  Pair wire;
  const Outcome outcome = Shake(wire);
  ASSERT_TRUE(outcome.client.ok());
  Pair of_client;
  const auto link = client_pump_.Add(std::move(wire.client), &outcome.client_session, std::move(of_client.server), {});
  fcntl(of_client.client.get(), F_SETFL, 0);
  EXPECT_EQ(ReadAll(of_client.client.get()), "");
  EXPECT_THAT(std::string(link->status().message()), HasSubstr("does not know the authority"));
}

using SslContext = std::unique_ptr<SSL_CTX, decltype(&SSL_CTX_free)>;

// A server that is OpenSSL alone. `protocol`: its protocol in TLS; null: it names none.
SslContext OpenSslServer(const std::string& directory, const char* protocol) {
  SslContext context(SSL_CTX_new(TLS_server_method()), &SSL_CTX_free);
  SSL_CTX_use_certificate_chain_file(context.get(), (directory + "/server.pem").c_str());
  SSL_CTX_use_PrivateKey_file(context.get(), (directory + "/server.key").c_str(), SSL_FILETYPE_PEM);
  SSL_CTX_load_verify_file(context.get(), (directory + "/ca.pem").c_str());
  SSL_CTX_set_num_tickets(context.get(), 0);
  SSL_CTX_set_verify(context.get(), SSL_VERIFY_PEER | SSL_VERIFY_FAIL_IF_NO_PEER_CERT, nullptr);
  const auto select = [](SSL*, const unsigned char** out, unsigned char* bytes, const unsigned char*, unsigned int,
                         void* of) {
    *out = static_cast<const unsigned char*>(of);
    *bytes = static_cast<unsigned char>(strlen(static_cast<const char*>(of)));
    return SSL_TLSEXT_ERR_OK;
  };
  if (protocol != nullptr) SSL_CTX_set_alpn_select_cb(context.get(), select, const_cast<char*>(protocol));
  return context;
}

// Another service of the same host and authority, to which this client was led by mistake.
TEST_F(TlsTest, AServerOfSomethingElseIsNotTaken) {
  for (const char* const protocol : {"h2", static_cast<const char*>(nullptr)}) {
    Pair pair;
    const auto client_context = Load(TlsRole::kClient);
    TlsHandshake client(client_context.get(), pair.client.get(), "localhost");
    const SslContext context = OpenSslServer(directory_, protocol);
    std::unique_ptr<SSL, decltype(&SSL_free)> ssl(SSL_new(context.get()), &SSL_free);
    SSL_set_fd(ssl.get(), pair.server.get());
    absl::Status refused;
    for (int i = 0; i < 20 && refused.ok(); ++i) {
      const auto step = client.Go();
      refused = step.status();
      ASSERT_FALSE(step.ok() && *step == TlsHandshake::Step::kDone);
      (void)SSL_accept(ssl.get());
    }
    EXPECT_FALSE(refused.ok());
  }
}

// A ClientHello in pieces without end.
TEST_F(TlsTest, AHandshakeHasABound) {
  Pair pair;
  const auto context = Load(TlsRole::kServer);
  TlsHandshake server(context.get(), pair.server.get());
  // The beginning of a hello of 120 KB, a few bytes a record.
  std::string hello("\x01\x01\xd4\xc0", 4);
  hello.resize(120'000, '\0');
  absl::Status refused;
  for (size_t at = 0; at < hello.size() && refused.ok(); at += 4) {
    const std::string record = std::string("\x16\x03\x01\x00\x04", 5) + hello.substr(at, 4);
    ASSERT_EQ(send(pair.client.get(), record.data(), record.size(), 0), static_cast<ssize_t>(record.size()));
    refused = server.Go().status();
  }
  EXPECT_FALSE(refused.ok());
}

// OpenSSL's own records and ours are the same: a channel speaks with an SSL.
TEST_F(TlsTest, SpeaksWithOpenSsl) {
  Pair pair;
  const auto client_context = Load(TlsRole::kClient);
  const auto server_context = Load(TlsRole::kServer);
  TlsHandshake client(client_context.get(), pair.client.get(), "localhost");
  const SslContext context = OpenSslServer(directory_, "nram");
  std::unique_ptr<SSL, decltype(&SSL_free)> ssl(SSL_new(context.get()), &SSL_free);
  SSL_set_fd(ssl.get(), pair.server.get());
  bool client_done = false;
  for (int i = 0; i < 20 && !(client_done && SSL_is_init_finished(ssl.get())); ++i) {
    if (!client_done) {
      const auto step = client.Go();
      ASSERT_TRUE(step.ok()) << step.status();
      client_done = *step == TlsHandshake::Step::kDone;
    }
    (void)SSL_accept(ssl.get());
  }
  ASSERT_TRUE(client_done && SSL_is_init_finished(ssl.get()));
  const TlsSession session = client.Take();
  Channel channel(pair.client.get(), &session);
  std::string text(40'000, 'x');
  const iovec out{text.data(), text.size()};
  ASSERT_EQ(*channel.Send({&out, 1}), text.size());
  std::string got;
  std::array<char, 20'000> piece;
  for (int n; got.size() < text.size() && (n = SSL_read(ssl.get(), piece.data(), piece.size())) > 0;) {
    got.append(piece.data(), n);
  }
  EXPECT_EQ(got, text);
  // And with new keys, as OpenSSL makes them.
  ASSERT_EQ(SSL_key_update(ssl.get(), SSL_KEY_UPDATE_NOT_REQUESTED), 1);
  ASSERT_EQ(SSL_write(ssl.get(), text.data(), static_cast<int>(text.size())), static_cast<int>(text.size()));
  std::string back(text.size(), 0);
  size_t have = 0;
  while (have < back.size()) {
    const iovec in{back.data() + have, back.size() - have};
    const auto n = channel.Receive({&in, 1});
    ASSERT_TRUE(n.ok()) << n.status();
    ASSERT_FALSE(n->drained && n->bytes == 0);
    have += n->bytes;
  }
  EXPECT_EQ(back, text);
  SSL_shutdown(ssl.get());
  std::byte byte;
  const iovec in{&byte, 1};
  EXPECT_THAT(std::string(channel.Receive({&in, 1}).status().message()), HasSubstr("closed"));
}

}  // namespace
}  // namespace nram
