#include <glog/logging.h>

#include <array>
#include <cstring>
#include <map>
#include <memory>
#include <set>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/crc32c.h"
#include "memserver/landing_frames.h"
#include "memserver/session.h"
#include "tests/fuzz/any_message.h"
#include "tests/fuzz/input.h"
#include "tests/fuzz/targets.h"

namespace nram {
namespace {

constexpr uint64_t kRegions = 4;
constexpr uint64_t kReservedPages = 16;  // of the lease
constexpr uint64_t kFreePages = 40;      // these included
// Beyond these, requests of an input touch few chunks.
constexpr uint64_t kChunksPerInput = 400;
constexpr int kRequestsPerInput = 64;

// A server's insides, once: one that is nearly full, so that refusals occur too.
struct Insides {
  Insides() {
    uint64_t pages = arena->usage().free_bytes / kPageBytes;
    while (!arena->Reserve(pages, &others)) --pages;
    arena->Unreserve(kFreePages, &others);
  }

  FakeClock clock;
  std::unique_ptr<FrameArena> arena = FrameArena::Create(64 * kMiB, kMiB).value();
  Tenant tenant{0, "local", arena.get()};
  LeaseTable leases{arena.get(), &clock, 10'000};
  PageStore store{arena.get(), &leases};
  LandingFrames landing{arena.get(), 256};
  std::shared_ptr<Lease> lease = leases.Grant({.tenant = &tenant, .id = LeaseId{1}}).value();
  std::vector<std::byte> reply = std::vector<std::byte>(kMessageBytesMax);
  ArenaReservation others;
  uint64_t generation = 0;
};

// The contents that the store must have: a byte for each chunk that is not zero. A page may be unsure: a write to it
// was refused half-way, or had a wrong sum.
struct State {
  std::map<std::pair<uint64_t, uint64_t>, uint8_t> chunks;  // by region and chunk
  std::set<std::pair<uint64_t, uint64_t>> unsure;           // by region and page
};
struct Model : State {
  // The state at each seal, by region and number. A full server may have dropped the version.
  std::map<std::pair<uint64_t, uint32_t>, State> versions;
  // The generation by region and span; an absent one is 0. A write that created it may have failed half-way.
  std::map<std::pair<uint64_t, uint64_t>, uint32_t> generations;
  std::set<std::pair<uint64_t, uint64_t>> unsure_generations;

  uint32_t GenerationOf(uint64_t region, uint64_t span) const {
    const auto it = generations.find({region, span});
    return it == generations.end() ? 0 : it->second;
  }
};

void ForgetRange(Model* model, uint64_t region, const ChunkRange& range) {
  model->chunks.erase(model->chunks.lower_bound({region, range.first}),
                      model->chunks.lower_bound({region, range.end()}));
  // A page that is trimmed whole is known again.
  const uint64_t first = (range.first + kChunksPerPage - 1) / kChunksPerPage;
  const uint64_t end = range.end() / kChunksPerPage;
  if (first < end)
    model->unsure.erase(model->unsure.lower_bound({region, first}), model->unsure.lower_bound({region, end}));
}

// One connection with its requests.
class Driver {
 public:
  explicit Driver(Insides* in)
      : in_(in),
        session_(SessionContext{.store = &in->store,
                                .leases = &in->leases,
                                .landing = &in->landing,
                                .incarnation = 1,
                                .credit = Credit{256, 4096},
                                .tenant = &in->tenant}) {}

  void Hello() {
    MessageHeader hello(HelloRequest{.lease = LeaseId{1}, .generation = ++in_->generation});
    MessageHeader reply;
    CHECK(Begin(&hello, {}));
    CHECK(Execute(hello, {}, &reply));
    CHECK(reply.reason == Reason::kOk);
  }

