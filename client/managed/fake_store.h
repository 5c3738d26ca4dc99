#ifndef NRAM_CLIENT_MANAGED_FAKE_STORE_H_
#define NRAM_CLIENT_MANAGED_FAKE_STORE_H_

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/units.h"
#include "client/managed/store.h"

namespace nram {

// A store in memory, for tests. Operations with a callback end where they are started, or on a thread of its own, or
// when the test says so. A read of bytes that were never written is an error: the manager must not ask for them.
class FakeStore : public ManagedStore {
 public:
  enum class Ends { kAtOnce, kOnThread, kWhenTold };

  explicit FakeStore(Ends ends = Ends::kAtOnce, uint64_t room_bytes = kGiB) : ends_(ends), room_bytes_(room_bytes) {
    if (ends_ == Ends::kOnThread) thread_ = std::thread([this] { RunThread(); });
  }
  ~FakeStore() override {
    {
      std::lock_guard<std::mutex> lock(mu_);
      stops_ = true;
    }
    changed_.notify_all();
    if (thread_.joinable()) thread_.join();
  }

  uint64_t unit_bytes() const override { return kChunkBytes; }
  absl::Status Reserve(uint64_t offset, uint64_t length) override {
    if (offset + length <= room_bytes_) return absl::OkStatus();
    return absl::ResourceExhaustedError("the fake is full");
  }
  std::unique_ptr<Op> NewOp() override { return std::make_unique<FakeOp>(); }
  void StartRead(Op* op, uint64_t offset, absl::Span<std::byte> to, Callback callback, void* context) override {
    ++reads;
    Start(op, callback, context, to.size(), [this, offset, to] { return Read(offset, to); });
  }
  void StartWrite(Op* op, uint64_t offset, absl::Span<const std::byte> from, Callback callback,
                  void* context) override {
    ++writes;
    Start(op, callback, context, from.size(), [this, offset, from] { return Write(offset, from); });
  }

  void End() override { ++ends; }

  // kWhenTold: ends the oldest operation; false if there is none.
  bool EndOne() {
    std::function<void()> end;
    {
      std::lock_guard<std::mutex> lock(mu_);
      if (started_.empty()) return false;
      end = std::move(started_.front());
      started_.pop_front();
    }
    end();
    return true;
  }
  size_t started() const {
    std::lock_guard<std::mutex> lock(mu_);
    return started_.size();
  }

  std::atomic<bool> fails_reads{false};
  std::atomic<bool> fails_writes{false};
  std::atomic<uint64_t> lost_page{UINT64_MAX};  // an offset: reads of it fail
  std::atomic<uint64_t> reads{0};               // that were started
  std::atomic<uint64_t> writes{0};
  std::atomic<uint64_t> under_way_bytes{0};
  std::atomic<int> ends{0};
  std::atomic<uint64_t> read_bytes{0};
  std::atomic<uint64_t> written_bytes{0};

 private:
  struct FakeOp : Op {
    absl::Status Wait() override { return status; }
    absl::Status status;
  };

  void Start(Op* op, Callback callback, void* context, uint64_t bytes, std::function<absl::Status()> run) {
    under_way_bytes += bytes;
    const auto end = [this, op, callback, context, bytes, run = std::move(run)] {
      static_cast<FakeOp*>(op)->status = run();
      under_way_bytes -= bytes;
      if (callback != nullptr) callback(op, context);
    };
    if (ends_ == Ends::kAtOnce || callback == nullptr) return end();
    {
      std::lock_guard<std::mutex> lock(mu_);
      started_.push_back(end);
    }
    changed_.notify_all();
  }

  void RunThread() {
    while (true) {
      {
        std::unique_lock<std::mutex> lock(mu_);
        changed_.wait(lock, [this] { return stops_ || !started_.empty(); });
        if (started_.empty()) return;
      }
      EndOne();
    }
  }

  absl::Status Read(uint64_t offset, absl::Span<std::byte> to) {
    if (fails_reads) return absl::DataLossError("the fake has lost it");
    std::lock_guard<std::mutex> lock(mu_);
    for (uint64_t done = 0; done < to.size(); done += kPageBytes) {
      if (offset + done == lost_page) return absl::DataLossError("the fake has lost that page");
      const auto page = pages_.find(offset + done);
      if (page == pages_.end()) return absl::InternalError(absl::StrCat("never written: ", offset + done));
      memcpy(to.data() + done, page->second.data(), kPageBytes);
    }
    read_bytes += to.size();
    return absl::OkStatus();
  }
  absl::Status Write(uint64_t offset, absl::Span<const std::byte> from) {
    if (fails_writes) return absl::UnavailableError("the fake does not answer");
    std::lock_guard<std::mutex> lock(mu_);
    for (uint64_t done = 0; done < from.size(); done += kPageBytes) {
      pages_[offset + done].assign(from.data() + done, from.data() + done + kPageBytes);
    }
    written_bytes += from.size();
    return absl::OkStatus();
  }

  const Ends ends_;
  const uint64_t room_bytes_;
  mutable std::mutex mu_;
  std::condition_variable changed_;
  bool stops_ = false;
  std::deque<std::function<void()>> started_;
  std::map<uint64_t, std::vector<std::byte>> pages_;  // by offset
  std::thread thread_;
};

}  // namespace nram

#endif  // NRAM_CLIENT_MANAGED_FAKE_STORE_H_
