#include <ares.h>
#include <netdb.h>
#include <poll.h>

#include <algorithm>
#include <array>
#include <cstdlib>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/status.h"
#include "members/dns.h"

namespace nram {
namespace {

constexpr int kTryMs = 1'000;
constexpr int kTries = 3;

struct Asked {
  bool done = false;
  int status = ARES_ETIMEOUT;
  DnsAnswer answer;
};

void Take(const ares_addrinfo* found, DnsAnswer* answer) {
  answer->ttl_s = INT32_MAX;
  for (const ares_addrinfo_node* node = found->nodes; node != nullptr; node = node->ai_next) {
    char text[NI_MAXHOST];
    if (answer->addresses.size() >= kPoolServersMax ||
        getnameinfo(node->ai_addr, node->ai_addrlen, text, sizeof text, nullptr, 0, NI_NUMERICHOST) != 0) {
      continue;
    }
    answer->addresses.push_back(text);
    answer->ttl_s = std::min<int64_t>(answer->ttl_s, std::max(node->ai_ttl, 0));
  }
}

void OnAnswer(void* arg, int status, int, ares_addrinfo* found) {
  auto* const asked = static_cast<Asked*>(arg);
  asked->done = true;
  asked->status = status;
  if (found == nullptr) return;
  Take(found, &asked->answer);
  ares_freeaddrinfo(found);
}

// Until `asked` is done, or the deadline.
void Serve(ares_channel channel, const Asked& asked, int64_t deadline_ns) {
  while (!asked.done && MonotonicNs() < deadline_ns) {
    std::array<ares_socket_t, ARES_GETSOCK_MAXNUM> sockets;
    const int bits = ares_getsock(channel, sockets.data(), sockets.size());
    std::array<pollfd, ARES_GETSOCK_MAXNUM> waits;
    nfds_t count = 0;
    for (size_t i = 0; i < sockets.size(); ++i) {
      const bool reads = ARES_GETSOCK_READABLE(bits, i);
      const bool writes = ARES_GETSOCK_WRITABLE(bits, i);
      if (!reads && !writes) continue;
      waits[count++] = {sockets[i], static_cast<short>((reads ? POLLIN : 0) | (writes ? POLLOUT : 0)), 0};
    }
    // In steps, so that c-ares notices timeouts.
    timeval most = {0, 100'000};
    timeval wait;
    const timeval* const next = ares_timeout(channel, &most, &wait);
    const int64_t left_ms = (deadline_ns - MonotonicNs()) / kNsPerMs + 1;
    const int64_t wait_ms = next->tv_sec * 1'000 + next->tv_usec / 1'000 + 1;
    poll(waits.data(), count, static_cast<int>(std::clamp<int64_t>(std::min(wait_ms, left_ms), 0, 1'000)));
    for (nfds_t i = 0; i < count; ++i) {
      const bool readable = (waits[i].revents & (POLLIN | POLLERR | POLLHUP)) != 0;
      const bool writable = (waits[i].revents & POLLOUT) != 0;
      ares_process_fd(channel, readable ? waits[i].fd : ARES_SOCKET_BAD, writable ? waits[i].fd : ARES_SOCKET_BAD);
    }
    ares_process_fd(channel, ARES_SOCKET_BAD, ARES_SOCKET_BAD);  // ends the queries that have timed out
  }
}

absl::Status Make(ares_channel* channel) {
  static const int library = ares_library_init(ARES_LIB_INIT_ALL);
  ares_options options{};
  options.timeout = kTryMs;
  options.tries = kTries;
  int made = library;
  if (made == ARES_SUCCESS) made = ares_init_options(channel, &options, ARES_OPT_TIMEOUTMS | ARES_OPT_TRIES);
  if (made != ARES_SUCCESS) return absl::UnavailableError(absl::StrCat("c-ares: ", ares_strerror(made)));
  const char* const servers = std::getenv("NRAM_DNS_SERVERS_FOR_TEST");
  if (servers != nullptr) ares_set_servers_ports_csv(*channel, servers);
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<DnsAnswer> LookUpByAres(const std::string& name, int64_t deadline_ns) {
  // Each lookup opens a new channel: the machine's resolvers may have changed.
  ares_channel channel;
  NRAM_RETURN_IF_ERROR(Make(&channel));
  Asked asked;
  ares_addrinfo_hints hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = ARES_AI_NOSORT;
  ares_getaddrinfo(channel, name.c_str(), nullptr, &hints, &OnAnswer, &asked);
  Serve(channel, asked, deadline_ns);
  ares_destroy(channel);  // ends the queries that are under way
  if (asked.status == ARES_SUCCESS) return asked.answer;
  if (asked.status == ARES_ENOTFOUND || asked.status == ARES_ENODATA) {
    return absl::NotFoundError("the name has no address");
  }
  return absl::UnavailableError(absl::StrCat("the resolver does not answer (", ares_strerror(asked.status), ")"));
}

}  // namespace nram
