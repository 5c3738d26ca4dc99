// The program's own threads drive a poller, which also watches a descriptor of theirs.

#include "base/poller.h"

#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cstddef>
#include <functional>
#include <iterator>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "base/fd.h"
#include "client/transport/call.h"
#include "client/transport/socket_transport.h"
#include "gtest/gtest.h"
#include "tests/util/test_server.h"

namespace nram {
namespace {

constexpr uint64_t kLease = 78;

class PollerTest : public ::testing::Test {
 protected:
  struct Ping {
    Call call;
    std::atomic<bool> done{false};
    std::thread::id by;
  };

  PollerTest() : lease_(server_.Grant(kLease)), own_(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)) {
    transport_ = std::make_unique<SocketTransport>(ResolveEndpoint(server_.tcp()).value(),
                                                   SocketTransportOptions{LeaseId{kLease}, false, 0, {0}}, &poller_);
    const absl::Status status = transport_->Connect(DeadlineAfterMs(5'000));
    EXPECT_TRUE(status.ok()) << status;
  }

  // A call that no thread waits for.
  void Start(Ping* ping) {
    ping->done = false;
    ping->call.request = MessageHeader(PingRequest{});
    ping->call.deadline_ns = DeadlineAfterMs(10'000);
    ping->call.context = ping;
    ping->call.done = [](Call* call) {
      auto* const ended = static_cast<Ping*>(call->context);
      ended->by = std::this_thread::get_id();
      ended->done = true;
    };
    transport_->Start(&ping->call);
  }
  // A call that this thread waits for.
  absl::StatusCode Run() {
    Call call;
    call.request = MessageHeader(PingRequest{});
    call.deadline_ns = DeadlineAfterMs(10'000);
    transport_->Start(&call);
    transport_->Wait(&call);
    return call.code;
  }
  // Tells whether nothing arrives for the whole time of a wait.
  bool IsQuiet() {
    constexpr int kMs = 30;
    const int64_t until_ns = DeadlineAfterMs(kMs - 1);
    return !poller_.Drive(kMs) && MonotonicNs() >= until_ns;
  }

  TestDataServer server_;
  std::shared_ptr<Lease> lease_;
  UniqueFd own_;
  Poller poller_;
  std::unique_ptr<SocketTransport> transport_;
};

TEST_F(PollerTest, WhoDrivesHasTheRepliesAndItsOwnDescriptor) {
  ASSERT_TRUE(poller_.Watch(own_.get()));
  std::vector<Ping> pings(20);
  int by_this_thread = 0;
  for (Ping& ping : pings) {
    Start(&ping);
    while (!ping.done) EXPECT_FALSE(poller_.Drive(5'000));
    by_this_thread += ping.by == std::this_thread::get_id();
    EXPECT_EQ(ping.call.code, absl::StatusCode::kOk);
  }
  // The poller's own thread looks every 20 ms, and may be the faster one then.
  EXPECT_GT(by_this_thread, 0);
  EXPECT_TRUE(IsQuiet());
  const uint64_t one = 1;
  ASSERT_EQ(write(own_.get(), &one, sizeof one), ssize_t(sizeof one));
  EXPECT_TRUE(poller_.Drive(5'000));
  EXPECT_TRUE(poller_.Drive(5'000)) << "as long as it is readable";
  uint64_t count = 0;
  ASSERT_EQ(read(own_.get(), &count, sizeof count), ssize_t(sizeof count));
  EXPECT_TRUE(IsQuiet());
  poller_.Unwatch();
}

class FlushCounter : public Poller::Client {
 public:
  void OnReady() override {}
  void OnTick(int64_t) override {}
  void OnFlush() override { ++flushes; }
  int flushes = 0;
};

TEST_F(PollerTest, WhatADrivingThreadDefersIsDoneBeforeItSleepsOrCeasesToDrive) {
  FlushCounter client;
  poller_.Add(&client);
  EXPECT_FALSE(poller_.Defer(&client)) << "nobody drives";
  ASSERT_TRUE(poller_.Watch(own_.get()));
  EXPECT_FALSE(poller_.Defer(&client)) << "this thread does not drive yet";
  poller_.Drive(0);
  EXPECT_EQ(client.flushes, 0) << "nothing was deferred";
  EXPECT_TRUE(poller_.Defer(&client));
  EXPECT_TRUE(poller_.Defer(&client));
  std::thread([&] { EXPECT_FALSE(poller_.Defer(&client)) << "another thread"; }).join();
  EXPECT_EQ(client.flushes, 0);
  poller_.Drive(0);
  EXPECT_EQ(client.flushes, 1);
  poller_.Drive(0);
  EXPECT_EQ(client.flushes, 1);
  EXPECT_TRUE(poller_.Defer(&client));
  poller_.StopDriving();
  EXPECT_EQ(client.flushes, 2);
  EXPECT_FALSE(poller_.Defer(&client));
  poller_.Unwatch();
  poller_.Remove(&client);
}

// A thread drives the poller and then stops without a call.
TEST_F(PollerTest, WhatIsDeferredIsSentAllTheSameWhenNobodyDrivesOn) {
  ASSERT_TRUE(poller_.Watch(own_.get()));
  poller_.Drive(0);
  std::vector<Ping> pings(3);
  for (Ping& ping : pings) Start(&ping);
  for (Ping& ping : pings) {
    while (!ping.done && MonotonicNs() < ping.call.deadline_ns) std::this_thread::yield();
    ASSERT_TRUE(ping.done);
    EXPECT_EQ(ping.call.code, absl::StatusCode::kOk);
  }
  poller_.Unwatch();
}

TEST_F(PollerTest, NothingHangsWhenNobodyDrives) {
  ASSERT_TRUE(poller_.Watch(own_.get()));
  Ping ping;
  // More than one ping: the poller's own thread may be in a wait that it began before.
  for (int i = 0; i < 3; ++i) {
    Start(&ping);
    while (!ping.done && MonotonicNs() < ping.call.deadline_ns) std::this_thread::yield();
    ASSERT_TRUE(ping.done);
    EXPECT_EQ(ping.call.code, absl::StatusCode::kOk);
  }
  poller_.Unwatch();
  Start(&ping);
  while (!ping.done && MonotonicNs() < ping.call.deadline_ns) std::this_thread::yield();
  ASSERT_TRUE(ping.done);
  EXPECT_EQ(ping.call.code, absl::StatusCode::kOk) << "and its own thread is back at work";
}

// Runs `body` on a thread for which the kernel watches nothing more, as at fs.epoll.max_user_watches.
void WithoutWatches(const std::function<void()>& body) {
  std::thread([&] {
    sock_filter program[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_epoll_ctl, 0, 3),
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, args[1])),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, EPOLL_CTL_ADD, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | ENOSPC),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    const sock_fprog filter{static_cast<unsigned short>(std::size(program)), program};
    ASSERT_EQ(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
    ASSERT_EQ(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter, 0, 0), 0);
    body();
  }).join();
}

// The connection alone breaks, and the next one is as good as any.
TEST_F(PollerTest, AMissingWatchBreaksOneConnection) {
  Ping ping;
  WithoutWatches([&] { Start(&ping); });
  while (!ping.done && MonotonicNs() < ping.call.deadline_ns) std::this_thread::yield();
  ASSERT_TRUE(ping.done);
  EXPECT_EQ(ping.call.code, absl::StatusCode::kUnavailable);
  EXPECT_FALSE(transport_->connected());
  EXPECT_NE(transport_->TakeBreakReason().find("max_user_watches"), std::string::npos);
  ASSERT_TRUE(transport_->Connect(DeadlineAfterMs(5'000)).ok());
  Start(&ping);
  while (!ping.done && MonotonicNs() < ping.call.deadline_ns) std::this_thread::yield();
  ASSERT_TRUE(ping.done);
  EXPECT_EQ(ping.call.code, absl::StatusCode::kOk);
}

TEST_F(PollerTest, WithoutAWatchThePollersOwnThreadGoesOn) {
  WithoutWatches([&] { EXPECT_FALSE(poller_.Watch(own_.get())); });
  Ping ping;
  Start(&ping);
  while (!ping.done && MonotonicNs() < ping.call.deadline_ns) std::this_thread::yield();
  ASSERT_TRUE(ping.done);
  EXPECT_EQ(ping.call.code, absl::StatusCode::kOk);
  ASSERT_TRUE(poller_.Watch(own_.get())) << "and the descriptor may be watched later";
  poller_.Unwatch();
}

TEST_F(PollerTest, WhoWaitsHasTheSocketToHimself) {
  ASSERT_TRUE(poller_.Watch(own_.get()));
  Ping ping;
  for (int i = 0; i < 100; ++i) {
    Start(&ping);
    if (i % 2 == 0) {
      // The call that this thread waits for receives the other call's reply too.
      EXPECT_EQ(Run(), absl::StatusCode::kOk);
    }
    while (!ping.done) poller_.Drive(5'000);
    EXPECT_EQ(Run(), absl::StatusCode::kOk);
    if (i % 10 == 0) {
      EXPECT_TRUE(IsQuiet());
    }
  }
  poller_.Unwatch();
}

TEST_F(PollerTest, ABrokenConnectionIsQuiet) {
  ASSERT_TRUE(poller_.Watch(own_.get()));
  Ping ping;
  Start(&ping);
  while (!ping.done) poller_.Drive(5'000);
  transport_->Disconnect();
  // The poller reports the disconnection once.
  for (int i = 0; i < 3 && !IsQuiet(); ++i) {
  }
  EXPECT_TRUE(IsQuiet());
  Start(&ping);
  EXPECT_TRUE(ping.done);
  EXPECT_EQ(ping.call.code, absl::StatusCode::kUnavailable);
  ASSERT_TRUE(transport_->Connect(DeadlineAfterMs(5'000)).ok());
  Start(&ping);
  while (!ping.done) poller_.Drive(5'000);
  EXPECT_EQ(ping.call.code, absl::StatusCode::kOk);
  EXPECT_TRUE(IsQuiet());
  poller_.Unwatch();
}

}  // namespace
}  // namespace nram