  // False: the connection is to be closed.
  bool Run(MessageHeader request, const std::vector<ChunkMask>& masks, uint8_t fill, uint8_t step, bool wrong_sum) {
    if (!Begin(&request, masks)) return false;
    std::array<uint32_t, kPagesPerMessage> page_crcs{};
    size_t pages = 0;
    if (request.op == Op::kWrite) {
      pages = request.range().pages();
      Fill(request.range(), masks, fill, step, page_crcs.data());
      if (wrong_sum) page_crcs[fill % pages] ^= 1;
    }
    MessageHeader reply;
    if (!Execute(request, {page_crcs.data(), pages}, &reply)) return false;
    CheckGeneration(request, reply.reason);
    switch (request.op) {
      case Op::kWrite:
        NoteWrite(request, masks, fill, step, wrong_sum, reply.reason);
        break;
      case Op::kRead:
        if (reply.reason == Reason::kOk) CheckRead(StateOf(request), request, reply);
        break;
      case Op::kSeal:
        // The newest one may be sealed again: it remains as it is.
        if (reply.reason == Reason::kOk) {
          const uint32_t number = Raw(request.as<SealRequest>().version);
          model_.versions.try_emplace({Raw(request.region()), number}, model_);
        }
        break;
      case Op::kDropVersion:
        if (reply.reason == Reason::kOk) NoteDrop(request.as<DropVersionRequest>());
        break;
      case Op::kTrim:
        if (reply.reason == Reason::kOk) NoteTrim(request);
        if (reply.reason == Reason::kOtherGeneration) NoteHalfTrim(request);
        break;
      case Op::kDestroy:
        if (reply.reason == Reason::kOk) NoteDestroy(Raw(request.region()));
        break;
      default:
        break;
    }
    return true;
  }

 private:
  bool Begin(MessageHeader* request, const std::vector<ChunkMask>& masks) {
    request->request_id = next_id_++;
    landing_.clear();
    const auto accepted = session_.Begin(*request, {masks, {}}, kMessageBytesMax, &landing_);
    if (!accepted.ok()) return false;
    CHECK(*accepted);
    return true;
  }

  bool Execute(const MessageHeader& request, absl::Span<const uint32_t> page_crcs, MessageHeader* reply) {
    ReplyBuffer buffer{in_->reply.data(), in_->reply.size(), 0};
    if (!session_.Execute(request, page_crcs, &buffer).ok()) return false;
    CHECK(DecodeHeader(buffer.data, reply).ok());
    CHECK_EQ(buffer.used, kMessageHeaderBytes + reply->payload_bytes);
    CHECK(reply->is_reply() && reply->op == request.op && reply->request_id == request.request_id);
    return true;
  }

  static SpanGeneration GenerationOf(const MessageHeader& request) {
    if (request.is<ReadRequest>()) return request.as<ReadRequest>().span_generation;
    if (request.is<WriteRequest>()) return request.as<WriteRequest>().span_generation;
    return request.is<TrimRequest>() ? request.as<TrimRequest>().span_generation : SpanGeneration{};
  }

  // Checks that the server has followed the rule of adr/0014, before the model follows it.
  void CheckGeneration(const MessageHeader& request, Reason reason) const {
    if (request.op != Op::kRead && request.op != Op::kWrite) return;
    if (request.is<ReadRequest>() && request.as<ReadRequest>().version != VersionNumber{}) return;
    if (reason != Reason::kOk && reason != Reason::kOtherGeneration) return;
    const uint64_t region = Raw(request.region());
    const uint64_t first = request.range().first / kChunksPerSpan;
    const uint64_t last = (request.range().end() - 1) / kChunksPerSpan;
    for (const uint64_t span : {first, last}) {
      if (model_.unsure_generations.count({region, span}) > 0) return;
    }
    const uint32_t wanted = Raw(GenerationOf(request));
    const uint32_t present = model_.GenerationOf(region, first);
    const bool is_same = wanted == present && wanted == model_.GenerationOf(region, last);
    const bool creates = (request.flags & kFlagCreate) != 0;
    const bool may_raise = request.op == Op::kWrite && first == last && wanted > present && (creates || present != 0);
    CHECK_EQ(reason == Reason::kOk, is_same || may_raise) << "generation " << wanted << " of " << present;
  }

  // A write has reached the span, and may have created it anew.
  void NoteGeneration(const MessageHeader& request, bool done) {
    const uint64_t region = Raw(request.region());
    const uint64_t span = request.range().first / kChunksPerSpan;
    const uint32_t wanted = Raw(GenerationOf(request));
    const bool known = model_.unsure_generations.count({region, span}) == 0;
    if (known && wanted == model_.GenerationOf(region, span)) return;
    if ((request.flags & kFlagCreate) != 0) {
      const ChunkRange whole{span * kChunksPerSpan, kChunksPerSpan};
      ForgetRange(&model_, region, whole);
      if (!known || !done) NoteUnsure(region, whole);
    }
    if (done) {
      model_.generations[{region, span}] = wanted;
      model_.unsure_generations.erase({region, span});
    } else {
      model_.unsure_generations.insert({region, span});
    }
  }

