#ifndef NRAM_TESTS_SIM_FIBERS_H_
#define NRAM_TESTS_SIM_FIBERS_H_

// Programs whose calls block, in virtual time. Each has a stack of its own, runs when an event of its host resumes it,
// and leaves the processor when it waits. fiber_waits.cc makes the product's waits wait here.

#include <ucontext.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>

#include "tests/sim/world.h"

namespace nram::sim {

// One thread; at most one object at a time. The objects on the stack of a fiber that never ends are never destroyed.
class Fibers {
 public:
  using Id = uint64_t;

  // `world` outlives it.
  explicit Fibers(World* world);
  ~Fibers();
  Fibers(const Fibers&) = delete;
  Fibers& operator=(const Fibers&) = delete;

  // Null: there is none.
  static Fibers* Current();
  // A fiber runs.
  static bool InOne() { return Current() != nullptr && Current()->running_ != nullptr; }

  // Runs `body` from the host's next event on.
  Id Start(HostId host, std::function<void()> body);
  bool IsOver(Id id) const { return !fibers_.contains(id); }
  // The host's fibers never run again. A fiber that runs just now does not return from this.
  void KillAll(HostId host);

  // --- Calls of the running fiber.
  HostId host() const;
  void SleepUntil(int64_t time_ns) { (void)WaitFor(nullptr, time_ns); }
  void Sleep(int64_t ns) { SleepUntil(world_->NowNs() + ns); }
  // Returns true when the fiber is woken for `what`, false at that time.
  bool WaitFor(const void* what, int64_t time_ns);

  // Any caller may wake: resumes the fibers that wait for `what`, soon.
  void Wake(const void* what);
  World* world() const { return world_; }

 private:
  struct Fiber {
    Id id = 0;
    HostId host = World::kNobody;
    std::function<void()> body;
    char* stack = nullptr;
    ucontext_t context;
    ucontext_t* back = nullptr;  // the context that has resumed it
    const void* waits_for = nullptr;
    World::Timer timer = 0;
    bool woken = false;
    bool dead = false;
    bool over = false;
  };

  static void Enter();
  void Resume(Id id);
  void Leave();  // the running fiber's
  void Free(Fiber* fiber);

  World* const world_;
  std::map<Id, std::unique_ptr<Fiber>> fibers_;
  Fiber* running_ = nullptr;
  Id next_ = 1;
};

}  // namespace nram::sim

#endif  // NRAM_TESTS_SIM_FIBERS_H_
