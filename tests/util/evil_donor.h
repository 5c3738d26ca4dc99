#ifndef NRAM_TESTS_UTIL_EVIL_DONOR_H_
#define NRAM_TESTS_UTIL_EVIL_DONOR_H_

#include <array>
#include <cstdint>
#include <map>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/types/span.h"
#include "base/units.h"
#include "proto/message.h"

namespace nram {

// The lies of a donor that wants to read or to mislead: it keeps every version of every sealed page that it gets, and
// changes replies to reads, with checksums that fit. Not thread-safe.
class EvilDonor {
 public:
  explicit EvilDonor(uint64_t seed) : random_(seed) {}

  // A write of sealed pages: `chunks` are those that the masks select, in order; without masks, all.
  void NoteWrite(RegionId region, uint64_t first_page, const PayloadTables& tables, absl::Span<const std::byte> chunks);
  // A server's reply as it is sent, a whole message. Changes one in `one_in` replies to reads of sealed regions.
  // Returns the lie; null: there is none.
  const char* Twist(std::string* reply, uint64_t one_in);
  // Changes the outcome in a reply to a write or a trim: done, refused, in part, no such region.
  const char* TwistChange(std::string* reply);

  uint64_t lies() const { return lies_; }

 private:
  static constexpr size_t kVersionsMax = 8;

  struct Version {
    PageSeal seal;
    std::string page;  // ciphertext; empty: a hole
  };
  // A reply's pages, taken apart.
  struct Pages {
    RegionId region{};
    uint64_t first = 0;
    std::vector<Version> versions;
  };

  const Version* FindOld(RegionId region, uint64_t page);
  const Version* FindAny(bool other_region, RegionId region);
  const char* Lie(Pages* pages);

  std::mt19937_64 random_;
  std::map<std::pair<uint64_t, uint64_t>, std::vector<Version>> kept_;  // by region and page
  uint64_t lies_ = 0;
};

}  // namespace nram

#endif  // NRAM_TESTS_UTIL_EVIL_DONOR_H_
