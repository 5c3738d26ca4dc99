#include "client/pool/io.h"

#include <glog/logging.h>

#include <algorithm>
#include <utility>

namespace nram {
namespace {

size_t CheckCount(size_t part_count) {
  CHECK(part_count >= 1 && part_count <= Io::kPartsMax) << part_count << " parts; an Io has 1 to " << Io::kPartsMax;
  return std::max<size_t>(part_count, kReplicasMax);
}

// Runs a whole operation on the calling thread, with parts on its stack.
template <typename Way>
absl::Status RunOn(IoPart* parts, size_t part_count, const IoPlace& place, const IoRequest& request) {
  IoEngine engine(parts, part_count);
  Way way(&engine);
  engine.Reset(place, request, &way, /*blocking=*/true, /*wait_expected=*/false);
  way.Begin();
  engine.RunToEnd();
  return engine.status();
}

}  // namespace

Io::Io(size_t part_count)
    : parts_(new IoPart[CheckCount(part_count)]),
      engine_(parts_.get(), CheckCount(part_count)),
      one_copy_(&engine_),
      copied_(&engine_) {}

Io::~Io() = default;

absl::Status Io::Run(const IoPlace& place, const IoRequest& request) {
  const ChunkRange& range = request.range;
  const bool is_small = range.first / kChunksPerMessage == (range.end() - 1) / kChunksPerMessage;
  if (place.map->copies() != nullptr) {
    if (is_small) {
      IoPart parts[kReplicasMax];
      return RunOn<CopiedIo>(parts, kReplicasMax, place, request);
    }
    IoPart parts[kPartsMax];
    return RunOn<CopiedIo>(parts, kPartsMax, place, request);
  }
  if (is_small) {
    IoPart part;
    return RunOn<OneCopyIo>(&part, 1, place, request);
  }
  IoPart parts[kPartsMax];
  return RunOn<OneCopyIo>(parts, kPartsMax, place, request);
}

void Io::Start(const IoPlace& place, const absl::StatusOr<IoRequest>& request, Callback callback, void* context) {
  const bool copied = place.map->copies() != nullptr;
  callback_ = callback;
  callback_context_ = context;
  engine_.Reset(place, request.ok() ? *request : IoRequest(), copied ? static_cast<IoWay*>(&copied_) : &one_copy_,
                /*blocking=*/false, /*wait_expected=*/callback == nullptr);
  engine_.NoteStatus(request.status());
  copied ? copied_.Begin() : one_copy_.Begin();
  engine_.Go(callback == nullptr ? nullptr : &OnFinished, this);
}

void Io::OnFinished(void* context) {
  Io* const io = static_cast<Io*>(context);
  io->callback_(io, io->callback_context_);
}

absl::Status Io::Wait() {
  engine_.Wait();
  return engine_.status();
}

}  // namespace nram
