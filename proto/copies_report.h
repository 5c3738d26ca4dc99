#ifndef NRAM_PROTO_COPIES_REPORT_H_
#define NRAM_PROTO_COPIES_REPORT_H_

#include <algorithm>
#include <cstdint>

namespace nram {

// The spans of a client's regions of several copies, in the whole pool.
struct CopiesReport {
  uint64_t client = 0;     // tells clients apart; see control.proto
  uint64_t in_sync = 0;    // as many copies as wanted
  uint64_t degraded = 0;   // fewer
  uint64_t repairing = 0;  // a copy is catching up
  uint64_t lost = 0;       // no copy of the stored pages is left, until they are written anew
  uint64_t moving = 0;     // a part of in_sync: a copy is on a leaving server
  uint64_t made = 0;       // copies that were made anew or moved, so far
  uint64_t left_ms = 0;    // an estimate of how long repair and moves still take; 0: nothing is left, or it is unknown
  uint64_t wanted = 0;     // copies that a span is to have; the fewest, where regions differ. 0: it is not told
  uint64_t done = 0;       // a part of `made`: since nothing was left to be repaired or moved
  uint64_t reserved_bytes = 0;  // the server's own figure: room reserved there for the client

  // No client has more spans. Sums over all clients are far from their end.
  static constexpr uint64_t kMost = uint64_t{1} << 42;

  // Spans that are to be repaired or moved.
  uint64_t left() const { return degraded + repairing + moving; }
  // Spans that have fewer copies than they are to have.
  uint64_t lacking() const { return degraded + repairing; }
  // Both have lost as much, and both or neither lack copies.
  bool IsAsWellAs(const CopiesReport& other) const {
    return lost == other.lost && (lacking() == 0) == (other.lacking() == 0);
  }
  friend bool operator==(const CopiesReport&, const CopiesReport&) = default;
};

// The same as a message of the control plane, v1::Copies.
template <typename Message>
void ToMessage(const CopiesReport& report, Message* message) {
  message->set_client(report.client);
  message->set_in_sync(report.in_sync);
  message->set_degraded(report.degraded);
  message->set_repairing(report.repairing);
  message->set_lost(report.lost);
  message->set_moving(report.moving);
  message->set_made(report.made);
  message->set_left_ms(report.left_ms);
  message->set_wanted(report.wanted);
  message->set_done(report.done);
  message->set_reserved_bytes(report.reserved_bytes);
}

// Whatever the peer has told, counts are kMost at most.
template <typename Message>
CopiesReport CopiesFromMessage(const Message& message) {
  const auto bounded = [](uint64_t told) { return std::min(told, CopiesReport::kMost); };
  return {.client = message.client(),
          .in_sync = bounded(message.in_sync()),
          .degraded = bounded(message.degraded()),
          .repairing = bounded(message.repairing()),
          .lost = bounded(message.lost()),
          .moving = bounded(message.moving()),
          .made = bounded(message.made()),
          .left_ms = bounded(message.left_ms()),
          .wanted = bounded(message.wanted()),
          .done = bounded(message.done()),
          .reserved_bytes = message.reserved_bytes()};
}

}  // namespace nram

#endif  // NRAM_PROTO_COPIES_REPORT_H_
