#include "client/pool/copies_log.h"

#include <glog/logging.h>

#include <utility>

namespace nram {

void CopiesLog::Note(const CopiesReport& now) {
  const CopiesReport before = std::exchange(said_, now);
  if (now.lost > before.lost) {
    LOG(ERROR) << now.lost << " spans of 1 MiB have lost all their copies: reads there fail";
  }
  if (before.lacking() == 0 && now.lacking() > 0) {
    LOG(WARNING) << now.lacking() << " of " << now.lacking() + now.in_sync
                 << " spans have too few copies: restoring them";
  }
  if (before.lacking() > 0 && now.lacking() == 0) LOG(INFO) << "all spans have all their copies again";
}

}  // namespace nram
