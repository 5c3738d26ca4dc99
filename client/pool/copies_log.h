#ifndef NRAM_CLIENT_POOL_COPIES_LOG_H_
#define NRAM_CLIENT_POOL_COPIES_LOG_H_

#include "client/transport/control_client.h"

namespace nram {

// Says in the log when spans begin to lack copies, have all of them again, or are lost. Writing a log may block for as
// long as its reader likes, so only a thread that no page waits for may call this. Not thread-safe.
class CopiesLog {
 public:
  void Note(const CopiesReport& now);

 private:
  CopiesReport said_;
};

}  // namespace nram

#endif  // NRAM_CLIENT_POOL_COPIES_LOG_H_
