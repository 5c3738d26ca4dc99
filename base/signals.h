#ifndef NRAM_BASE_SIGNALS_H_
#define NRAM_BASE_SIGNALS_H_

#include <pthread.h>
#include <signal.h>

namespace nram {

// Blocks all signals for the calling thread while it lives. Threads that the caller starts meanwhile block them for
// good: signals are for the program's own threads.
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

// The signals that ask a program to end, without those that its starter has told it to ignore (nohup, for example).
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
