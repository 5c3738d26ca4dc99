#ifndef NRAM_MEMSERVER_SURROUNDINGS_H_
#define NRAM_MEMSERVER_SURROUNDINGS_H_

#include <cstdint>
#include <functional>
#include <string>

#include "base/host/host_memory.h"

namespace nram {

// The facts in control's answers that the core does not know: about the process, its sockets and its host.
struct Surroundings {
  std::string address;      // of the control plane, for people
  int data_port = 0;        // 0: none
  std::string data_socket;  // empty: none
  uint64_t pid = 0;
  uint64_t uptime_ms = 0;
  uint64_t resident_bytes = 0;
  uint64_t connections = 0;
  uint64_t connections_closed_for_error = 0;
  std::string boot_id;
  std::string hostname;
  std::string pretended_host;  // empty: none
  std::string domain;          // empty: none
  uint64_t reserve_bytes = 0;  // the host reserve
  HostMemory memory;           // zeros if unreadable
};

// Called by several threads at once. May read the kernel's files.
using LookAround = std::function<Surroundings()>;

}  // namespace nram

#endif  // NRAM_MEMSERVER_SURROUNDINGS_H_