  void NoteUnsure(uint64_t region, const ChunkRange& range) {
    for (uint64_t i = 0; i < range.pages(); ++i) model_.unsure.insert({region, range.first_page() + i});
  }

  void NoteTrim(const MessageHeader& request) {
    const uint64_t region = Raw(request.region());
    ForgetRange(&model_, region, request.range());
    const uint32_t wanted = Raw(GenerationOf(request));
    const uint64_t end_span = (request.range().end() + kChunksPerSpan - 1) / kChunksPerSpan;
    for (auto it = model_.generations.lower_bound({region, request.range().first / kChunksPerSpan});
         it != model_.generations.end() && it->first < std::pair{region, end_span}; ++it) {
      if (it->second != 0) it->second = std::max(it->second, wanted);
    }
  }

  // Its first steps may have been done.
  void NoteHalfTrim(const MessageHeader& request) {
    const uint64_t region = Raw(request.region());
    for (auto it = model_.chunks.lower_bound({region, request.range().first});
         it != model_.chunks.end() && it->first < std::pair{region, request.range().end()}; ++it) {
      model_.unsure.insert({region, it->first.second / kChunksPerPage});
    }
    const uint64_t end_span = (request.range().end() + kChunksPerSpan - 1) / kChunksPerSpan;
    for (auto it = model_.generations.lower_bound({region, request.range().first / kChunksPerSpan});
         it != model_.generations.end() && it->first < std::pair{region, end_span}; ++it) {
      model_.unsure_generations.insert(it->first);
    }
  }

  void NoteDestroy(uint64_t region) {
    ForgetRange(&model_, region, {0, kRegionChunksMax});
    const auto of_region = [region](auto* set) {
      set->erase(set->lower_bound({region, 0}), set->lower_bound({region + 1, 0}));
    };
    model_.versions.erase(model_.versions.lower_bound({region, 0}), model_.versions.lower_bound({region + 1, 0}));
    of_region(&model_.generations);
    of_region(&model_.unsure_generations);
  }

  // The dropped versions have no holds.
  void NoteDrop(const DropVersionRequest& drop) {
    const uint64_t region = Raw(drop.region);
    model_.versions.erase(model_.versions.lower_bound({region, Raw(drop.first)}),
                          model_.versions.upper_bound({region, Raw(drop.last)}));
  }

  const State& StateOf(const MessageHeader& read) const {
    const VersionNumber version = read.as<ReadRequest>().version;
    if (version == VersionNumber{}) return model_;
    const auto it = model_.versions.find({Raw(read.region()), Raw(version)});
    CHECK(it != model_.versions.end()) << "version " << Raw(version) << " was never sealed, or it was dropped";
    return it->second;
  }

  // Each chunk has one byte, again and again; some have zeros.
  static uint8_t ByteOf(uint64_t chunk, uint8_t fill, uint8_t step) {
    return static_cast<uint8_t>((fill + chunk * step) % 4);
  }

  void Fill(const ChunkRange& range, const std::vector<ChunkMask>& masks, uint8_t fill, uint8_t step,
            uint32_t* page_crcs) {
    // The pieces are the runs of the masks, in order, and may have been merged: so the chunks are filled one by one.
    std::vector<std::byte*> places;
    for (const iovec& piece : landing_.pieces()) {
      CHECK_EQ(piece.iov_len % kChunkBytes, size_t{0});
      for (size_t at = 0; at < piece.iov_len; at += kChunkBytes) {
        places.push_back(static_cast<std::byte*>(piece.iov_base) + at);
      }
    }
    size_t place = 0;
    for (uint64_t i = 0; i < range.pages(); ++i) {
      page_crcs[i] = 0;
      const uint64_t page = range.first_page() + i;
      const ChunkMask mask = masks.empty() ? MaskOfPage(range, page) : masks[i];
      for (uint64_t chunk = 0; chunk < kChunksPerPage; ++chunk) {
        if ((mask >> chunk & 1) == 0) continue;
        CHECK_LT(place, places.size());
        std::byte* const at = places[place++];
        memset(at, ByteOf(page * kChunksPerPage + chunk, fill, step), kChunkBytes);
        page_crcs[i] = Crc32c(page_crcs[i], at, kChunkBytes);
      }
    }
    CHECK_EQ(place, places.size());
  }

