#ifndef NRAM_TESTS_SIM_PUBLISH_OWNER_H_
#define NRAM_TESTS_SIM_PUBLISH_OWNER_H_

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "client/pool/publication.h"
#include "tests/sim/publish_world.h"

namespace nram::sim {

// A program that takes the region and its records over, or makes them, changes the region at random, and publishes it.
// It may die with any message. Then its object and all its state remain for ever.
class PublishOwner {
 public:
  // `number`: unique.
  PublishOwner(PublishWorld* world, HostId host, uint64_t number) : world_(world), host_(host), number_(number) {}

  // The program, in a fiber of the host.
  void Run();
  bool is_over() const { return over_ || dead_; }
  bool dead() const { return dead_; }
  LeaseId lease(size_t server) const { return pool_ == nullptr ? LeaseId{} : pool_->session(server)->lease(); }
  // It has the region.
  bool opened() const { return opened_; }
  // Ends itself soon.
  void Stop() { stops_ = true; }

  // --- For the last one, in a fiber of its host.
  // False: not in time.
  bool Open(int64_t until_ns);
  void CheckHead();
  // Forgets all records, and drops all versions.
  void DropAll(int64_t until_ns);
  void DestroyAll();
  void Close();

 private:
  enum class When { kNever, kSeal, kRecord, kDrop, kAny };

  absl::Status TryOpen();
  absl::Status OpenRecords(AttachMode mode);
  absl::Status OpenRegion(AttachMode mode);
  void OnRequest(const MessageHeader& request);
  void Die();
  bool goes_on() const { return !stops_ && !world_->ends(); }
  // Another one has taken over, or is just about to.
  bool MayBeShutOut() const;
  // Judges whether it may fail so; after some errors the owner gives up.
  void Judge(const char* what, const absl::Status& status);

  void Write();
  void ChangeOnce();
  void ReadHead(ChunkRange range);
  void PublishOnce();
  void Commit(uint64_t uid, const PublicationRecord& record);
  void ForgetOne();
  ChunkRange ChooseRange();

  PublishWorld* const world_;
  const HostId host_;
  const uint64_t number_;
  std::unique_ptr<Pool> pool_;
  std::unique_ptr<Publication> publication_;
  std::unique_ptr<Region> region_;
  uint64_t takeovers_ = 0;  // of the world, when this one had opened
  bool opened_ = false;
  bool stops_ = false;
  bool over_ = false;
  bool dead_ = false;
  bool writes_ = false;
  When dies_when_ = When::kNever;
  uint64_t dies_after_ = 0;  // messages
  ChunkRange last_range_;
  PublishModel::Value last_value_ = 0;
};

}  // namespace nram::sim

#endif  // NRAM_TESTS_SIM_PUBLISH_OWNER_H_
