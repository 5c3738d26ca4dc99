#include "client/memory/streams.h"

#include <algorithm>

namespace nram {
namespace {

// A stream whose fault brings this many pages is sure enough: the next window is fetched too.
constexpr uint64_t kAheadFrom = 16;
constexpr uint32_t kWindowsOnTrust = 16;
// After this many faults of other streams, a stream's place may be given to another one; first writes do not continue
// it.
constexpr uint64_t kStale = 32;
// Pages that first writes may leave out, besides an eighth of the last run.
constexpr int64_t kLeftOut = 1;
// After kSureAfter faults in a row that left no page out, all pages that are let through count as written. Until then a
// run has at most kUnsureBytes: each page of it is summed up while its writer waits.
constexpr uint64_t kSureAfter = 20;
constexpr uint64_t kUnsureBytes = 256 * kKiB;

// Each page of a stream's window makes the stream younger by this many faults: streams with large windows fault seldom,
// and random accesses must not take their places.
constexpr uint64_t kYouthOfPage = 4;

// How far `page` lies beyond `from` in the direction of `step`.
int64_t Beyond(uint64_t from, uint64_t page, int step) { return static_cast<int64_t>(page - from) * step; }

}  // namespace

uint64_t Streams::KeptUntil(const Stream& stream) {
  return stream.stamp + (stream.step == 0 ? 0 : kYouthOfPage * stream.degree);
}

bool Streams::Writable(Stream* stream) {
  if (!stream->writes) return false;
  // Writes to pages that are placed writable raise no fault. One window in kWindowsOnTrust is placed protected, to see
  // whether the stream still writes.
  if (++stream->windows % kWindowsOnTrust == 0) stream->writes = false;
  return stream->writes;
}

Run Streams::Clip(const StreamArea& area, uint64_t first, uint64_t count, int step) const {
  if (first >= area.area_pages) return {0, 0, 1};  // also below zero
  const uint64_t most = step > 0 ? area.area_pages - first : first + 1;
  return {first, std::min({count, most, most_pages()}), step};
}

StreamPlan Streams::OnFault(const StreamArea& area, uint64_t page, bool write) {
  const ReadAhead mode = area.read_ahead.load(std::memory_order_relaxed);
  if (mode == ReadAhead::kNever) return {.demand = {page, 1, 1}, .writable = write};
  MutexLock lock(&mu_);
  Stream* found = nullptr;
  Stream* oldest = &streams_[0];
  for (Stream& stream : streams_) {
    if (KeptUntil(stream) < KeptUntil(*oldest)) oldest = &stream;
    // If the page may belong to several streams, the one that was there last.
    if (stream.area != &area || (found != nullptr && stream.stamp < found->stamp)) continue;
    if (stream.step == 0) {
      // One fault so far, at next - 1: the second shows the direction.
      if (page == stream.next || page + 2 == stream.next) found = &stream;
    } else {
      // Pages that were here already make no faults, so the stream may have jumped a little.
      const int64_t jump = Beyond(stream.next, page, stream.step);
      if (jump >= 0 && jump < static_cast<int64_t>(std::min(most_pages(), 2 * stream.degree))) found = &stream;
    }
  }
  if (found == nullptr) {
    const bool sure = mode == ReadAhead::kSequential;
    *oldest = {&area, page + 1, sure ? most_pages() : 1, sure ? 1 : 0, write, 0, ++clock_};
    found = oldest;
  } else {
    if (found->step == 0) found->step = page == found->next ? 1 : -1;
    // Another thread may come by here, long after the one that wrote.
    if (clock_ - found->stamp > kStale) found->writes = false;
    found->degree = std::min(most_pages(), found->degree * 4);
    found->writes |= write;
    found->stamp = ++clock_;
  }
  StreamPlan plan;
  plan.writable = Writable(found) || write;
  plan.demand = Clip(area, page, found->degree, found->step == 0 ? 1 : found->step);
  if (found->step != 0) {
    found->next = page + found->step * plan.demand.count;
    if (found->degree >= std::min(kAheadFrom, most_pages())) {
      plan.ahead = Clip(area, found->next, std::min(most_pages(), 2 * found->degree), found->step);
    }
  }
  return plan;
}

StreamPlan Streams::OnAheadUsed(const StreamArea& area, const Run& window) {
  MutexLock lock(&mu_);
  for (Stream& stream : streams_) {
    if (stream.area != &area || stream.step != window.step || stream.next != window.first) continue;
    stream.next = window.first + stream.step * window.count;
    stream.degree = std::min(most_pages(), 2 * stream.degree);
    stream.stamp = ++clock_;
    return {.ahead = Clip(area, stream.next, stream.degree, stream.step), .writable = Writable(&stream)};
  }
  return {};
}

WritePlan Streams::OnFirstWrite(const StreamArea& area, uint64_t page) {
  if (area.read_ahead.load(std::memory_order_relaxed) == ReadAhead::kNever) return {{page, 1, 1}, false};
  MutexLock lock(&mu_);
  for (Stream& stream : streams_) {
    if (stream.area != &area) continue;
    const int step = stream.step == 0 ? 1 : stream.step;
    const int64_t left = Beyond(page, stream.next, step);
    if (left <= 0 || left > static_cast<int64_t>(2 * most_pages())) continue;
    stream.writes = true;
    return {Clip(area, page, static_cast<uint64_t>(left), step), true};
  }
  Writer* const found = FindWriter(area, page);
  if (found != nullptr) return Continue(found, area, page);
  const auto oldest = std::min_element(writers_.begin(), writers_.end(),
                                       [](const Writer& a, const Writer& b) { return a.stamp < b.stamp; });
  *oldest = {&area, page + 1, 1, 0, 0, ++writers_clock_};
  return {{page, 1, 1}, false};
}

Streams::Writer* Streams::FindWriter(const StreamArea& area, uint64_t page) {
  Writer* found = nullptr;
  for (Writer& writer : writers_) {
    if (writer.area != &area || (found != nullptr && writer.stamp < found->stamp)) continue;
    if (writers_clock_ - writer.stamp > kStale) continue;
    // One fault so far, at next - 1: the second shows the direction. Later, part of the last run may not have been let
    // through: that is no gap, but the same run.
    const bool down = writer.step < 0 || (writer.step == 0 && page < writer.next - 1);
    const int64_t gap =
        writer.step == 0 && down ? Beyond(writer.next - 2, page, -1) : Beyond(writer.next, page, down ? -1 : 1);
    const auto degree = static_cast<int64_t>(writer.degree);
    if (gap >= -degree && gap <= kLeftOut + degree / 8) found = &writer;
  }
  return found;
}

WritePlan Streams::Continue(Writer* writer, const StreamArea& area, uint64_t page) {
  writer->stamp = ++writers_clock_;
  if (writer->step == 0) {
    if (page == writer->next - 1) return {{page, 1, 1}, false};  // the same one again
    writer->step = page < writer->next ? -1 : 1;
    if (writer->step < 0) writer->next -= 2;
  }
  const int64_t gap = Beyond(writer->next, page, writer->step);
  const auto is_sure = [&] { return writer->straight >= kSureAfter; };
  if (gap < 0) return {Clip(area, page, static_cast<uint64_t>(-gap), writer->step), is_sure()};
  writer->straight = gap == 0 ? writer->straight + 1 : 0;
  const uint64_t most =
      is_sure() ? most_pages() : std::min(most_pages(), std::max<uint64_t>(1, kUnsureBytes / area.page_bytes));
  writer->degree = std::min(most, 2 * writer->degree);
  writer->next = page + writer->step * writer->degree;
  return {Clip(area, page, writer->degree, writer->step), is_sure()};
}

void Streams::Forget(const StreamArea& area) {
  MutexLock lock(&mu_);
  for (Stream& stream : streams_) {
    if (stream.area == &area) stream = {};
  }
  for (Writer& writer : writers_) {
    if (writer.area == &area) writer = {};
  }
}

}  // namespace nram
