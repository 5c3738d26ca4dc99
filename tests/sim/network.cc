#include "tests/sim/network.h"

#include <glog/logging.h>

#include <algorithm>
#include <iterator>

namespace nram::sim {
namespace {

constexpr int64_t kRetransmitNs = 300 * kNsPerMs;

Network::Side Other(Network::Side side) { return side == Network::kClient ? Network::kServer : Network::kClient; }

}  // namespace

int64_t Network::DelayNs(HostId from, HostId to) {
  Rng& rng = world_->rng();
  int64_t delay_ns = rng.Between(20 * kNsPerUs, 80 * kNsPerUs);
  if (rng.OneIn(256)) delay_ns += rng.Between(0, 5 * kNsPerMs);
  if (const int64_t slow_ns = way(from, to).slow_ns; slow_ns > 0 && rng.OneIn(2)) delay_ns += rng.Between(0, slow_ns);
  return delay_ns;
}

Network::Connection* Network::Find(ConnectionId id) {
  const auto it = connections_.find(id);
  return it == connections_.end() ? nullptr : &it->second;
}

void Network::Forget(ConnectionId id) {
  const auto it = connections_.find(id);
  if (it == connections_.end()) return;
  // A connection remains while an item is on its way to a present end, or waits to be accepted.
  const auto& ends = it->second.ends;
  const bool server_waits = !it->second.accepted && !ends[kServer].queue.empty();
  if (ends[kClient].gone && ends[kServer].gone && !server_waits) connections_.erase(it);
}

Network::ConnectionId Network::Connect(HostId client, HostId server, Receiver* receiver) {
  const ConnectionId id = next_id_++;
  Connection& connection = connections_[id];
  connection.ends[kClient].host = client;
  connection.ends[kClient].receiver = receiver;
  connection.ends[kServer].host = server;
  Push(id, &connection, kServer, {Item::Kind::kSyn, ""});
  return id;
}

void Network::Send(ConnectionId id, Side from, std::string bytes) {
  Connection* const connection = Find(id);
  if (connection == nullptr || connection->ends[from].gone) return;
  Push(id, connection, Other(from), {Item::Kind::kBytes, std::move(bytes)});
}

void Network::Push(ConnectionId id, Connection* connection, Side side, Item item) {
  End& to = connection->ends[side];
  const HostId from = connection->ends[Other(side)].host;
  to.last_ns = std::max(to.last_ns, world_->NowNs() + DelayNs(from, to.host));
  // A kernel answers a SYN, and takes its answer, also while the program is stopped.
  const bool is_kernels = item.kind == Item::Kind::kSyn;
  to.queue.push_back(std::move(item));
  ScheduleArrival(id, side, is_kernels ? World::kNobody : to.host, to.last_ns);
}

void Network::ScheduleArrival(ConnectionId id, Side side, HostId host, int64_t time_ns) {
  // A lambda of two words needs no memory of its own.
  const uint64_t named = id << 1 | static_cast<uint64_t>(side);
  world_->At(time_ns, host, [this, named] { Arrive(named >> 1, static_cast<Side>(named & 1)); });
}

void Network::Arrive(ConnectionId id, Side side) {
  Connection* const connection = Find(id);
  if (connection == nullptr) return;
  End& to = connection->ends[side];
  if (to.queue.empty()) return;
  Way& on = way(connection->ends[Other(side)].host, to.host);
  if (on.cut) {
    on.stalled.emplace_back(id, side);
    return;
  }
  if (to.queue.front().kind == Item::Kind::kSyn) {
    to.queue.pop_front();
    return ArriveSyn(id, connection);
  }
  if (side == kServer && !connection->accepted) AcceptNow(id, connection);
  if (to.gone || to.receiver == nullptr) {
    // No end is there any more: the host reports it, if it has power.
    to.queue.clear();
    End& sender = connection->ends[Other(side)];
    if (!sender.gone && !sender.ended && !powerless_[to.host]) {
      sender.ended = true;
      Push(id, connection, Other(side), {Item::Kind::kEnd, ""});
    }
    return Forget(id);
  }
  Item item = std::move(to.queue.front());
  to.queue.pop_front();
  Receiver* const receiver = to.receiver;
  switch (item.kind) {
    case Item::Kind::kSyn:
      break;
    case Item::Kind::kConnected:
      return receiver->OnConnected();
    case Item::Kind::kRefused:
      return receiver->OnRefused();
    case Item::Kind::kEnd:
      return receiver->OnEnd();
    case Item::Kind::kBytes: {
      std::string& bytes = item.bytes;
      if (bytes.size() > 1 && world_->rng().OneIn(64)) {
        // The bytes arrive in two pieces.
        const size_t first = 1 + world_->rng().Below(bytes.size() - 1);
        to.queue.push_front({Item::Kind::kBytes, bytes.substr(first)});
        bytes.resize(first);
        ScheduleArrival(id, side, to.host, world_->NowNs() + world_->rng().Between(0, 200 * kNsPerUs));
      }
      return receiver->OnBytes({reinterpret_cast<const std::byte*>(bytes.data()), bytes.size()});
    }
  }
}

void Network::ArriveSyn(ConnectionId id, Connection* connection) {
  const HostId server = connection->ends[kServer].host;
  if (powerless_[server]) return;
  if (listeners_[server] == nullptr) {
    connection->ends[kServer].gone = true;
    connection->accepted = true;
    Push(id, connection, kClient, {Item::Kind::kRefused, ""});
    return;
  }
  Push(id, connection, kClient, {Item::Kind::kConnected, ""});
}

void Network::AcceptNow(ConnectionId id, Connection* connection) {
  connection->accepted = true;
  End& end = connection->ends[kServer];
  Listener* const listener = listeners_[end.host];
  if (listener == nullptr) {
    end.gone = true;
  } else {
    end.receiver = listener->Accept(id);
  }
}

void Network::Close(ConnectionId id, Side side) {
  Connection* const connection = Find(id);
  if (connection == nullptr) return;
  End& end = connection->ends[side];
  if (std::exchange(end.gone, true)) return;
  end.receiver = nullptr;
  end.queue.clear();
  End& other = connection->ends[Other(side)];
  if (!other.gone && !std::exchange(other.ended, true)) Push(id, connection, Other(side), {Item::Kind::kEnd, ""});
  Forget(id);
}

void Network::Reset(ConnectionId id, Side side) {
  Connection* const connection = Find(id);
  if (connection == nullptr) return;
  std::deque<Item>& sent = connection->ends[Other(side)].queue;
  if (!sent.empty() && sent.front().kind != Item::Kind::kSyn) {
    const size_t left = world_->rng().Below(sent.size() + 1);
    sent.resize(left, {Item::Kind::kEnd, ""});
    if (!sent.empty() && sent.back().kind == Item::Kind::kBytes && world_->rng().OneIn(2)) {
      sent.back().bytes.resize(1 + world_->rng().Below(sent.back().bytes.size()));
    }
  }
  Close(id, side);
}

void Network::CloseAll(HostId host, bool silently) {
  std::vector<std::pair<ConnectionId, Side>> closing;
  for (const auto& [id, connection] : connections_) {
    for (const Side side : {kClient, kServer}) {
      if (connection.ends[side].host == host) closing.emplace_back(id, side);
    }
  }
  for (const auto& [id, side] : closing) {
    Connection* const connection = Find(id);
    if (connection == nullptr) continue;
    // A listener will still accept an unaccepted connection, unless its SYN has been answered already.
    if (silently) {
      connection->ends[Other(side)].ended = true;
      // The items that are on their way from here are lost.
      connection->ends[Other(side)].queue.clear();
    }
    if (side == kServer) connection->accepted = true;
    Close(id, side);
    // It learns of the end when it sends again.
    if (Connection* const left = Find(id); silently && left != nullptr) left->ends[Other(side)].ended = false;
  }
}

bool Network::FlipBit() {
  std::vector<std::string*> candidates;
  for (auto& [id, connection] : connections_) {
    for (End& end : connection.ends) {
      for (Item& item : end.queue) {
        if (!item.bytes.empty()) candidates.push_back(&item.bytes);
      }
    }
  }
  if (candidates.empty()) return false;
  std::string& bytes = *candidates[world_->rng().Below(candidates.size())];
  bytes[world_->rng().Below(bytes.size())] ^= static_cast<char>(1 << world_->rng().Below(8));
  return true;
}

bool Network::BreakOne(HostId client, HostId server) {
  std::vector<ConnectionId> candidates;
  for (const auto& [id, connection] : connections_) {
    if (connection.ends[kClient].host == client && connection.ends[kServer].host == server &&
        connection.ends[kClient].receiver != nullptr) {
      candidates.push_back(id);
    }
  }
  if (candidates.empty()) return false;
  const ConnectionId id = candidates[world_->rng().Below(candidates.size())];
  // As if a router had sent a reset to both. Each loses the bytes on their way to it, from some byte on.
  Connection* const connection = Find(id);
  for (const Side side : {kClient, kServer}) {
    End& end = connection->ends[side];
    if (end.gone || end.ended) continue;
    if (!end.queue.empty() && end.queue.front().kind != Item::Kind::kSyn) {
      end.queue.resize(world_->rng().Below(end.queue.size() + 1), {Item::Kind::kEnd, ""});
    }
    end.ended = true;
    Push(id, connection, side, {Item::Kind::kEnd, ""});
  }
  return true;
}

void Network::Post(HostId from, HostId to, World::Event event) {
  Way& on = way(from, to);
  if (on.cut) {
    // Its connection may be given up before the network is back.
    if (world_->rng().OneIn(2)) on.posts.push_back(std::move(event));
    return;
  }
  if (powerless_[to]) return;
  world_->After(DelayNs(from, to), to, std::move(event));
}

void Network::Cut(HostId from, HostId to) {
  Way& on = way(from, to);
  if (std::exchange(on.cut, true)) return;
  on.cut_ns = world_->NowNs();
  const int64_t cut_ns = on.cut_ns;
  const int64_t early_ns = world_->rng().Between(0, kNsPerSecond);
  world_->After(kClientSilenceNs + early_ns, World::kNobody,
                [this, from, to, cut_ns] { LookForSilence(from, to, cut_ns, kClient); });
  world_->After(kServerSilenceNs + early_ns, World::kNobody,
                [this, from, to, cut_ns] { LookForSilence(from, to, cut_ns, kServer); });
}

void Network::Heal(HostId from, HostId to) {
  Way& on = way(from, to);
  if (!std::exchange(on.cut, false)) return;
  for (const auto& [id, side] : std::exchange(on.stalled, {})) {
    const Connection* const connection = Find(id);
    if (connection == nullptr) continue;
    const bool is_syn =
        !connection->ends[side].queue.empty() && connection->ends[side].queue.front().kind == Item::Kind::kSyn;
    ScheduleArrival(id, side, is_syn ? World::kNobody : to, world_->NowNs() + world_->rng().Between(0, kRetransmitNs));
  }
  for (World::Event& event : std::exchange(on.posts, {})) {
    world_->After(world_->rng().Between(0, kRetransmitNs), to, std::move(event));
  }
}

void Network::LookForSilence(HostId from, HostId to, int64_t cut_ns, Side side) {
  const Way& on = way(from, to);
  if (!on.cut || on.cut_ns != cut_ns) return;
  std::vector<ConnectionId> silent;
  for (const auto& [id, connection] : connections_) {
    const HostId client = connection.ends[kClient].host;
    const HostId server = connection.ends[kServer].host;
    if ((client == from && server == to) || (client == to && server == from)) silent.push_back(id);
  }
  for (const ConnectionId id : silent) {
    // The kernel tells its own program; the other end learns of it when the network is back.
    world_->At(world_->NowNs(), Find(id)->ends[side].host, [this, id, side] {
      Connection* const connection = Find(id);
      if (connection == nullptr || connection->ends[side].gone || connection->ends[side].receiver == nullptr) return;
      connection->ends[side].receiver->OnEnd();
    });
  }
}

}  // namespace nram::sim
