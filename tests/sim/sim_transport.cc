#include "tests/sim/sim_transport.h"

#include <glog/logging.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "base/sync.h"
#include "tests/sim/fibers.h"

namespace nram::sim {
namespace {

constexpr size_t kReadAheadBytes = 4096;

// The whole message of a call.
std::string Encode(const Call& call, uint32_t payload_crc) {
  std::string message(kMessageHeaderBytes, '\0');
  message.reserve(kMessageHeaderBytes + call.request.payload_bytes);
  EncodeHeader(call.request, payload_crc, reinterpret_cast<std::byte*>(message.data()));
  if (call.request.op != Op::kWrite) return message;
  if (call.masks != nullptr) {
    message.append(reinterpret_cast<const char*>(call.masks), call.request.range().pages());
  }
  if (call.seals != nullptr) {
    message.append(reinterpret_cast<const char*>(call.seals), call.request.seal_bytes());
  }
  ForEachSentRun(call, [&](uint64_t, const std::byte* data, size_t bytes) {
    message.append(reinterpret_cast<const char*>(data), bytes);
  });
  return message;
}

}  // namespace

SimTransport::SimTransport(World* world, Network* network, const SimTransportOptions& options)
    : world_(world), network_(network), options_(options) {}

SimTransport::~SimTransport() {
  Break();
  world_->Cancel(look_);
  world_->Cancel(silence_);
  world_->Cancel(connect_timer_);
  if (connection_ != 0) network_->Close(connection_, Network::kClient);
}

absl::Status SimTransport::Connect(int64_t) {
  LOG(FATAL) << "nothing blocks in a simulation";
  return absl::InternalError("");
}

void SimTransport::Wait(Call* call) {
  CHECK(Fibers::InOne()) << "only fibers block in a simulation";
  while (IsUnderWay(*call, this)) {
    uint32_t expected = Call::kPending;
    call->state.compare_exchange_strong(expected, Call::kSleeping);
    FutexWaitUntil(&call->state, Call::kSleeping, world_->NowNs() + kLookNs);
  }
}

void SimTransport::StartConnect(int64_t deadline_ns, std::function<void(absl::Status)> done) {
  CHECK(connect_done_ == nullptr);
  connect_done_ = std::move(done);
  if (connected_) {
    connect_timer_ = world_->After(0, options_.client, [this] { EndConnect(absl::OkStatus()); });
    return;
  }
  connect_timer_ = world_->At(deadline_ns, options_.client,
                              [this] { EndConnect(absl::DeadlineExceededError("hello: no answer in time")); });
  connection_ = network_->Connect(options_.client, options_.server, this);
}

void SimTransport::OnConnected() {
  reader_.emplace(kReadAheadBytes);
  next_request_id_ = 2;
  const HelloRequest body{.lease = options_.lease, .generation = static_cast<uint64_t>(world_->NowNs())};
  MessageHeader hello(body, options_.urgent ? kFlagUrgent : 0);
  hello.request_id = 1;
  std::string message(kMessageHeaderBytes, '\0');
  EncodeHeader(hello, 0, reinterpret_cast<std::byte*>(message.data()));
  network_->Send(connection_, Network::kClient, std::move(message));
}

absl::Status SimTransport::JudgeHello(const MessageHeader& reply) const {
  if (reply.op != Op::kHello || !reply.is_reply() || reply.request_id != 1) {
    return absl::UnavailableError("hello: the peer is not a memory server");
  }
  if (reply.reason == Reason::kLeaseEnded) {
    return absl::FailedPreconditionError("hello: the server does not know the lease");
  }
  if (reply.reason == Reason::kFenced) return absl::AbortedError("hello: a newer connection exists");
  if (reply.reason != Reason::kOk) return absl::UnavailableError("hello: refused");
  if (options_.incarnation != 0 && reply.as<HelloReply>().incarnation != options_.incarnation) {
    return absl::FailedPreconditionError("hello: the server has restarted");
  }
  return absl::OkStatus();
}

void SimTransport::EndConnect(absl::Status status) {
  if (connect_done_ == nullptr) return;
  world_->Cancel(std::exchange(connect_timer_, 0));
  if (status.ok()) {
    connected_ = true;
  } else if (connection_ != 0) {
    network_->Close(std::exchange(connection_, 0), Network::kClient);
  }
  std::exchange(connect_done_, nullptr)(std::move(status));
}

void SimTransport::Start(Call* call) {
  BeginCall(call, this);
  if (!connected_) return FailCall(call, absl::StatusCode::kUnavailable);
  MessageHeader& request = call->request;
  request.payload_bytes = RequestPayloadBytes(*call);
  if (request.op == Op::kWrite) {
    request.flags |= (call->masks != nullptr ? kFlagSparse : 0) | (call->seals != nullptr ? kFlagSealed : 0);
  }
  call->payload_crc = 0;
  if (request.op == Op::kWrite) {
    const uint64_t pages = request.range().pages();
    PageCrcs page_crcs;
    ChecksumPages(*call, &page_crcs);
    call->payload_crc = SentPayloadCrc(*call, {page_crcs.data(), pages});
  }
  request.request_id = next_request_id_++;
  if (calls_.empty()) {
    heard_ns_ = world_->NowNs();
    if (options_.silence_limit_ms > 0) ScheduleSilence();
  }
  call->sent = true;
  calls_.push_back(call);
  if (options_.on_request != nullptr) options_.on_request(request);
  network_->Send(connection_, Network::kClient, Encode(*call, call->payload_crc));
  ScheduleLook(call->deadline_ns);
}

void SimTransport::OnBytes(absl::Span<const std::byte> bytes) {
  const Network::ConnectionId from = connection_;
  heard_ns_ = world_->NowNs();
  size_t taken = 0;
  const absl::StatusOr<bool> all = reader_->Feed(bytes, &taken, this);
  if (all.ok() || connection_ != from) return;
  if (all.status().code() != absl::StatusCode::kUnavailable) break_reason_ = std::string(all.status().message());
  EndConnect(absl::UnavailableError("hello: corrupted answer"));
  Break();
}

absl::StatusOr<bool> SimTransport::OnHeader(const MessageHeader& reply, const PayloadTables& tables, Landing* landing) {
  if (connect_done_ != nullptr) return true;  // hello's
  if (!connected_) return absl::UnavailableError("disconnected");
  const auto it = std::find_if(calls_.begin(), calls_.end(),
                               [&](const Call* call) { return call->request.request_id == reply.request_id; });
  if (!reply.is_reply() || it == calls_.end()) return absl::InvalidArgumentError("a reply without a request");
  NRAM_RETURN_IF_ERROR(LandReply(**it, reply, tables, landing));
  landing_call_ = *it;
  return true;
}

absl::Status SimTransport::OnMessage(const MessageHeader& reply, absl::Span<const uint32_t>) {
  if (connect_done_ != nullptr) {
    EndConnect(JudgeHello(reply));
    return absl::OkStatus();
  }
  Call* const call = std::exchange(landing_call_, nullptr);
  // The call has ended if the connection broke in the middle of its payload.
  if (call == nullptr) return absl::UnavailableError("disconnected");
  std::erase(calls_, call);
  AnswerCall(call, reply);
  return absl::OkStatus();
}

void SimTransport::OnCorrupt(const MessageHeader&) { garbled_call_ = landing_call_; }

void SimTransport::OnEnd() {
  EndConnect(absl::UnavailableError("hello: the server closed the connection"));
  Break();
}

void SimTransport::Break() {
  if (!connected_) return;
  connected_ = false;
  const Network::ConnectionId broken = std::exchange(connection_, 0);
  // A message that it has sent may still be on its way, and be executed there.
  if (world_->rng().OneIn(3)) {
    network_->Reset(broken, Network::kClient);
  } else {
    network_->Close(broken, Network::kClient);
  }
  landing_call_ = nullptr;
  const Call* const garbled = std::exchange(garbled_call_, nullptr);
  const int64_t now_ns = world_->NowNs();
  for (Call* const call : std::exchange(calls_, {})) {
    const absl::StatusCode code = call == garbled               ? absl::StatusCode::kDataLoss
                                  : now_ns >= call->deadline_ns ? absl::StatusCode::kDeadlineExceeded
                                                                : absl::StatusCode::kUnavailable;
    FailCall(call, code);
  }
}

void SimTransport::ScheduleSilence() {
  world_->Cancel(silence_);
  silence_ = world_->At(heard_ns_ + options_.silence_limit_ms * kNsPerMs + world_->rng().Between(0, kLookNs),
                        options_.client, [this] {
                          silence_ = 0;
                          if (calls_.empty()) return;
                          if (world_->NowNs() - heard_ns_ < options_.silence_limit_ms * kNsPerMs) {
                            return ScheduleSilence();
                          }
                          Break();
                        });
}

void SimTransport::ScheduleLook(int64_t deadline_ns) {
  if (deadline_ns >= look_ns_) return;
  world_->Cancel(look_);
  look_ns_ = deadline_ns;
  look_ = world_->At(deadline_ns + world_->rng().Between(0, kLookNs), options_.client, [this] { Look(); });
}

void SimTransport::Look() {
  look_ns_ = INT64_MAX;
  int64_t earliest_ns = INT64_MAX;
  for (const Call* call : calls_) earliest_ns = std::min(earliest_ns, call->deadline_ns);
  if (earliest_ns <= world_->NowNs()) return Break();
  if (earliest_ns != INT64_MAX) ScheduleLook(earliest_ns);
}

}  // namespace nram::sim
