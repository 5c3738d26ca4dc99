#include "fsd/fuse_worker.h"

namespace nram {
namespace {

thread_local FuseWorker* current_worker = nullptr;

}  // namespace

FuseWorker::FuseWorker() : memory_(Mapping::Anonymous(kMemoryBytes).value()) {}

FuseWorker* FuseWorker::Current() { return current_worker; }
void FuseWorker::MakeCurrent() { current_worker = this; }

}  // namespace nram
