#include "tests/sim/fibers.h"

#include <glog/logging.h>
#include <sys/mman.h>

#include <utility>
#include <vector>

namespace nram::sim {
namespace {

constexpr size_t kStackBytes = 512 << 10;

Fibers* current = nullptr;

}  // namespace

Fibers::Fibers(World* world) : world_(world) {
  CHECK(current == nullptr);
  current = this;
}

Fibers::~Fibers() {
  CHECK(running_ == nullptr);
  for (auto& [id, fiber] : fibers_) Free(fiber.get());
  current = nullptr;
}

Fibers* Fibers::Current() { return current; }

void Fibers::Free(Fiber* fiber) {
  world_->Cancel(fiber->timer);
  if (fiber->stack != nullptr) munmap(std::exchange(fiber->stack, nullptr), kStackBytes);
}

HostId Fibers::host() const { return running_->host; }

Fibers::Id Fibers::Start(HostId host, std::function<void()> body) {
  auto fiber = std::make_unique<Fiber>();
  const Id id = fiber->id = next_++;
  fiber->host = host;
  fiber->body = std::move(body);
  void* const stack =
      mmap(nullptr, kStackBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  PCHECK(stack != MAP_FAILED);
  fiber->stack = static_cast<char*>(stack);
  PCHECK(getcontext(&fiber->context) == 0);
  fiber->context.uc_stack.ss_sp = stack;
  fiber->context.uc_stack.ss_size = kStackBytes;
  fiber->context.uc_link = nullptr;
  makecontext(&fiber->context, &Fibers::Enter, 0);
  fiber->timer = world_->After(0, host, [this, id] { Resume(id); });
  fibers_.emplace(id, std::move(fiber));
  return id;
}

void Fibers::Enter() {
  Fiber* const fiber = current->running_;
  fiber->body();
  fiber->body = nullptr;
  fiber->over = true;
  current->Wake(fiber);
  current->Leave();
  LOG(FATAL) << "a fiber that is over was resumed";
}

void Fibers::Resume(Id id) {
  const auto it = fibers_.find(id);
  if (it == fibers_.end() || it->second->dead) return;
  Fiber* const fiber = it->second.get();
  fiber->timer = 0;
  ucontext_t here;
  fiber->back = &here;
  Fiber* const before = std::exchange(running_, fiber);
  PCHECK(swapcontext(&here, &fiber->context) == 0);
  running_ = before;
  if (!fiber->over) return;
  Free(fiber);
  fibers_.erase(id);
}

void Fibers::Leave() {
  Fiber* const fiber = running_;
  PCHECK(swapcontext(&fiber->context, fiber->back) == 0);
}

bool Fibers::WaitFor(const void* what, int64_t time_ns) {
  CHECK(running_ != nullptr) << "only fibers wait in a simulation";
  Fiber* const fiber = running_;
  fiber->waits_for = what;
  fiber->woken = false;
  fiber->timer = world_->At(time_ns, fiber->host, [this, id = fiber->id] { Resume(id); });
  Leave();
  fiber->waits_for = nullptr;
  return fiber->woken;
}

void Fibers::Wake(const void* what) {
  if (what == nullptr) return;
  for (auto& [id, fiber] : fibers_) {
    if (fiber->waits_for != what || fiber->woken || fiber->dead) continue;
    fiber->woken = true;
    world_->Cancel(fiber->timer);
    fiber->timer = world_->After(0, fiber->host, [this, id = id] { Resume(id); });
  }
}

void Fibers::KillAll(HostId host) {
  for (auto& [id, fiber] : fibers_) {
    if (fiber->host == host) fiber->dead = true;
  }
  if (running_ != nullptr && running_->dead) Leave();
}

}  // namespace nram::sim
