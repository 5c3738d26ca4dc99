#include "tools/nram/pool_watch.h"

#include <algorithm>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "base/clock.h"
#include "base/units.h"
#include "tools/nram/copies_report.h"

namespace nram {
namespace {

constexpr uint64_t kSectorBytes = 512;

// The rate of a counter; 0 if it fell, because another process counts.
double Rate(uint64_t before, uint64_t now, double seconds) {
  return now <= before || seconds <= 0 ? 0 : static_cast<double>(now - before) / seconds;
}

WorkRate RateOf(const ServerStatistics& before, const ServerStatistics& now, double seconds) {
  if (before.incarnation != now.incarnation) return {};
  const auto rate = [&](const char* name) { return Rate(CounterOf(before, name), CounterOf(now, name), seconds); };
  return {rate("reads"), rate("writes"), rate("trims"), rate("bytes_read"), rate("bytes_written")};
}

void Add(const ServerCapacity& part, ServerCapacity* sum) {
  sum->donated_bytes += part.donated_bytes;
  sum->used_bytes += part.used_bytes;
  sum->reserved_bytes += part.reserved_bytes;
  sum->free_bytes += part.free_bytes;
  sum->overhead_bytes += part.overhead_bytes;
  sum->asked_back_bytes += part.asked_back_bytes;
}

std::string StateOf(const ServerCapacity& capacity, bool restarted) {
  if (restarted) return "restarted";
  if (capacity.leaving) return "leaving";
  if (capacity.draining) return "draining";
  return capacity.pressed ? "pressed" : "up";
}

DonorView ViewOf(const PoolLook::Donor* before, const PoolLook::Donor& now, double seconds) {
  DonorView view;
  view.address = now.address;
  view.answer_ms = static_cast<double>(now.answered_in_ns) / kNsPerMs;
  if (!now.answer.ok()) {
    view.state = "away";
    view.error = std::string(now.answer.status().message());
    return view;
  }
  const bool known = before != nullptr && before->answer.ok();
  view.state = StateOf(now.answer->capacity, known && before->answer->incarnation != now.answer->incarnation);
  view.host = now.answer->host.hostname;
  view.capacity = now.answer->capacity;
  view.clients = CounterOf(*now.answer, "leases");
  if (known) view.rate = RateOf(*before->answer, *now.answer, seconds);
  return view;
}

DeviceView ViewOf(const std::string& name, const DeviceAccount& before, const DeviceAccount& now, double seconds) {
  const auto mean = [](uint64_t ms_before, uint64_t ms_now, uint64_t count_before, uint64_t count_now) {
    return count_now <= count_before || ms_now < ms_before
               ? 0
               : static_cast<double>(ms_now - ms_before) / static_cast<double>(count_now - count_before);
  };
  return {name,
          Rate(before.reads, now.reads, seconds),
          Rate(before.writes, now.writes, seconds),
          Rate(before.read_bytes, now.read_bytes, seconds),
          Rate(before.written_bytes, now.written_bytes, seconds),
          mean(before.read_ms, now.read_ms, before.reads, now.reads),
          mean(before.write_ms, now.write_ms, before.writes, now.writes)};
}

void CompareClients(const PoolLook& before, const PoolLook& now, PoolView* view) {
  view->clients_missing = now.clients_missing;
  std::map<std::string, size_t> counts;
  for (const auto& [name, room] : now.clients) {
    ClientView client{DoorOf(name), name, room.stored_bytes, 0};
    const auto it = before.clients.find(name);
    if (it != before.clients.end() && view->seconds > 0) {
      client.stored_bytes_per_s =
          (static_cast<double>(room.stored_bytes) - static_cast<double>(it->second.stored_bytes)) / view->seconds;
    }
    ClientView& door = view->doors[client.door];
    door.door = client.door;
    door.name = absl::StrCat(++counts[client.door]);
    door.stored_bytes += client.stored_bytes;
    door.stored_bytes_per_s += client.stored_bytes_per_s;
    view->clients.push_back(std::move(client));
  }
  std::stable_sort(view->clients.begin(), view->clients.end(),
                   [](const ClientView& a, const ClientView& b) { return a.stored_bytes > b.stored_bytes; });
}

nlohmann::json ToJson(const WorkRate& rate) {
  return {{"reads", rate.reads},
          {"writes", rate.writes},
          {"trims", rate.trims},
          {"read_bytes", rate.read_bytes},
          {"written_bytes", rate.written_bytes}};
}

nlohmann::json ToJson(const ServerCapacity& capacity) {
  return {{"donated_bytes", capacity.donated_bytes},   {"used_bytes", capacity.used_bytes},
          {"reserved_bytes", capacity.reserved_bytes}, {"free_bytes", capacity.free_bytes},
          {"overhead_bytes", capacity.overhead_bytes}, {"asked_back_bytes", capacity.asked_back_bytes}};
}

// "12.3 MiB/s", "" for nothing.
std::string PerSecond(double bytes) { return bytes < 1 ? "-" : FormatByteSize(static_cast<uint64_t>(bytes)) + "/s"; }

std::string Signed(double bytes_per_s) {
  return bytes_per_s < 0 ? "-" + PerSecond(-bytes_per_s) : PerSecond(bytes_per_s);
}

// The end of a name says more than its beginning: unix:/run/user/1000/nram/0.socket.
std::string Shortened(const std::string& name, size_t width) {
  return name.size() <= width ? name : absl::StrCat("..", name.substr(name.size() - width + 2));
}

// In 80 columns.
void AddDonorsNarrow(const PoolView& view, std::vector<WatchLine>* lines) {
  constexpr char kTable[] = "%-20s %-10s %10s %12s %12s %9s";
  constexpr size_t kNameWidth = 20;
  lines->push_back(
      {absl::StrFormat(kTable, "DONOR", "STATE", "FREE", "READ", "WRITTEN", "ANSWER"), WatchLine::Tone::kTitle});
  for (const DonorView& donor : view.donors) {
    const std::string name = Shortened(donor.address, kNameWidth);
    if (donor.state == "away") {
      lines->push_back({absl::StrFormat("%-20s %-10s %s", name, donor.state, donor.error), WatchLine::Tone::kBad});
      continue;
    }
    lines->push_back({absl::StrFormat(kTable, name, donor.state, FormatByteSize(donor.capacity.free_bytes),
                                      PerSecond(donor.rate.read_bytes), PerSecond(donor.rate.written_bytes),
                                      absl::StrFormat("%.1f ms", donor.answer_ms)),
                      donor.state == "up" ? WatchLine::Tone::kPlain : WatchLine::Tone::kCare});
  }
}

void AddDonors(const PoolView& view, std::vector<WatchLine>* lines) {
  constexpr char kTable[] = "%-28s %-10s %10s %10s %10s %8s %12s %12s %9s %9s %8s";
  lines->push_back({absl::StrFormat(kTable, "DONOR", "STATE", "DONATED", "USED", "FREE", "CLIENTS", "READ", "WRITTEN",
                                    "READS/S", "WRITES/S", "ANSWER"),
                    WatchLine::Tone::kTitle});
  for (const DonorView& donor : view.donors) {
    if (donor.state == "away") {
      lines->push_back(
          {absl::StrFormat("%-28s %-10s %s", donor.address, donor.state, donor.error), WatchLine::Tone::kBad});
      continue;
    }
    lines->push_back(
        {absl::StrFormat(kTable, donor.address, donor.state, FormatByteSize(donor.capacity.donated_bytes),
                         FormatByteSize(donor.capacity.used_bytes), FormatByteSize(donor.capacity.free_bytes),
                         absl::StrCat(donor.clients), PerSecond(donor.rate.read_bytes),
                         PerSecond(donor.rate.written_bytes), absl::StrFormat("%.0f", donor.rate.reads),
                         absl::StrFormat("%.0f", donor.rate.writes), absl::StrFormat("%.1f ms", donor.answer_ms)),
         donor.state == "up" ? WatchLine::Tone::kPlain : WatchLine::Tone::kCare});
  }
}

void AddClients(const PoolView& view, std::vector<WatchLine>* lines) {
  lines->push_back({""});
  if (!view.clients_missing.empty()) {
    lines->push_back({absl::StrCat("clients: unknown, ", view.clients_missing), WatchLine::Tone::kCare});
    return;
  }
  lines->push_back(
      {absl::StrFormat("%-10s %12s %14s  %s", "DOOR", "STORED", "CHANGE", "CLIENT"), WatchLine::Tone::kTitle});
  for (const auto& [name, door] : view.doors) {
    lines->push_back({absl::StrFormat("%-10s %12s %14s  all %s", name, FormatByteSize(door.stored_bytes),
                                      Signed(door.stored_bytes_per_s), door.name)});
  }
  for (const ClientView& client : view.clients) {
    lines->push_back({absl::StrFormat("%-10s %12s %14s  %s", client.door, FormatByteSize(client.stored_bytes),
                                      Signed(client.stored_bytes_per_s), client.name)});
  }
}

}  // namespace

std::optional<DeviceAccount> ParseDeviceStat(absl::string_view text) {
  const std::vector<absl::string_view> words = absl::StrSplit(text, absl::ByAnyChar(" \t\n"), absl::SkipEmpty());
  uint64_t numbers[8];
  if (words.size() < 8) return std::nullopt;
  for (size_t i = 0; i < 8; ++i) {
    if (!absl::SimpleAtoi(words[i], &numbers[i])) return std::nullopt;
  }
  return DeviceAccount{numbers[0], numbers[2] * kSectorBytes, numbers[3],
                       numbers[4], numbers[6] * kSectorBytes, numbers[7]};
}

void WorkRate::Add(const WorkRate& other) {
  reads += other.reads;
  writes += other.writes;
  trims += other.trims;
  read_bytes += other.read_bytes;
  written_bytes += other.written_bytes;
}

std::string DoorOf(absl::string_view client_name) {
  const std::string word(client_name.substr(0, client_name.find(' ')));
  return word == "mount" || word == "swap" ? word : "program";
}

PoolView Compare(const PoolLook& before, const PoolLook& now) {
  PoolView view;
  view.time = now.time;
  view.seconds = static_cast<double>(now.at_ns - before.at_ns) / kNsPerSecond;
  std::map<std::string, const PoolLook::Donor*> earlier;
  for (const PoolLook::Donor& donor : before.donors) earlier[donor.address] = &donor;
  std::vector<absl::StatusOr<ServerStatistics>> answers;
  for (const PoolLook::Donor& donor : now.donors) {
    const auto it = earlier.find(donor.address);
    view.donors.push_back(ViewOf(it == earlier.end() ? nullptr : it->second, donor, view.seconds));
    view.silent += donor.answer.ok() ? 0 : 1;
    Add(view.donors.back().capacity, &view.total);
    view.rate.Add(view.donors.back().rate);
    answers.push_back(donor.answer);
  }
  view.copies = SumOfCopies(answers);
  CompareClients(before, now, &view);
  for (const auto& [name, account] : now.devices) {
    const auto it = before.devices.find(name);
    view.devices.push_back(ViewOf(name, it == before.devices.end() ? account : it->second, account, view.seconds));
  }
  return view;
}

nlohmann::json ToJson(const PoolView& view) {
  nlohmann::json out = {{"time", view.time},
                        {"seconds", view.seconds},
                        {"total", ToJson(view.total)},
                        {"per_second", ToJson(view.rate)},
                        {"silent", view.silent},
                        {"copies", CopiesToJson(view.copies)},
                        {"donors", nlohmann::json::array()},
                        {"doors", nlohmann::json::array()},
                        {"clients", nlohmann::json::array()},
                        {"swap_devices", nlohmann::json::array()}};
  for (const DonorView& donor : view.donors) {
    nlohmann::json one = {{"address", donor.address}, {"state", donor.state}, {"answer_ms", donor.answer_ms}};
    if (donor.state == "away") {
      one["error"] = donor.error;
    } else {
      one["host"] = donor.host;
      one["clients"] = donor.clients;
      one["per_second"] = ToJson(donor.rate);
      one.update(ToJson(donor.capacity));
    }
    out["donors"].push_back(std::move(one));
  }
  for (const auto& [name, door] : view.doors) {
    int count = 0;
    (void)absl::SimpleAtoi(door.name, &count);
    out["doors"].push_back({{"door", name},
                            {"clients", count},
                            {"stored_bytes", door.stored_bytes},
                            {"stored_bytes_per_second", door.stored_bytes_per_s}});
  }
  for (const ClientView& client : view.clients) {
    out["clients"].push_back({{"door", client.door},
                              {"name", client.name},
                              {"stored_bytes", client.stored_bytes},
                              {"stored_bytes_per_second", client.stored_bytes_per_s}});
  }
  if (!view.clients_missing.empty()) out["clients_missing"] = view.clients_missing;
  for (const DeviceView& device : view.devices) {
    out["swap_devices"].push_back({{"name", device.name},
                                   {"reads_per_second", device.reads},
                                   {"writes_per_second", device.writes},
                                   {"read_bytes_per_second", device.read_bytes},
                                   {"written_bytes_per_second", device.written_bytes},
                                   {"read_ms", device.read_ms},
                                   {"write_ms", device.write_ms}});
  }
  return out;
}

std::vector<WatchLine> ToLines(const PoolView& view, size_t columns) {
  std::vector<WatchLine> lines;
  lines.push_back({absl::StrFormat("nram  %s  donors %d, %d away   %s free of %s   read %s, written %s", view.time,
                                   view.donors.size(), view.silent, FormatByteSize(view.total.free_bytes),
                                   FormatByteSize(view.total.donated_bytes), PerSecond(view.rate.read_bytes),
                                   PerSecond(view.rate.written_bytes)),
                   view.silent == 0 ? WatchLine::Tone::kTitle : WatchLine::Tone::kBad});
  if (!(view.copies == CopiesReport())) {
    const std::string progress = ProgressOf(view.copies);
    lines.push_back({absl::StrFormat("spans with several copies: %d in sync, %d degraded, %d repairing, %d lost%s%s",
                                     view.copies.in_sync, view.copies.degraded, view.copies.repairing, view.copies.lost,
                                     progress.empty() ? "" : "; done ", progress),
                     view.copies.lost > 0        ? WatchLine::Tone::kBad
                     : view.copies.lacking() > 0 ? WatchLine::Tone::kCare
                                                 : WatchLine::Tone::kPlain});
  }
  lines.push_back({""});
  columns < kWideColumns ? AddDonorsNarrow(view, &lines) : AddDonors(view, &lines);
  if (!view.devices.empty()) {
    lines.push_back({""});
    lines.push_back({absl::StrFormat("%-16s %12s %12s %12s %12s", "SWAP AREA HERE", "IN", "OUT", "A READ", "A WRITE"),
                     WatchLine::Tone::kTitle});
  }
  for (const DeviceView& device : view.devices) {
    lines.push_back({absl::StrFormat("%-16s %12s %12s %9.2f ms %9.2f ms", device.name, PerSecond(device.read_bytes),
                                     PerSecond(device.written_bytes), device.read_ms, device.write_ms)});
  }
  AddClients(view, &lines);
  return lines;
}

}  // namespace nram