  void NoteWrite(const MessageHeader& request, const std::vector<ChunkMask>& masks, uint8_t fill, uint8_t step,
                 bool wrong_sum, Reason reason) {
    const bool done = reason == Reason::kOk;
    // These may end a write half-way; the others end it before it begins.
    if (!done && reason != Reason::kFull && reason != Reason::kDamaged && reason != Reason::kDraining) return;
    NoteGeneration(request, done);
    const uint64_t region = Raw(request.region());
    const ChunkRange range = request.range();
    for (uint64_t i = 0; i < range.pages(); ++i) {
      const uint64_t page = range.first_page() + i;
      const ChunkMask mask = masks.empty() ? MaskOfPage(range, page) : masks[i];
      const std::pair<uint64_t, uint64_t> place{region, page};
      if (mask == 0) continue;
      if (mask == kAllChunks && done) model_.unsure.erase(place);
      if (!done || (wrong_sum && i == fill % range.pages())) model_.unsure.insert(place);
      for (uint64_t chunk = page * kChunksPerPage; chunk < (page + 1) * kChunksPerPage; ++chunk) {
        if ((mask >> chunk % kChunksPerPage & 1) == 0) continue;
        const uint8_t byte = ByteOf(chunk, fill, step);
        if (byte == 0) {
          model_.chunks.erase({region, chunk});
        } else {
          model_.chunks[{region, chunk}] = byte;
        }
      }
    }
  }

  void CheckRead(const State& state, const MessageHeader& request, const MessageHeader& reply) const {
    const uint64_t region = Raw(request.region());
    const ChunkRange range = request.range();
    CHECK(reply.range() == range);
    const std::byte* const payload = in_->reply.data() + kMessageHeaderBytes;
    const auto* const masks = reinterpret_cast<const ChunkMask*>(payload);
    CHECK(CheckTables(reply, {masks, reply.table_bytes()}).ok());
    const uint64_t first_page = range.first_page();
    const uint64_t end_page = first_page + range.pages();
    const auto unsure = state.unsure.lower_bound({region, first_page});
    const bool sure = unsure == state.unsure.end() || *unsure >= std::pair{region, end_page};
    if (sure) CHECK(MatchesChecksum(in_->reply.data(), PayloadCrcOf(reply, payload)));
    const std::byte* at = payload + reply.mask_bytes();
    for (uint64_t chunk = range.first; chunk < range.end(); ++chunk) {
      const uint64_t page = chunk / kChunksPerPage;
      const bool present = !reply.sparse() || (masks[page - first_page] >> chunk % kChunksPerPage & 1) != 0;
      const auto it = state.chunks.find({region, chunk});
      if (sure) {
        const uint8_t expected = it == state.chunks.end() ? 0 : it->second;
        CHECK(present || expected == 0) << "chunk " << chunk << " is lost";
        if (present) {
          CHECK_EQ(std::to_integer<int>(at[0]), expected) << "chunk " << chunk;
          CHECK_EQ(memcmp(at, at + 1, kChunkBytes - 1), 0);
        }
      }
      if (present) at += kChunkBytes;
    }
    CHECK_EQ(at, payload + reply.payload_bytes);
  }

