#ifndef NRAM_CLIENT_POOL_ONE_COPY_IO_H_
#define NRAM_CLIENT_POOL_ONE_COPY_IO_H_

// A read or a write of a region whose pages have one copy each: pieces of one message, several under way.

#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "client/pool/io_engine.h"

namespace nram {

class OneCopyIo : public IoWay {
 public:
  // `engine` outlives it.
  explicit OneCopyIo(IoEngine* engine) : engine_(engine) {}

  // After the engine's Reset.
  void Begin() {
    next_chunk_ = request().range.first;
    busy_ = next_part_ = 0;
  }

  void LaunchAll() override;
  void Judge(IoPart* part) override;
  void Resume(IoPart* part) override;
  bool Cancel(IoPart* part) override;
  bool is_busy() const override { return busy_ > 0; }

 private:
  // The most answers with wrong checksums to the same part, each over a new connection: beyond, the network is not the
  // cause.
  static constexpr int kGarbledMax = 3;

  const IoPlace& place() const { return engine_->place(); }
  const IoRequest& request() const { return engine_->request(); }
  void Claim(IoPart* part);
  // Each of these leaves the part free, called or waiting.
  void Launch(IoPart* part);
  void Place(IoPart* part, uint64_t span);
  void Aim(IoPart* part, const RegionMap::Target& target);
  void Send(IoPart* part, const RegionMap::Target& target);
  void JudgeShortOfReserved(IoPart* part, const absl::Status& status, uint64_t unused_bytes);
  void JudgeUnanswered(IoPart* part);
  void WaitFor(IoPart* part, Waiter::For what) { engine_->WaitFor(part, what, request().deadline_ns); }
  void Retry(IoPart* part, const absl::Status& why, Waiter::For what = Waiter::For::kConnection);
  void End(IoPart* part, const absl::Status& status);

  IoEngine* const engine_;
  uint64_t next_chunk_ = 0;  // to be started
  size_t busy_ = 0;
  size_t next_part_ = 0;
};

}  // namespace nram

#endif  // NRAM_CLIENT_POOL_ONE_COPY_IO_H_
