#ifndef NRAM_TESTS_SIM_PUBLISH_OBSERVER_H_
#define NRAM_TESTS_SIM_PUBLISH_OBSERVER_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "client/pool/publication.h"
#include "tests/sim/publish_world.h"

namespace nram::sim {

// A program that looks for publications, opens some, reads them at random, compares them, and closes them.
class PublishObserver {
 public:
  PublishObserver(PublishWorld* world, HostId host) : world_(world), host_(host) {}

  // The program, in a fiber of the host.
  void Run();
  bool over() const { return over_; }
  LeaseId lease(size_t server) const { return pool_ == nullptr ? LeaseId{} : pool_->session(server)->lease(); }

  // --- For the last one, in a fiber of its host.
  // Reads all publications wholly; no server is away.
  void CheckAll();

 private:
  struct Opened {
    uint64_t uid = 0;
    std::unique_ptr<Region> region;
    uint64_t opened_ns = 0;
    uint64_t leases_ended = 0;  // when it was opened
  };
  static constexpr size_t kOpenedMax = 4;

  bool Attach();
  void Look();
  absl::StatusOr<PublicationRecord> ReadRecord(uint64_t floor);
  // The uid in a found record. 0: it is wrong.
  uint64_t FindUid(const PublicationRecord& record);
  void Open(uint64_t uid);
  void Read(Opened* opened, ChunkRange range);
  void ReadSome();
  void Compare();
  // Judges whether it may fail so.
  void JudgeOpen(uint64_t uid, const absl::Status& status);
  void JudgeRead(const Opened& opened, const absl::Status& status);
  void JudgeLook(const char* what, const absl::Status& status);
  // The version need not be there.
  bool MayBeGone(uint64_t uid) const;

  PublishWorld* const world_;
  const HostId host_;
  std::unique_ptr<Pool> pool_;
  std::unique_ptr<Publication> publication_;
  std::vector<Opened> opened_;
  uint64_t seen_ = 0;  // the newest publication's number
  bool quiet_ = false;
  bool over_ = false;
};

}  // namespace nram::sim

#endif  // NRAM_TESTS_SIM_PUBLISH_OBSERVER_H_