  Insides* const in_;
  Session session_;
  Landing landing_;
  uint64_t next_id_ = 1;
  Model model_;
};

// 16 bytes make one request: small numbers of region, epoch and place, so that requests meet the same data.
void RunOne(const uint8_t* data, Driver* driver, uint64_t* chunks_left, bool* open) {
  FuzzInput input(data, 16);
  static constexpr Op kOps[] = {Op::kWrite, Op::kRead,   Op::kWrite, Op::kTrim,
                                Op::kRead,  Op::kCreate, Op::kWrite, Op::kDestroy};
  const uint8_t op_byte = input.Byte();
  const Op op = op_byte == 255   ? Op::kPing
                : op_byte >= 247 ? Op::kDropVersion
                : op_byte >= 240 ? Op::kSeal
                                 : kOps[op_byte % 8];
  const uint8_t place = input.Byte();
  const uint8_t epoch_byte = input.Byte();
  const uint8_t epoch = epoch_byte % 16;
  AnyFields fields;
  fields.subject = place % kRegions;
  fields.epoch = epoch == 15 ? 2 : epoch == 14 ? 0 : 1;
  if (epoch_byte / 16 >= 10) fields.epoch |= uint64_t{epoch_byte / 16 - 9u} << 32;  // a generation: 1 to 6
  if (op == Op::kRead) fields.last = epoch_byte / 16 == 12 ? 1 : 0;                 // a version
  const uint8_t flag_byte = input.Byte();
  const uint64_t first = input.Byte() % 8 != 7 ? input.Byte() : input.AnyNumber() % kRegionChunksMax;
  const uint8_t count = input.Byte();
  const uint64_t most = op == Op::kTrim ? 4096 : *chunks_left > 0 ? 100 : 4;
  uint64_t chunks = 1 + (count < 240 ? count % 24 : count * uint64_t{17} % 500) % most;
  chunks = std::min(chunks, kRegionChunksMax - first);
  if (HasRange(op)) {
    fields.range = {first, chunks};
    if (op != Op::kTrim) *chunks_left -= std::min(*chunks_left, chunks);
  }
  const uint8_t fill = input.Byte();
  const uint8_t step = input.Byte() % 4;
  if (op == Op::kSeal) fields.last = 1 + count % 8u;
  if (op == Op::kDropVersion) fields.last = (1 + count % 8u + fill % 4u) * uint64_t{1} << 32 | (1 + count % 8u);
  std::vector<ChunkMask> masks;
  bool wrong_sum = false;
  uint8_t flags = 0;
  if (op == Op::kTrim) flags = flag_byte & (kFlagReservation | kFlagWholeFrames);
  if (op == Op::kCreate) flags = flag_byte & kFlagGc;
  if (op == Op::kWrite) {
    flags = flag_byte & (kFlagCreate | kFlagGc | kFlagReservation | kFlagWholeFrames);
    fields.last = uint64_t{input.Byte()} * kPageBytes;
    const uint8_t mask = input.Byte();
    const uint8_t mask_step = input.Byte();
    if (mask != 0) {
      flags |= kFlagSparse;
      const ChunkRange& range = fields.range;
      for (uint64_t i = 0; i < range.pages(); ++i) {
        masks.push_back(MaskOfPage(range, range.first_page() + i) & (mask + i * mask_step));
      }
    }
    wrong_sum = input.Byte() % 32 == 31;
  }
  const MessageHeader request = AnyMessage(op, flags, fields);
  *open = driver->Run(request, masks, fill, step, wrong_sum);
}

}  // namespace

void FuzzSession(const uint8_t* data, size_t size) {
  static Insides* const in = new Insides;
  const ArenaUsage empty = in->arena->usage();
  CHECK(in->arena->Reserve(kReservedPages, &in->lease->reservation));
  {
    Driver driver(in);
    driver.Hello();
    uint64_t chunks_left = kChunksPerInput;
    bool open = true;
    for (int i = 0; i < kRequestsPerInput && size >= 16 && open; ++i, data += 16, size -= 16) {
      RunOne(data, &driver, &chunks_left, &open);
    }
  }
  for (uint64_t id = 0; id < kRegions; ++id)
    CHECK(in->store.DestroyByControl(LeaseId{1}, {RegionId{id}, 0}, true).ok());
  in->arena->Unreserve(~uint64_t{0}, &in->lease->reservation);
  const StoreCounters& counters = in->store.counters();
  CHECK_EQ(counters.regions, 0);
  CHECK_EQ(counters.pages, 0);
  CHECK_EQ(counters.chunks, 0);
  CHECK_EQ(counters.versions.versions, 0);
  CHECK_EQ(counters.versions.bytes, 0);
  const ArenaUsage now = in->arena->usage();
  CHECK_EQ(now.frame_bytes, empty.frame_bytes);
  CHECK_EQ(now.index_bytes, empty.index_bytes);
  CHECK_EQ(now.reserved_bytes, empty.reserved_bytes);
}

}  // namespace nram
