#ifndef NRAM_BASE_SIGNALS_H_
#define NRAM_BASE_SIGNALS_H_

#include <pthread.h>
#include <signal.h>

namespace nram {

// While it lives, the calling thread blocks all signals; threads that it starts meanwhile do so for good: signals are
// for the program's own threads.
class SignalsBlocked {
 public:
  SignalsBlocked() {
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before_);
  }
  ~SignalsBlocked() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  SignalsBlocked(const SignalsBlocked&) = delete;
  SignalsBlocked& operator=(const SignalsBlocked&) = delete;

 private:
  sigset_t before_;
};

// Those that ask a program to end, but not what whoever started it has had ignored (nohup, say).
inline sigset_t EndingSignals() {
  sigset_t ending;
  sigemptyset(&ending);
  for (const int number : {SIGTERM, SIGINT, SIGHUP}) {
    struct sigaction now {};
    if (sigaction(number, nullptr, &now) == 0 && now.sa_handler != SIG_IGN) sigaddset(&ending, number);
  }
  return ending;
}

}  // namespace nram

#endif  // NRAM_BASE_SIGNALS_H_
