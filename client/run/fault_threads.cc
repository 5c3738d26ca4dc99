#include "client/run/fault_threads.h"

#include <glog/logging.h>
#include <pthread.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "base/mapping.h"
#include "base/status.h"
#include "base/units.h"

namespace nram {

absl::StatusOr<std::unique_ptr<FaultThreads>> FaultThreads::Start(int count, uint64_t window_pages, TaskSpace* space,
                                                                  RunEngine* engine) {
  UniqueFd stop(eventfd(0, EFD_CLOEXEC));
  if (!stop.valid()) return ErrnoStatus(errno, "eventfd");
  auto threads = std::unique_ptr<FaultThreads>(new FaultThreads(space, engine, std::move(stop)));
  for (int i = 0; i < count; ++i) {
    threads->threads_.emplace_back([self = threads.get(), window_pages] { self->Run(window_pages); });
  }
  return threads;
}

FaultThreads::~FaultThreads() {
  const uint64_t one = 1;
  PCHECK(write(stop_.get(), &one, sizeof(one)) == sizeof(one));
  for (std::thread& thread : threads_) thread.join();
}

void FaultThreads::Run(uint64_t window_pages) {
  pthread_setname_np(pthread_self(), "nram-fault");
  absl::StatusOr<Mapping> buffer = Mapping::Anonymous(window_pages * kPageBytes);
  CHECK(buffer.ok()) << buffer.status();
  // One thread is woken for one fault, and always the same one if it is free: its caches are warm.
  const UniqueFd epoll(epoll_create1(EPOLL_CLOEXEC));
  PCHECK(epoll.valid());
  for (const int fd : {space_->fault_fd(), stop_.get()}) {
    epoll_event event = {.events = EPOLLIN, .data = {.fd = fd}};
    if (fd != stop_.get()) event.events |= EPOLLEXCLUSIVE;
    PCHECK(epoll_ctl(epoll.get(), EPOLL_CTL_ADD, fd, &event) == 0);
  }
  while (true) {
    epoll_event events[2];
    const int count = epoll_wait(epoll.get(), events, 2, -1);
    PCHECK(count >= 0 || errno == EINTR);
    for (int i = 0; i < count; ++i) {
      if (events[i].data.fd == stop_.get()) return;
      if (RunFault fault; space_->ReadFault(&fault)) {
        engine_->HandleFault(fault, absl::MakeSpan(buffer->data(), buffer->size()));
      }
    }
  }
}

}  // namespace nram
