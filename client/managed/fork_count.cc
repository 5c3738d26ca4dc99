#include "client/managed/fork_count.h"

#include <pthread.h>

#include <atomic>

namespace nram {
namespace {

std::atomic<uint32_t> forks{0};

}  // namespace

uint32_t ForkCount() {
  static const int registered = pthread_atfork(nullptr, nullptr, [] { ++forks; });
  (void)registered;
  return forks.load(std::memory_order_relaxed);
}

}  // namespace nram
