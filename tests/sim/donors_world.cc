#include "tests/sim/donors_world.h"

#include <glog/logging.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "tests/sim/donors_client.h"

namespace nram::sim {

DonorWorld::DonorWorld(const DonorWorldOptions& options, uint64_t seed) : options_(options), rng_(seed) {
  MakeDonors();
  for (size_t i = 0; i < options.clients; ++i) {
    std::vector<size_t> pool(options.donors);
    for (size_t donor = 0; donor < options.donors; ++donor) pool[donor] = donor;
    const size_t servers = std::min(options.pool, options.donors);
    for (size_t server = 0; server < servers; ++server) {
      std::swap(pool[server], pool[server + rng_.Below(options.donors - server)]);
    }
    pool.resize(servers);
    const int copies = servers > 1 && rng_.Below(100) < static_cast<uint64_t>(options.copied_percent) ? 2 : 1;
    clients_.push_back(std::make_unique<DonorClient>(this, static_cast<uint32_t>(i), pool, copies));
  }
  Fill();
  for (const auto& client : clients_) {
    client->SetFrozen(rng_.Below(100) < static_cast<uint64_t>(options_.frozen_percent));
  }
  for (size_t i = 0; i < donors_.size(); ++i) {
    At(1 + static_cast<int64_t>(rng_.Below(kServerTickMs)), {Event::Kind::kServer, static_cast<uint32_t>(i)});
  }
  for (size_t i = 0; i < clients_.size(); ++i) {
    At(1 + static_cast<int64_t>(rng_.Below(1'000)), {Event::Kind::kGrow, static_cast<uint32_t>(i)});
  }
}

DonorWorld::~DonorWorld() = default;

void DonorWorld::MakeDonors() {
  std::vector<uint64_t> totals;
  for (size_t i = 0; i < options_.donors; ++i) {
    totals.push_back(options_.total_least_bytes +
                     rng_.Below(options_.total_most_bytes - options_.total_least_bytes + 1) / kMiB * kMiB);
  }
  std::vector<Jobs> jobs(options_.donors);
  AddJobs(options_.jobs, 1'000, options_.storm_ms, totals, options_.rack, &rng_, &jobs);
  for (const auto& [donor, job] : options_.more_jobs) jobs[donor].Add(job);
  for (size_t i = 0; i < options_.donors; ++i) {
    auto donor = std::make_unique<Donor>();
    donor->index = i;
    donor->total = totals[i];
    donor->base = totals[i] / 100 * (10 + rng_.Below(15));
    donor->reserve = totals[i] / 10;
    donor->jobs = std::move(jobs[i]);
    donor->ceiling_max = donor->total - donor->base - donor->reserve;
    MemoryBalanceOptions balance;
    balance.reserve_bytes = donor->reserve;
    balance.empty_rest_ns = 300 * kNsPerMs;  // as MemServer
    balance.ceiling_bytes = donor->ceiling_max;
    donor->balance = MemoryBalance(balance);
    donor->ceiling = donor->balance.Update(
        {.now_ns = 1, .total_bytes = donor->total, .available_bytes = donor->total - donor->base});
    donors_.push_back(std::move(donor));
  }
}

void DonorWorld::Fill() {
  uint64_t spans = 0;
  for (const auto& donor : donors_) spans += donor->FreeBytes() / kSpanBytes;
  spans = spans * static_cast<uint64_t>(options_.fill_percent) / 100;
  uint64_t copies = 0;
  for (const auto& client : clients_) copies += static_cast<uint64_t>(client->copies());
  constexpr int kSteps = 20;
  for (const auto& client : clients_) client->HearAll();
  for (int step = 0; step < kSteps; ++step) {
    for (const auto& client : clients_) {
      client->ListenAll();
      client->Write(spans / copies / kSteps);
    }
  }
  for (const auto& donor : donors_) donor->window_stored = donor->stored;
}

void DonorWorld::At(int64_t at_ms, const Event& event) {
  CHECK_GT(at_ms, now_ms_);
  CHECK_LT(at_ms - now_ms_, kHorizonMs);
  wheel_[static_cast<size_t>(at_ms % kHorizonMs)].push_back(event);
}

void DonorWorld::RunUntil(int64_t end_ms) {
  while (now_ms_ < end_ms) {
    ++now_ms_;
    if (now_ms_ >= window_ends_ms_) EndWindow();
    std::vector<Event>& events = wheel_[static_cast<size_t>(now_ms_ % kHorizonMs)];
    for (const Event& event : events) Carry(event);
    events.clear();
  }
}

void DonorWorld::Carry(const Event& event) {
  switch (event.kind) {
    case Event::Kind::kServer:
      TickServer(event.who);
      return At(now_ms_ + kServerTickMs, event);
    case Event::Kind::kHear:
      return clients_[event.who]->Hear(static_cast<uint16_t>(event.what), event.number);
    case Event::Kind::kTick:
      return clients_[event.who]->Tick();
    case Event::Kind::kSlot:
      return clients_[event.who]->EndSlot(event.what);
    case Event::Kind::kFreed:
      return clients_[event.who]->NoteFreed(static_cast<uint16_t>(event.what), event.span, event.number);
    case Event::Kind::kGrow: {
      if (calm_) return;
      const auto storm_s = static_cast<uint64_t>(std::max<int64_t>(options_.storm_ms / 1'000, 1));
      DonorClient* const client = clients_[event.who].get();
      const size_t before = client->spans();
      const uint64_t most = before * static_cast<uint64_t>(options_.growth_percent) * 2;
      if (!client->is_frozen()) client->Write((rng_.Below(most + 1) + rng_.Below(100 * storm_s)) / (100 * storm_s));
      counts_.grown += (client->spans() - before) * kSpanBytes;
      return At(now_ms_ + 1'000, event);
    }
  }
}

// The work of MemServer::CollectorLoop and GiveBack::Tick, without moves of frames.
void DonorWorld::TickServer(size_t index) {
  Donor* const donor = donors_[index].get();
  if (!donor->stays) donor->jobs_bytes = donor->jobs.BytesAt(now_ms_);
  const uint64_t left = donor->total - donor->base - donor->stored;
  const uint64_t taken = std::min(left, donor->jobs_bytes);
  counts_.lacking += static_cast<double>(std::min(donor->jobs_bytes - taken, donor->stored)) * kServerTickMs / 1'000;
  const uint64_t allowed = donor->balance.Update({.now_ns = now_ns(),
                                                  .total_bytes = donor->total,
                                                  .available_bytes = left - taken,
                                                  .own_bytes = donor->stored,
                                                  .stalled = taken < donor->jobs_bytes ? 1.0 : 0.0});
  const uint64_t stored = donor->stored;
  donor->allowed = allowed;
  const bool pressed = donor->asking.pressed();
  donor->ceiling =
      std::min(CeilingFor(allowed, stored, donor->ceiling, Asking::kAllowanceBytes, pressed), donor->ceiling_max);
  const bool asked = donor->asking.asks();
  if (!donor->asking.Tick(stored - std::min(stored, allowed), stored, now_ns())) {
    if (stored > allowed) donor->asking.NoteShort(now_ns());
    donor->asking.End(now_ns());
  }
  if (!asked) donor->asks_since_ms = now_ms_;
  NoteAsked(donor, donor->asking.AskedBytes(stored));
  if (asked || !donor->asking.asks()) return;
  for (const auto& [client, server] : donor->sessions) client->NoteAsks(server);
}

void DonorWorld::NoteAsked(Donor* donor, uint64_t asked) {
  const uint64_t before = donor->asked - std::min(donor->asked, donor->freed);
  counts_.asked += asked - std::min(asked, before);
  donor->asked = asked;
  donor->freed = 0;
  if (asked > 0) counts_.longest_ms = std::max(counts_.longest_ms, now_ms_ - donor->asks_since_ms);
  const uint64_t others = donor->base + donor->reserve + donor->jobs_bytes;
  donor->window_least = std::min(donor->window_least, donor->total - std::min(donor->total, others));
}

void DonorWorld::EndWindow() {
  window_ends_ms_ += kWindowMs;
  for (const auto& donor : donors_) {
    counts_.needed += donor->window_stored - std::min(donor->window_stored, donor->window_least);
    donor->window_stored = donor->stored;
    donor->window_least = UINT64_MAX;
  }
}

void DonorWorld::Calm() {
  calm_ = true;
  for (const auto& donor : donors_) donor->stays = true;
  for (const auto& client : clients_) client->SetFrozen(false);
}

void DonorWorld::EndJobs() {
  for (const auto& donor : donors_) donor->jobs_bytes = 0;
}

size_t DonorWorld::asking() const {
  return static_cast<size_t>(
      std::count_if(donors_.begin(), donors_.end(), [](const auto& donor) { return donor->asking.asks(); }));
}

uint64_t DonorWorld::asked_bytes() const {
  uint64_t bytes = 0;
  for (const auto& donor : donors_) bytes += donor->asking.AskedBytes(donor->stored);
  return bytes;
}

size_t DonorWorld::asked_clients() const {
  size_t count = 0;
  for (const auto& donor : donors_) count += donor->asking.asks() ? donor->sessions.size() : 0;
  return count;
}

std::string DonorWorld::FindStuck() const {
  for (const auto& donor : donors_) {
    if (donor->asking.AskedBytes(donor->stored) == 0) continue;
    for (const auto& [client, server] : donor->sessions) {
      if (std::string stuck = client->FindStuck(server); !stuck.empty()) return stuck;
    }
  }
  return "";
}

uint64_t DonorWorld::free_bytes() const {
  uint64_t bytes = 0;
  for (const auto& donor : donors_) bytes += donor->FreeForNew();
  return bytes;
}

uint64_t DonorWorld::stored_bytes() const {
  uint64_t bytes = 0;
  for (const auto& donor : donors_) bytes += donor->stored;
  return bytes;
}

size_t DonorWorld::busy() const {
  return static_cast<size_t>(
      std::count_if(clients_.begin(), clients_.end(), [](const auto& client) { return !client->idle(); }));
}

std::string DonorWorld::Check() const {
  std::vector<uint64_t> stored(donors_.size());
  for (const auto& client : clients_) {
    if (std::string wrong = client->Check(&stored); !wrong.empty()) return wrong;
  }
  for (size_t i = 0; i < donors_.size(); ++i) {
    if (stored[i] == donors_[i]->stored) continue;
    return absl::StrCat("donor ", i, " counts ", donors_[i]->stored, " bytes, and its clients ", stored[i]);
  }
  return "";
}

}  // namespace nram::sim
