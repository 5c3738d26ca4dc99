// The client against a memory server that gives impossible answers: the client returns an error that says so, never
// crashes, hangs or fills its memory.

#include "tests/util/lying_server.h"

#include <glog/logging.h>

#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/sync.h"
#include "client/pool/pool.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/util/region_io.h"

namespace nram {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

struct LogCounter : google::LogSink {
  LogCounter() { google::AddLogSink(this); }
  ~LogCounter() override { google::RemoveLogSink(this); }
  void send(google::LogSeverity, const char*, const char*, int, const struct ::tm*, const char*, size_t) override {
    ++lines;
  }
  std::atomic<int> lines{0};
};

class LyingServerTest : public ::testing::Test {
 protected:
  absl::StatusOr<std::unique_ptr<Pool>> Open(int64_t io_timeout_ms = 1'000) {
    PoolOptions options;
    options.servers = {server_.endpoint()};
    options.open_timeout_ms = 300;
    options.io_timeout_ms = io_timeout_ms;
    options.spin.limit_us = 0;
    return Pool::Open(options);
  }
  // The error of a pool whose only server cannot be used.
  std::string Refusal(Lies lies) {
    server_.Set(std::move(lies));
    const uint64_t before = server_.hellos();
    // The timeout is long: the first attempt to connect may take long, and a refusal ends the wait.
    const auto pool = Open(10'000);
    EXPECT_FALSE(pool.ok());
    EXPECT_GT(server_.hellos(), before);
    return std::string(pool.status().message());
  }
  std::string Hello(std::function<void(v1::HelloReply*)> lie) {
    return Refusal({.hello = [lie](const auto&, v1::HelloReply* reply) {
      lie(reply);
      return grpc::Status::OK;
    }});
  }
  std::unique_ptr<Pool> OpenWith(Lies lies) {
    server_.Set(std::move(lies));
    auto pool = Open();
    EXPECT_TRUE(pool.ok()) << pool.status();
    return pool.ok() ? *std::move(pool) : nullptr;
  }
  static Lies Messages(std::function<std::string(const MessageHeader&, MessageHeader)> answer) {
    return {.message = [answer](const MessageHeader& request, const MessageHeader& good) {
      return request.op == Op::kHello ? LyingServer::Encode(good) : answer(request, good);
    }};
  }

  LyingServer server_;
};

TEST_F(LyingServerTest, AGoodOneIsUsed) {
  const auto pool = OpenWith({});
  const auto region = pool->AttachRegion("any", AttachMode::kOwner);
  ASSERT_TRUE(region.ok()) << region.status();
  EXPECT_TRUE((*region)->Write(0, Bytes(Pattern(4096, 1))).ok());
}

TEST_F(LyingServerTest, AHelloThatCannotBe) {
  EXPECT_THAT(Hello([](auto* reply) { reply->set_incarnation(0); }),
              AllOf(HasSubstr(server_.endpoint().ToString()), HasSubstr("incarnation 0")));
  EXPECT_THAT(Hello([](auto* reply) { reply->set_version(kWireVersion + 1); }),
              AllOf(HasSubstr(server_.endpoint().ToString()), HasSubstr("install the same release")));
  EXPECT_THAT(Hello([](auto* reply) { reply->set_version(0); }), HasSubstr("speaks version 0"));
  EXPECT_THAT(Hello([](auto* reply) { reply->set_data_port(0); }), HasSubstr("no data plane"));
  EXPECT_THAT(Hello([](auto* reply) { reply->set_data_port(65'536 + 80); }), HasSubstr("data port 65616"));
  EXPECT_THAT(Hello([](auto* reply) { reply->set_data_port(1); }), HasSubstr("connect"));
  EXPECT_THAT(Hello([&](auto* reply) { reply->set_incarnation(LyingServer::kIncarnation + 1); }),
              HasSubstr("has restarted"))
      << "the data plane says otherwise";
}

TEST_F(LyingServerTest, ALeaseThatCannotBe) {
  for (const uint64_t ttl_ms : {uint64_t{0}, static_cast<uint64_t>(-1), uint64_t{1} << 62, uint64_t{1}}) {
    const std::string message = Refusal({.lease = [=](const auto&, v1::LeaseReply* reply) {
      reply->set_ttl_ms(ttl_ms);
      return grpc::Status::OK;
    }});
    EXPECT_THAT(message, HasSubstr("a lease of")) << ttl_ms;
  }
}

TEST_F(LyingServerTest, CapacitiesBeyondAllBounds) {
  for (const uint64_t bytes : {~uint64_t{0}, uint64_t{1} << 63, uint64_t{0}}) {
    const auto fill = [=](v1::Capacity* capacity) {
      for (const auto set :
           {&v1::Capacity::set_donated_bytes, &v1::Capacity::set_used_bytes, &v1::Capacity::set_reserved_bytes,
            &v1::Capacity::set_free_bytes, &v1::Capacity::set_quota_bytes, &v1::Capacity::set_quota_used_bytes}) {
        (capacity->*set)(bytes);
      }
    };
    const auto pool = OpenWith({.hello =
                                    [=](const auto&, v1::HelloReply* reply) {
                                      fill(reply->mutable_capacity());
                                      return grpc::Status::OK;
                                    },
                                .lease =
                                    [=](const auto&, v1::LeaseReply* reply) {
                                      fill(reply->mutable_capacity());
                                      reply->set_reservation_bytes(bytes);
                                      return grpc::Status::OK;
                                    }});
    const auto region = pool->CreateRegion({.gc = true}).value();
    EXPECT_TRUE(region->Write(0, Bytes(Pattern(4 * kMiB, 1))).ok());
    EXPECT_TRUE(region->Reserve(8 * kMiB, kMiB).ok());
    EXPECT_TRUE(region->Destroy().ok());
  }
}

TEST_F(LyingServerTest, RegionsThatWereNotAskedFor) {
  const auto attach = [&](std::function<void(v1::RegionInfo*)> lie) {
    const auto pool = OpenWith({.attach = [lie](const auto&, v1::AttachRegionReply* reply) {
      lie(reply->mutable_region());
      return grpc::Status::OK;
    }});
    return pool->AttachRegion("any", AttachMode::kOwner).status();
  };
  EXPECT_THAT(attach([](auto* region) { region->set_region_id(0); }).message(), HasSubstr("was not asked for"));
  EXPECT_THAT(attach([](auto* region) { region->set_name("other"); }).message(), HasSubstr("was not asked for"));
  EXPECT_THAT(attach([](auto* region) { region->set_size_bytes(~uint64_t{0}); }).message(), HasSubstr("a size of"));
  EXPECT_THAT(attach([](auto* region) { region->set_epoch(~uint32_t{0}); }).message(), HasSubstr("epoch"));
  EXPECT_THAT(attach([](auto* region) {
                for (int i = 0; i < 70'000; ++i) region->add_incarnations(LyingServer::kIncarnation);
              }).message(),
              HasSubstr("65535 servers"));
  EXPECT_FALSE(attach([](auto* region) { region->set_owner_name(std::string(8 << 20, 'x')); }).ok());
  EXPECT_THAT(attach([](auto* region) { region->clear_incarnations(); }).code(), absl::StatusCode::kDataLoss);
}

TEST_F(LyingServerTest, MessagesAndOwnersAreMadeSafeForATerminal) {
  auto pool = OpenWith({.create = [](const auto&, auto*) {
    return grpc::Status(grpc::StatusCode::ALREADY_EXISTS, "\x1B]0;mine\x07\nI0000 forged");
  }});
  const std::string refused(pool->CreateRegion({.name = "x"}).status().message());
  EXPECT_THAT(refused, AllOf(HasSubstr("\\x1B]0;mine\\x07\\x0AI0000 forged"), Not(HasSubstr("\x1B"))));
  pool = OpenWith({.attach = [](const auto&, v1::AttachRegionReply* reply) {
    reply->mutable_region()->set_owner_name("\x1B[2Jroot");
    reply->mutable_region()->set_orphan(false);
    return grpc::Status::OK;
  }});
  EXPECT_THAT(std::string(pool->AttachRegion("x", AttachMode::kOwner).status().message()),
              AllOf(HasSubstr("in use by \\x1B[2Jroot"), Not(HasSubstr("\x1B"))));
}

TEST_F(LyingServerTest, AHelloOnTheDataPlaneThatCannotBe) {
  const auto refusal = [&](std::function<void(MessageHeader*)> lie) {
    return Refusal({.message = [lie](const MessageHeader&, MessageHeader good) {
      lie(&good);
      return LyingServer::Encode(good);
    }});
  };
  const auto credit = [](uint32_t requests, uint32_t kib) {
    return [=](MessageHeader* reply) {
      auto said = reply->as<HelloReply>();
      said.credit_requests = requests;
      said.credit_kib = kib;
      reply->set(said);
    };
  };
  EXPECT_THAT(refusal(credit(0, 0)), HasSubstr("grants no credit"));
  EXPECT_THAT(refusal(credit(0, 4096)), HasSubstr("grants no credit"));
  EXPECT_THAT(refusal([](MessageHeader* reply) { *reply = MessageHeader(PingReply{}); }),
              HasSubstr("not a memory server"));
  EXPECT_THAT(refusal([](MessageHeader* reply) { reply->request_id = 9; }), HasSubstr("not a memory server"));
  EXPECT_THAT(Refusal({.message = [](const auto&, const auto&) { return std::string(64, 'x'); }}),
              HasSubstr("malformed"));
  EXPECT_THAT(Refusal({.message = [](const auto&, const auto&) { return std::string(); }}),
              AllOf(HasSubstr(server_.endpoint().ToString()), HasSubstr("in time")));
}

TEST_F(LyingServerTest, AbsurdCreditIsNotBelieved) {
  const auto pool = OpenWith({.message = [](const MessageHeader& request, MessageHeader good) {
    if (request.op == Op::kHello) {
      auto said = good.as<HelloReply>();
      said.credit_requests = said.credit_kib = ~uint32_t{0};
      good.set(said);
    }
    return LyingServer::Encode(good);
  }});
  const auto region = pool->AttachRegion("any", AttachMode::kOwner).value();
  std::vector<Io> ios(64);
  const std::string data = Pattern(4 * kMiB, 1);
  for (size_t i = 0; i < ios.size(); ++i) {
    region->StartWrite(&ios[i], i * 4 * kMiB, Bytes(data), {.timeout_ms = 30'000});
  }
  for (Io& io : ios) EXPECT_TRUE(io.Wait().ok()) << io.Wait();
}

TEST_F(LyingServerTest, RepliesThatAreNone) {
  const std::vector<std::function<std::string(const MessageHeader&, MessageHeader)>> lies = {
      [](const auto&, MessageHeader) { return std::string(1000, 'x'); },
      [](const auto&, MessageHeader good) {
        good.request_id += 7;
        return LyingServer::Encode(good);
      },
      [](const auto&, MessageHeader good) {
        good.body[0] += 1;  // the region
        return LyingServer::Encode(good);
      },
      [](const auto&, MessageHeader good) {
        good.body[1] += 8;  // where the range begins
        return LyingServer::Encode(good);
      },
      [](const auto&, MessageHeader good) {
        good.flags = 0;
        return LyingServer::Encode(good);
      },
      [](const auto&, MessageHeader good) { return LyingServer::Encode(good) + LyingServer::Encode(good); },
      [](const auto&, MessageHeader good) { return LyingServer::Encode(good).substr(0, 40); },
      [](const auto&, MessageHeader good) {
        good.payload_bytes += 512;
        return LyingServer::Encode(good);
      },
      [](const auto&, MessageHeader) { return std::string(); },
  };
  LogCounter log;
  for (size_t i = 0; i < lies.size(); ++i) {
    SCOPED_TRACE(i);
    const auto pool = OpenWith(Messages(lies[i]));
    const auto region = pool->AttachRegion("any", AttachMode::kOwner).value();
    const int64_t patience_ns = DeadlineAfterMs(20'000);
    const absl::Status status = region->Write(0, Bytes(Pattern(4096, 1)));
    EXPECT_TRUE(i == 5 || i == 7 || !status.ok()) << status;
    EXPECT_LT(MonotonicNs(), patience_ns);
  }
  EXPECT_LT(log.lines, 200);
}

TEST_F(LyingServerTest, AWriteThatUsedMoreThanThereIs) {
  const auto pool = OpenWith(Messages([](const auto&, MessageHeader good) {
    if (good.op == Op::kWrite) {
      auto said = good.as<WriteReply>();
      said.used_bytes = uint64_t{1} << 63;
      good.set(said);
    }
    return LyingServer::Encode(good);
  }));
  const auto region = pool->CreateRegion({.gc = true}).value();
  for (int i = 0; i < 20; ++i) {
    const absl::Status status = region->Write(i * kMiB, Bytes(Pattern(4096, 1)));
    EXPECT_TRUE(status.ok()) << i << ": " << status;
  }
}

// The server executes a create, or the step after it, and its answer is lost. The client has the server undo it, in
// such an order that the server can no longer execute it afterwards.
TEST_F(LyingServerTest, WhatWasExecutedWithoutAnAnswerIsUndone) {
  for (const bool attach : {false, true}) {
    const auto lost = [](const auto&, auto*) { return grpc::Status(grpc::StatusCode::UNAVAILABLE, "lost"); };
    Mutex mu;
    std::vector<std::string> told;
    uint64_t lease = 0, region = 0;
    Lies lies;
    lies.create = [&, attach](const v1::CreateRegionRequest& request, v1::CreateRegionReply* reply) {
      MutexLock lock(&mu);
      lease = request.lease_id();
      region = request.region_id();
      return attach ? grpc::Status::OK : lost(request, reply);
    };
    if (attach) lies.attach = lost;
    lies.end_lease = [&](const v1::EndLeaseRequest& request, v1::EndLeaseReply*) {
      MutexLock lock(&mu);
      if (request.lease_id() == lease) told.emplace_back("end");
      return grpc::Status::OK;
    };
    lies.destroy = [&](const v1::DestroyRegionRequest& request, v1::DestroyRegionReply*) {
      MutexLock lock(&mu);
      if (request.region_id() == region) told.emplace_back("destroy");
      return grpc::Status::OK;
    };
    auto pool = OpenWith(std::move(lies));
    const absl::Status status = pool->CreateRegion({.name = "x"}).status();
    EXPECT_TRUE(absl::IsUnavailable(status)) << status;
    EXPECT_TRUE(pool->session(0)->AwaitUndone("x", DeadlineAfterMs(20'000)));
    {
      MutexLock lock(&mu);
      EXPECT_EQ(told, (std::vector<std::string>{"end", "destroy"})) << attach;
    }
    pool.reset();
    server_.Set({});
  }
}

TEST_F(LyingServerTest, ReasonsThatMakeNoSense) {
  for (int reason = 1; reason <= 255; ++reason) {
    const auto pool = reason % 16 == 1 || reason < 16 ? OpenWith(Messages([=](const auto&, MessageHeader good) {
      good.reason = static_cast<Reason>(reason);
      good.payload_bytes = 0;
      return LyingServer::Encode(good);
    }))
                                                      : nullptr;
    if (pool == nullptr) continue;
    const auto region = pool->AttachRegion("any", AttachMode::kOwner).value();
    const int64_t patience_ns = DeadlineAfterMs(20'000);
    EXPECT_FALSE(region->Write(0, Bytes(Pattern(4096, 1)), {.timeout_ms = 200}).ok()) << reason;
    EXPECT_LT(MonotonicNs(), patience_ns);
  }
}

}  // namespace
}  // namespace nram
