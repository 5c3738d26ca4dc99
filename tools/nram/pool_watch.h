#ifndef NRAM_TOOLS_NRAM_POOL_WATCH_H_
#define NRAM_TOOLS_NRAM_POOL_WATCH_H_

// The display of `nram top`, from two looks at a pool. It only computes.

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "client/transport/control_client.h"
#include "nlohmann/json.hpp"

namespace nram {

// The stored bytes of a region's owner.
struct ClientRoom {
  uint64_t stored_bytes = 0;
  uint64_t parts = 0;  // of regions, one on each server
};

// The kernel's account of a swap area's device since it began (Documentation/block/stat.rst).
struct DeviceAccount {
  uint64_t reads = 0, read_bytes = 0, read_ms = 0;
  uint64_t writes = 0, written_bytes = 0, write_ms = 0;
};
// Parses the text of /sys/block/DEVICE/stat; nothing if it has another form.
std::optional<DeviceAccount> ParseDeviceStat(absl::string_view text);

// One look at a pool.
struct PoolLook {
  struct Donor {
    std::string address;
    absl::StatusOr<ServerStatistics> answer;
    int64_t answered_in_ns = 0;
  };
  int64_t at_ns = 0;  // monotonic
  std::string time;   // for people and scripts: RFC 3339
  std::vector<Donor> donors;
  std::map<std::string, ClientRoom> clients;     // by the name of the client
  std::string clients_missing;                   // why they are not known; "": they are
  std::map<std::string, DeviceAccount> devices;  // of this machine's swap areas, by the area's name
};

// The work of one second.
struct WorkRate {
  double reads = 0, writes = 0, trims = 0;
  double read_bytes = 0, written_bytes = 0;

  void Add(const WorkRate& other);
};

struct DonorView {
  std::string address;
  std::string state;  // "up", "draining", "leaving", "pressed", "restarted"; "away" with an error
  std::string error;
  std::string host;
  ServerCapacity capacity;
  uint64_t clients = 0;
  WorkRate rate;
  double answer_ms = 0;  // how long the look itself took
};

struct ClientView {
  std::string door;  // "mount", "swap", "program"
  std::string name;
  uint64_t stored_bytes = 0;
  double stored_bytes_per_s = 0;  // below 0: it frees
};

struct DeviceView {
  std::string name;
  double reads = 0, writes = 0, read_bytes = 0, written_bytes = 0;  // a second
  double read_ms = 0, write_ms = 0;                                 // the mean of a request; 0: there was none
};

struct PoolView {
  std::string time;
  double seconds = 0;  // between the looks
  std::vector<DonorView> donors;
  size_t silent = 0;
  ServerCapacity total;
  WorkRate rate;
  CopiesReport copies;
  std::vector<ClientView> clients;  // those that store most come first
  std::string clients_missing;
  std::map<std::string, ClientView> doors;  // by door: the sums of their clients; `name` is how many there are
  std::vector<DeviceView> devices;
};

// A server that has restarted between the looks has no rate.
PoolView Compare(const PoolLook& before, const PoolLook& now);

// "mount" or "swap", by a client's name; else "program".
std::string DoorOf(absl::string_view client_name);

nlohmann::json ToJson(const PoolView& view);

// Lines for a screen, each with its tone.
struct WatchLine {
  enum class Tone { kPlain, kTitle, kCare, kBad };
  std::string text;
  Tone tone = Tone::kPlain;
};
// With less than kWideColumns to show, the table of donors has fewer columns and shorter names: those of 80 columns.
inline constexpr size_t kWideColumns = 140;
std::vector<WatchLine> ToLines(const PoolView& view, size_t columns = kWideColumns);

}  // namespace nram

#endif  // NRAM_TOOLS_NRAM_POOL_WATCH_H_
