#include "client/transport/socket_transport.h"

#include <glog/logging.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/socket.h"
#include "base/status.h"
#include "client/transport/data_socket.h"
#include "client/transport/shake_hands.h"

namespace nram {
void SocketTransport::CallQueue::Push(Call* call) {
  call->next = nullptr;
  (head == nullptr ? head : tail->next) = call;
  tail = call;
}

Call* SocketTransport::CallQueue::Pop() {
  Call* call = head;
  head = call->next;
  if (head == nullptr) tail = nullptr;
  return call;
}

void SocketTransport::Batch::Add(const void* data, size_t bytes) {
  pieces[piece_count++] = {const_cast<void*>(data), bytes};
}

void SocketTransport::Batch::Advance(size_t bytes) {
  while (bytes > 0) {
    iovec& piece = pieces[next_piece];
    const size_t step = std::min(bytes, piece.iov_len);
    piece.iov_base = static_cast<std::byte*>(piece.iov_base) + step;
    piece.iov_len -= step;
    bytes -= step;
    if (piece.iov_len == 0) ++next_piece;
  }
}

SocketTransport::SocketTransport(const SocketAddress& address, const SocketTransportOptions& options, Poller* poller)
    : address_(address), options_(options), poller_(poller), spin_(options.spin) {
  MutexLock lock(&mu_);
  followers_.reserve(kSlots);
  poller_->Add(this);
}

SocketTransport::~SocketTransport() {
  Disconnect();
  poller_->Remove(this);
  MutexLock lock(&mu_);
  while (sending_ || receiving_) roles_free_.WaitUntil(&mu_, DeadlineAfterMs(100));
  DisarmLocked();
}

absl::Status SocketTransport::Connect(int64_t deadline_ns) {
  MutexLock connect_lock(&connect_mu_);
  if (connected()) return absl::OkStatus();
  NRAM_ASSIGN_OR_RETURN(UniqueFd fd, ConnectSocket(address_, deadline_ns));
  if (options_.silence_timeout_ms > 0 && address_.storage.ss_family != AF_UNIX) {
    LimitTcpSilence(fd.get(), options_.silence_timeout_ms);
  }
  if (options_.peer.has_value()) NRAM_RETURN_IF_ERROR(CheckPeer(fd.get(), *options_.peer));
  NRAM_ASSIGN_OR_RETURN(std::unique_ptr<Channel> channel, MakeChannel(fd.get(), deadline_ns));
  NRAM_ASSIGN_OR_RETURN(const Credit credit, SayHello(channel.get(), deadline_ns));
  // The old connection is shut down, so its last users leave at once. Calls that they leave behind end here.
  FailIfIdleAndBroken();
  MutexLock lock(&mu_);
  while (sending_ || receiving_ || queue_.head != nullptr || requests_out_ > 0) {
    if (MonotonicNs() >= deadline_ns) return absl::DeadlineExceededError("the old connection is still in use");
    roles_free_.WaitUntil(&mu_, DeadlineAfterMs(1));
    mu_.Unlock();
    FailIfIdleAndBroken();
    mu_.Lock();
  }
  DisarmLocked();
  channel_ = std::move(channel);
  fd_ = std::move(fd);
  reader_.emplace();
  landing_call_ = nullptr;
  batch_ = {};
  credit_ = credit;
  next_request_id_ = 2;
  last_sent_id_ = 1;
  send_blocked_ = false;
  heard_ns_ = MonotonicNs();
  connected_.store(true, std::memory_order_release);
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<Channel>> SocketTransport::MakeChannel(int fd, int64_t deadline_ns) const {
  if (options_.tls == nullptr) return std::make_unique<Channel>(fd);
  NRAM_ASSIGN_OR_RETURN(const TlsSession session, ShakeHands(fd, options_.tls.get(), options_.host, deadline_ns));
  return std::make_unique<Channel>(fd, &session);
}

absl::StatusOr<Credit> SocketTransport::SayHello(Channel* channel, int64_t deadline_ns) const {
  // Only this process speaks for the lease, so its clock orders the connections.
  MessageHeader hello(
      HelloRequest{
          .lease = options_.lease, .generation = static_cast<uint64_t>(MonotonicNs()), .version = options_.version},
      options_.urgent ? kFlagUrgent : 0);
  hello.request_id = 1;
  std::byte encoded[kMessageHeaderBytes];
  EncodeHeader(hello, 0, encoded);
  const iovec all{encoded, sizeof encoded};
  const absl::StatusOr<size_t> taken = channel->Send({&all, 1});
  if (!taken.ok()) return Annotate(taken.status(), "hello");
  if (*taken != sizeof encoded) return absl::UnavailableError("hello: the socket is full");
  size_t have = 0;
  while (have < sizeof encoded) {
    const iovec rest{encoded + have, sizeof encoded - have};
    const absl::StatusOr<Channel::Received> received = channel->Receive({&rest, 1});
    if (!received.ok()) return Annotate(received.status(), "hello");
    have += received->bytes;
    if (received->ended) return absl::UnavailableError("hello: the server closed the connection");
    if (received->bytes == 0 && !AwaitSocket(channel->fd(), POLLIN, deadline_ns)) {
      return absl::DeadlineExceededError("hello: no answer in time");
    }
  }
  MessageHeader reply;
  NRAM_RETURN_IF_ERROR(DecodeHeader(encoded, &reply));
  if (!MatchesChecksum(encoded, 0)) return absl::UnavailableError("hello: corrupted answer");
  NRAM_ASSIGN_OR_RETURN(const HelloReply said, CheckHello(hello, reply));
  if (options_.incarnation != 0 && said.incarnation != options_.incarnation) {
    return absl::FailedPreconditionError("hello: the server has restarted");
  }
  if (said.credit_requests == 0 || said.credit_kib == 0) {
    return absl::UnavailableError("hello: the server grants no credit");
  }
  return Credit{std::min(said.credit_requests, kSlots), said.credit_kib};
}

void SocketTransport::Start(Call* call) {
  BeginCall(call, this);
  const uint32_t payload = RequestPayloadBytes(*call);
  call->request.payload_bytes = payload;
  if (call->request.op == Op::kWrite) {
    call->request.flags |= (call->masks != nullptr ? kFlagSparse : 0) | (call->seals != nullptr ? kFlagSealed : 0);
  }
  call->credit_bytes =
      payload + (call->request.op == Op::kRead ? static_cast<uint32_t>(call->request.range().bytes()) : 0);
  // The payload's checksum is the expensive part; it needs no lock.
  call->payload_crc = 0;
  if (call->request.op == Op::kWrite) {
    const uint64_t pages = call->request.range().pages();
    PageCrcs page_crcs;
    ChecksumPages(*call, &page_crcs);
    call->payload_crc = SentPayloadCrc(*call, {page_crcs.data(), pages});
  }
  bool broken = false;
  {
    MutexLock lock(&mu_);
    if (!connected()) {
      broken = true;
    } else {
      queue_.Push(call);
      ++queued_;
      CountLocked(*call, 1);
      // Calls go out in groups where that delays none of them. If many are under way, a call that a thread will Wait
      // for goes out when the thread waits. Calls of a thread that drives the poller go out before it waits.
      const bool hold =
          queued_ < kBatchCallsMax &&
          (call->wait_expected ? requests_out_ >= kHoldFrom : call->done != nullptr && poller_->Defer(this));
      if (!hold) SendLocked();
      ArmIfNeededLocked();
    }
  }
  if (broken) {
    FailCall(call, absl::StatusCode::kUnavailable);
  } else if (!connected()) {
    FailIfIdleAndBroken();
  }
}

bool SocketTransport::FillBatchLocked() {
  if (!batch_.empty()) return true;
  batch_.calls = batch_.calls_sent = batch_.piece_count = batch_.next_piece = 0;
  while (queue_.head != nullptr && batch_.calls < kBatchCallsMax) {
    Call* call = queue_.head;
    const bool has_credit = requests_out_ == 0 || (requests_out_ < credit_.requests &&
                                                   credit_out_bytes_ + call->credit_bytes <= credit_.kib * kKiB);
    if (!has_credit || slots_[next_request_id_ % kSlots] != nullptr) break;
    // A header, two tables and at most four runs a page.
    const bool has_masks = call->request.payload_bytes > 0 && call->masks != nullptr;
    const size_t pieces = has_masks ? 3 + 4 * call->request.range().pages() : 3;
    CHECK_LE(pieces, kBatchPiecesMax) << "a call that can never be sent";
    if (batch_.piece_count + pieces > kBatchPiecesMax) break;
    queue_.Pop();
    --queued_;
    AppendToBatchLocked(call);
    batch_.end_piece[batch_.calls - 1] = batch_.piece_count;
  }
  return !batch_.empty();
}

void SocketTransport::AppendToBatchLocked(Call* call) {
  call->request.request_id = next_request_id_++;
  call->sent = true;
  slots_[call->request.request_id % kSlots] = call;
  ++requests_out_;
  credit_out_bytes_ += call->credit_bytes;
  auto& header = batch_.headers[batch_.calls++];
  EncodeHeader(call->request, call->payload_crc, header.data());
  batch_.Add(header.data(), header.size());
  if (call->request.payload_bytes == 0) return;
  const ChunkRange range = call->request.range();
  if (call->masks != nullptr) batch_.Add(call->masks, range.pages());
  if (call->seals != nullptr) batch_.Add(call->seals, range.pages() * sizeof(PageSeal));
  if (call->masks == nullptr) {
    batch_.Add(call->out, range.bytes());
    return;
  }
  ForEachSentRun(*call, [this](uint64_t, const std::byte* data, size_t bytes) { batch_.Add(data, bytes); });
}

void SocketTransport::SendLocked() {
  if (sending_) return;  // the sender takes the calls queued since
  sending_ = true;
  while (connected() && (FillBatchLocked() || channel_->has_output())) {
    Channel* const channel = channel_.get();
    mu_.Unlock();
    const absl::StatusOr<size_t> taken =
        channel->Send({&batch_.pieces[batch_.next_piece], batch_.piece_count - batch_.next_piece});
    mu_.Lock();
    if (!taken.ok()) {
      BreakLocked();
    } else if (*taken > 0) {
      batch_.Advance(*taken);
      for (; batch_.calls_sent < batch_.calls && batch_.end_piece[batch_.calls_sent] <= batch_.next_piece;
           ++last_sent_id_) {
        ++batch_.calls_sent;
      }
      send_blocked_ = false;
      if (reply_waits_) roles_free_.SignalAll();
    } else if (batch_.empty() && !channel->has_output()) {
      send_blocked_ = false;
    } else {
      send_blocked_ = true;
      break;
    }
  }
  sending_ = false;
  if (!connected() || reply_waits_) roles_free_.SignalAll();
}

void SocketTransport::CountLocked(const Call& call, int change) {
  if (call.done != nullptr && !call.wait_expected) {
    unwaited_ += change;
  } else if (call.done != nullptr || call.may_wait_late) {
    lazy_ += change;
  }
}

void SocketTransport::ArmIfNeededLocked() {
  if (!connected() || receiving_ || (unwaited_ == 0 && !armed_)) return;
  // Armed again if the socket has become full or empty since. If it is full and no reply is to come, only the poller
  // can send the rest.
  if (armed_ && armed_for_output_ == send_blocked_) return;
  if (!poller_->Arm(this, fd_.get(), armed_, send_blocked_)) {
    // Replies could not be awaited. The next tick ends the calls, as those of any broken connection.
    break_reason_ = "the kernel watches no more descriptors for this user (fs.epoll.max_user_watches)";
    return BreakLocked();
  }
  armed_ = true;
  armed_for_output_ = send_blocked_;
}

void SocketTransport::DisarmLocked() {
  if (armed_) poller_->Disarm(fd_.get());
  armed_ = armed_for_output_ = false;
}

absl::StatusOr<bool> SocketTransport::OnHeader(const MessageHeader& reply, const PayloadTables& tables,
                                               Landing* landing) {
  MutexLock lock(&mu_);
  if (!connected()) return absl::UnavailableError("disconnected");
  // No honest server answers a request that was not sent whole, and the request's buffers are still in use. But a reply
  // may come some microseconds before the sender has noted that the request was sent.
  reply_waits_ = true;
  while (reply.request_id > last_sent_id_ && sending_) roles_free_.WaitUntil(&mu_, DeadlineAfterMs(100));
  reply_waits_ = false;
  if (reply.request_id > last_sent_id_) return absl::InvalidArgumentError("a reply to a request that was not sent");
  Call* call = slots_[reply.request_id % kSlots];
  if (!reply.is_reply() || call == nullptr || call->request.request_id != reply.request_id) {
    return absl::InvalidArgumentError("a reply without a request");
  }
  NRAM_RETURN_IF_ERROR(LandReply(*call, reply, tables, landing));
  landing_call_ = call;
  return true;
}

absl::Status SocketTransport::OnMessage(const MessageHeader& reply, absl::Span<const uint32_t>) {
  Call* call = landing_call_;
  landing_call_ = nullptr;
  {
    MutexLock lock(&mu_);
    slots_[reply.request_id % kSlots] = nullptr;
    --requests_out_;
    credit_out_bytes_ -= call->credit_bytes;
    CountLocked(*call, -1);
    if (queue_.head != nullptr) SendLocked();
  }
  AnswerCall(call, reply);
  return absl::OkStatus();
}

void SocketTransport::OnCorrupt(const MessageHeader& reply) { garbled_call_ = landing_call_; }

void SocketTransport::Wait(Call* call) {
  while (IsUnderWay(*call, this)) {
    bool lead = false;
    {
      MutexLock lock(&mu_);
      if (queue_.head != nullptr) SendLocked();
      if (!receiving_) receiving_ = lead = true;
      if (lead && unwaited_ == 0) DisarmLocked();
    }
    if (!lead) {
      SleepAsFollower(call);
      continue;
    }
    ReceiveFor(call);
    MutexLock lock(&mu_);
    ReleaseReceivingLocked();
  }
}

void SocketTransport::ReceiveFor(Call* call) {
  const int64_t began_ns = spin_.enabled() ? MonotonicNs() : 0;
  int64_t spin_until_ns = spin_.enabled() ? began_ns + spin_.NextBudgetNs() : 0;
  int64_t judge_ns = call == nullptr ? 0 : call->deadline_ns;
  bool waited = false;   // before the deadline: all that arrived until then was read
  bool counted = false;  // by CountSleep
  // The holder of the role leaves no input behind that only the channel knows of.
  const auto goes_on = [&] { return call == nullptr || IsUnderWay(*call, this); };
  for (int round = 0; connected() && (goes_on() || channel_->has_input()); ++round) {
    const bool fills = call == nullptr ? round < kPollerRoundsMax : goes_on();
    const absl::StatusOr<MessageReader::Progress> progress =
        reader_->ReadFrom(channel_.get(), this, fills ? Channel::Fill::kYes : Channel::Fill::kNo);
    if (!progress.ok() || *progress == MessageReader::Progress::kEnd) {
      MutexLock lock(&mu_);
      if (!progress.ok() && progress.status().code() != absl::StatusCode::kUnavailable) {
        break_reason_ = std::string(progress.status().message());
      }
      BreakLocked();
      break;
    }
    if (*progress != MessageReader::Progress::kWouldBlock) heard_.store(true, std::memory_order_relaxed);
    if (call == nullptr) {
      // The poller has other connections too.
      if (*progress != MessageReader::Progress::kRead || (round >= kPollerRoundsMax && !channel_->has_input())) break;
      continue;
    }
    if (!goes_on()) continue;
    if (*progress == MessageReader::Progress::kRead && MonotonicNs() < call->deadline_ns + kCatchUpNs) continue;
    if (spin_until_ns != 0 && MonotonicNs() < spin_until_ns) {
      SpinPause();
      continue;
    }
    // Counts one sleep for each wait, not for each look at a server that says nothing.
    if (!std::exchange(counted, true) || *progress != MessageReader::Progress::kWouldBlock) CountSleep();
    if (WaitReadable(judge_ns)) {
      waited = true;
    } else if (!std::exchange(waited, true)) {
      judge_ns = MonotonicNs() + kCatchUpNs;
    } else {
      MutexLock lock(&mu_);
      BreakLocked();
    }
  }
  if (spin_.enabled() && call != nullptr) spin_.Report(MonotonicNs() - began_ns);
  if (!connected()) FailAll();
}

bool SocketTransport::WaitReadable(int64_t deadline_ns) {
  const int64_t left_ns = deadline_ns - MonotonicNs();
  if (left_ns <= 0) return false;
  bool blocked = false;
  {
    MutexLock lock(&mu_);
    if (send_blocked_) SendLocked();
    blocked = send_blocked_;
  }
  pollfd waiting{fd_.get(), static_cast<int16_t>(POLLIN | (blocked ? POLLOUT : 0)), 0};
  // Waits in slices, because a sender may become blocked meanwhile.
  const int64_t slice_ns = std::min(left_ns, 5 * kNsPerMs);
  timespec timeout{slice_ns / kNsPerSecond, slice_ns % kNsPerSecond};
  ppoll(&waiting, 1, &timeout, nullptr);
  if ((waiting.revents & POLLOUT) != 0) {
    MutexLock lock(&mu_);
    SendLocked();
  }
  return true;
}

void SocketTransport::ReleaseReceivingLocked() {
  receiving_ = false;
  if (!connected()) roles_free_.SignalAll();
  // The role goes to the follower that has waited longest and whose call is not done yet.
  while (!followers_.empty()) {
    Call* call = followers_.front();
    followers_.erase(followers_.begin());
    uint32_t expected = Call::kSleeping;
    if (call->state.compare_exchange_strong(expected, Call::kLead)) {
      FutexWakeAll(&call->state);
      return;
    }
  }
  ArmIfNeededLocked();
}

void SocketTransport::SleepAsFollower(Call* call) {
  {
    MutexLock lock(&mu_);
    uint32_t expected = Call::kPending;
    if (!receiving_ || !call->state.compare_exchange_strong(expected, Call::kSleeping)) return;
    if (!IsUnderWay(*call, this)) {  // begun elsewhere a moment ago
      expected = Call::kSleeping;
      call->state.compare_exchange_strong(expected, Call::kPending);
      return;
    }
    followers_.push_back(call);
  }
  CountSleep();
  // The receiver may be reading the answer just now.
  const int64_t judge_ns = std::max(call->deadline_ns, MonotonicNs() + kCatchUpNs);
  while (call->state.load(std::memory_order_acquire) == Call::kSleeping && MonotonicNs() < judge_ns) {
    FutexWaitUntil(&call->state, Call::kSleeping, judge_ns);
  }
  {
    MutexLock lock(&mu_);
    std::erase(followers_, call);
    uint32_t seen = call->state.load(std::memory_order_acquire);
    while (seen != Call::kDone && !call->state.compare_exchange_weak(seen, Call::kPending)) {
    }
    // The call is neither done nor called upon to lead: it is late.
    if (seen != Call::kSleeping) return;
    BreakLocked();
  }
  FailIfIdleAndBroken();
}

void SocketTransport::BreakLocked() {
  if (!connected()) return;
  connected_.store(false, std::memory_order_release);
  // Wakes the threads that poll the socket. The descriptor stays open until no thread has a role: FailAll closes it.
  shutdown(fd_.get(), SHUT_RDWR);
}

void SocketTransport::FailIfIdleAndBroken() {
  {
    MutexLock lock(&mu_);
    if (connected() || receiving_) return;
    receiving_ = true;
  }
  FailAll();
  MutexLock lock(&mu_);
  ReleaseReceivingLocked();
}

void SocketTransport::FailAll() {
  CallQueue failed;
  {
    MutexLock lock(&mu_);
    // Sending does not block, so this wait is short.
    while (sending_) roles_free_.WaitUntil(&mu_, DeadlineAfterMs(100));
    for (Call*& slot : slots_) {
      if (slot != nullptr) failed.Push(slot);
      slot = nullptr;
    }
    while (queue_.head != nullptr) failed.Push(queue_.Pop());
    queued_ = 0;
    requests_out_ = 0;
    credit_out_bytes_ = 0;
    unwaited_ = lazy_ = 0;
    landing_call_ = nullptr;
    // This life of the server may be over, and they are large.
    reader_.reset();
    DisarmLocked();
    channel_.reset();
    fd_.reset();
  }
  const Call* const garbled = std::exchange(garbled_call_, nullptr);
  const int64_t now_ns = MonotonicNs();
  while (failed.head != nullptr) {
    Call* call = failed.Pop();
    const absl::StatusCode code = call == garbled               ? absl::StatusCode::kDataLoss
                                  : now_ns >= call->deadline_ns ? absl::StatusCode::kDeadlineExceeded
                                                                : absl::StatusCode::kUnavailable;
    FailCall(call, code);
  }
}

std::string SocketTransport::TakeBreakReason() {
  MutexLock lock(&mu_);
  return std::exchange(break_reason_, "");
}

void SocketTransport::Disconnect() {
  {
    MutexLock lock(&mu_);
    BreakLocked();
  }
  FailIfIdleAndBroken();
}

void SocketTransport::OnReady() {
  CountSleep();
  Look();
}

void SocketTransport::Look() {
  {
    MutexLock lock(&mu_);
    if (!connected() || receiving_) return DisarmLocked();  // the receiver arms it again if need be
    receiving_ = true;
    if (queue_.head != nullptr || send_blocked_) SendLocked();
  }
  ReceiveFor(nullptr);
  MutexLock lock(&mu_);
  ReleaseReceivingLocked();
}

void SocketTransport::OnFlush() {
  {
    MutexLock lock(&mu_);
    SendLocked();
    ArmIfNeededLocked();
  }
  if (!connected()) FailIfIdleAndBroken();
}

bool SocketTransport::HasFallenSilentLocked(int64_t now_ns) {
  if (options_.silence_limit_ms == 0) return false;
  // A tick that is late says that this process has stood still, not the server.
  const bool is_late = now_ns - std::exchange(ticked_ns_, now_ns) > kTickLateNs;
  if (requests_out_ == 0 || is_late || heard_.exchange(false, std::memory_order_relaxed)) heard_ns_ = now_ns;
  return now_ns - heard_ns_ > options_.silence_limit_ms * kNsPerMs;
}

bool SocketTransport::HasExpiredLocked(int64_t now_ns) const {
  for (const Call* call : slots_) {
    if (call != nullptr && call->done != nullptr && call->deadline_ns <= now_ns) return true;
  }
  for (const Call* call = queue_.head; call != nullptr; call = call->next) {
    if (call->done != nullptr && call->deadline_ns <= now_ns) return true;
  }
  return false;
}

void SocketTransport::OnTick(int64_t now_ns) {
  bool late = false;
  bool look = false;
  {
    MutexLock lock(&mu_);
    late = connected() && unwaited_ + lazy_ > 0 && HasExpiredLocked(now_ns);
    if (connected() && HasFallenSilentLocked(now_ns)) {
      break_reason_ = absl::StrCat("nothing was received for ", options_.silence_limit_ms, " ms");
      BreakLocked();
    }
    if (connected() && queue_.head != nullptr) {  // of a driving thread that is busy, or gone
      SendLocked();
      ArmIfNeededLocked();
    }
    look = connected() && (lazy_ > 0 || late) && !receiving_;
  }
  if (look) Look();
  if (late) {  // the answer may have been there
    MutexLock lock(&mu_);
    if (connected() && HasExpiredLocked(now_ns)) BreakLocked();
  }
  if (!connected()) FailIfIdleAndBroken();
}

}  // namespace nram
