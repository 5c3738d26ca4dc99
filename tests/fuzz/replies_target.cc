#include <errno.h>
#include <glog/logging.h>
#include <sched.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstring>
#include <deque>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/fd.h"
#include "base/poller.h"
#include "base/sync.h"
#include "client/seal/sealers.h"
#include "client/transport/socket_transport.h"
#include "tests/fuzz/any_message.h"
#include "tests/fuzz/input.h"
#include "tests/fuzz/targets.h"

namespace nram {
namespace {

constexpr int kCallsMax = 12;
constexpr size_t kPayloadBytesPerInput = 16 * 1024;
// A call that ends at its deadline was forgotten.
constexpr int64_t kDeadlineMs = 100'000;
constexpr uint8_t kNotWritten = 0xA5;

// Sends the last given bytes to a connection, and then nothing more. It does not read: the client's messages fit into
// the socket.
class Talker {
 public:
  Talker() : listener_(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    // An address of the kernel's choice, without a file.
    auto* const name = reinterpret_cast<sockaddr_un*>(&address_.storage);
    name->sun_family = AF_UNIX;
    PCHECK(bind(listener_.get(), reinterpret_cast<sockaddr*>(name), sizeof name->sun_family) == 0);
    address_.length = sizeof address_.storage;
    PCHECK(getsockname(listener_.get(), reinterpret_cast<sockaddr*>(name), &address_.length) == 0);
    PCHECK(listen(listener_.get(), 4) == 0);
    std::thread([this] { Run(); }).detach();
  }
  const SocketAddress& address() const { return address_; }
  void SayNext(std::string bytes) {
    MutexLock lock(&mu_);
    next_ = std::move(bytes);
  }

 private:
  void Run() {
    UniqueFd connection;
    while (true) {
      // Not before the next one: the client may still be sending.
      UniqueFd accepted(accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
      PCHECK(accepted.valid() || errno == EINTR);
      if (!accepted.valid()) continue;
      connection = std::move(accepted);
      std::string bytes;
      {
        MutexLock lock(&mu_);
        bytes = std::move(next_);
      }
      for (size_t at = 0; at < bytes.size();) {
        const ssize_t n = send(connection.get(), bytes.data() + at, bytes.size() - at, MSG_NOSIGNAL);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) break;  // the client has had enough
        at += n;
      }
      shutdown(connection.get(), SHUT_WR);
    }
  }

  UniqueFd listener_;
  SocketAddress address_{};
  Mutex mu_;
  std::string next_ ABSL_GUARDED_BY(mu_);
};

// The client, once.
struct Client {
  Talker* talker = new Talker;
  Poller* poller = new Poller;
  SocketTransport* transport = new SocketTransport(talker->address(), {LeaseId{1}, false, 0, SpinOptions{0}}, poller);
};

struct Asked {
  Call call;
  std::vector<ChunkMask> masks;
  std::vector<PageSeal> seals;
  std::unique_ptr<std::byte[]> in;
  std::atomic<int> done{0};
};

void CountDone(Call* call) { ++static_cast<Asked*>(call->context)->done; }

MessageHeader TakeHelloReply(FuzzInput* input, uint8_t how) {
  MessageHeader reply(HelloReply{.incarnation = 7, .credit_requests = 256, .credit_kib = 4096});
  reply.request_id = 1;
  if (how % 4 != 3) return reply;
  const auto op = static_cast<Op>(1 + input->Byte() % kOps);
  const uint8_t flags = input->Byte();
  const auto reason = static_cast<Reason>(input->Byte() % (kReasonMax + 2));
  const uint64_t request_id = input->SmallOrAny(3);
  const uint64_t credit_requests = input->SmallOrAny(8);
  const uint64_t credit_kib = input->SmallOrAny(64);
  reply = AnyMessage(op, flags, {.subject = 7, .last = credit_kib << 32 | (credit_requests & ~uint32_t{0})});
  reply.reason = reason;
  reply.request_id = request_id;
  return reply;
}

void TakeCall(FuzzInput* input, Asked* asked, const std::byte* out) {
  static constexpr Op kOps[] = {Op::kRead, Op::kRead, Op::kRead,   Op::kWrite,
                                Op::kTrim, Op::kPing, Op::kCreate, Op::kDestroy};
  Call& call = asked->call;
  const uint8_t kind = input->Byte();
  const Op op = kOps[kind % 8];
  call.deadline_ns = DeadlineAfterMs(kDeadlineMs);
  call.context = asked;
  if ((kind & 16) != 0) {
    call.done = &CountDone;
    call.wait_expected = true;
  }
  ChunkRange range;
  if (HasRange(op)) range = {input->Byte() % 16u, 1 + input->Byte() % 24u};
  if ((kind & 64) != 0 && (op == Op::kRead || op == Op::kWrite)) {
    // A sealed region's read or write.
    range = {range.first_page() * kChunksPerPage, range.pages() * kChunksPerPage};
    asked->seals.resize(range.pages());
    call.seals = asked->seals.data();
  }
  call.request = AnyMessage(op, 0, {.subject = kind / 8 % 2u, .range = range, .epoch = 1});
  if (op == Op::kRead) {
    asked->in.reset(new std::byte[range.bytes()]);  // exactly the range, so that a write beyond it is noticed
    memset(asked->in.get(), kNotWritten, range.bytes());
    call.in = asked->in.get();
  }
  if (op != Op::kWrite) return;
  call.out = out;
  if ((kind & 32) == 0) return;
  const uint8_t mask = input->Byte();
  for (uint64_t i = 0; i < range.pages(); ++i) {
    ChunkMask chunks = MaskOfPage(range, range.first_page() + i) & (mask + i);
    if (call.seals != nullptr) chunks = (chunks & 1) != 0 ? kAllChunks : ChunkMask{0};
    asked->masks.push_back(chunks);
  }
  call.masks = asked->masks.data();
}

// An answer to one of the calls, which `how` may change here and there. Each chunk of it has one byte.
std::string TakeReply(FuzzInput* input, uint8_t how, const std::deque<Asked>& calls, size_t* payload_left) {
  const size_t which = input->Byte() % calls.size();
  const MessageHeader& request = calls[which].call.request;
  Op op = request.op;
  uint8_t flags = kFlagReply;
  auto reason = Reason::kOk;
  uint64_t request_id = which + 2;
  AnyFields fields{.subject = Raw(request.region()), .range = request.range()};
  if ((how & 4) != 0) reason = static_cast<Reason>(input->Byte() % (kReasonMax + 2));
  if ((how & 8) != 0) fields.last = input->AnyNumber();
  if ((how & 16) != 0) {
    op = static_cast<Op>(1 + input->Byte() % kOps);
    flags = input->Byte();
    request_id = input->SmallOrAny(kCallsMax + 2);
    fields.subject = input->SmallOrAny(2);
    fields.range = {input->SmallOrAny(16), input->SmallOrAny(24)};
  }
  MessageHeader reply = AnyMessage(op, flags, fields);
  reply.reason = reason;
  reply.request_id = request_id;
  const ChunkRange range = reply.range();
  std::string payload;
  if (reply.op == Op::kRead && reply.reason == Reason::kOk && range.count < kChunksPerMessage &&
      range.first < kRegionChunksMax && range.bytes() <= *payload_left) {
    const uint8_t seed = input->Byte();
    uint64_t chunks = range.count;
    const bool is_sealed = calls[which].call.seals != nullptr && (how & 16) == 0;
    if (is_sealed) reply.flags |= kFlagSealed;
    if ((how & 32) != 0) {
      reply.flags |= kFlagSparse;
      chunks = 0;
      for (uint64_t i = 0; i < range.pages(); ++i) {
        const ChunkMask all = MaskOfPage(range, range.first_page() + i);
        auto mask = static_cast<ChunkMask>((seed * (i + 1)) & (seed == 255 ? 255 : all));
        if (is_sealed && seed != 254) mask = mask > 100 ? kAllChunks : ChunkMask{0};
        payload.push_back(static_cast<char>(mask));
        chunks += std::popcount(mask);
      }
    }
    for (uint64_t i = 0; i < reply.seal_bytes() / sizeof(PageSeal); ++i) {
      const bool is_hole = is_sealed && reply.sparse() && payload[i] == 0 && seed != 253;
      payload.append(sizeof(PageSeal), static_cast<char>(is_hole || seed % 8 == 1 ? 0 : seed));
    }
    for (uint64_t i = 0; i < chunks; ++i) payload.append(kChunkBytes, static_cast<char>(1 + (seed + i) % 100));
    *payload_left -= std::min(*payload_left, payload.size());
  }
  reply.payload_bytes = static_cast<uint32_t>(payload.size());
  std::string message = EncodeAnyMessage(reply, payload);
  if ((how & 64) != 0) {
    const size_t at = input->Number(2) % message.size();
    message[at] = static_cast<char>(message[at] ^ input->Byte());
  }
  return message;
}

// These servers' answers were never sealed, so no byte of them is accepted.
void CheckNothingOpens(const Asked& asked) {
  static const std::unique_ptr<SealKey> key = SealKey::Random().value();
  static Sealers* const sealers = new Sealers;
  RegionSeal region(sealers, key.get(), /*number=*/1);
  Sealer* const sealer = sealers->Take();
  std::copy(asked.seals.begin(), asked.seals.end(), sealer->seals.begin());
  const ChunkRange range = asked.call.request.range();
  bool lost = false;
  (void)sealer->Open(&region, RegionId{7}, range.first_page(), {asked.call.in, range.bytes()}, /*settles=*/true, &lost);
  for (uint64_t i = 0; i < range.bytes(); ++i) CHECK_EQ(std::to_integer<int>(asked.call.in[i]), 0) << "byte " << i;
  sealers->Give(sealer);
}

void CheckEnded(const Asked& asked) {
  const Call& call = asked.call;
  CHECK(call.is_done());
  CHECK(call.code != absl::StatusCode::kDeadlineExceeded) << "a call was forgotten";
  // The poller may have completed it, and be about to count it.
  while (call.done != nullptr && asked.done == 0) sched_yield();
  CHECK_EQ(asked.done, call.done == nullptr ? 0 : 1);
  (void)CallStatus(call, "fuzz");
  if (call.code != absl::StatusCode::kOk || call.reason != Reason::kOk || call.in == nullptr) return;
  for (uint64_t i = 0; i < call.request.range().count; ++i) {
    const std::byte* const chunk = call.in + i * kChunkBytes;
    CHECK_NE(std::to_integer<int>(*chunk), kNotWritten) << "chunk " << i << " was not answered";
    CHECK_EQ(memcmp(chunk, chunk + 1, kChunkBytes - 1), 0) << "chunk " << i;
  }
  if (call.seals != nullptr) CheckNothingOpens(asked);
}

}  // namespace

void FuzzReplies(const uint8_t* data, size_t size) {
  static Client* const client = new Client;
  static std::byte* const out = new std::byte[64 * kChunkBytes]();
  FuzzInput input(data, size);
  const uint8_t how_many = input.Byte();
  std::string said = EncodeAnyMessage(TakeHelloReply(&input, how_many), "");
  std::deque<Asked> calls(1 + how_many / 4 % kCallsMax);
  for (Asked& asked : calls) TakeCall(&input, &asked, out);
  size_t payload_left = kPayloadBytesPerInput;
  while (!input.empty()) {
    const uint8_t how = input.Byte();
    if (how % 4 == 0) {
      said += std::string(input.Take(input.Byte()));
    } else {
      said += TakeReply(&input, how, calls, &payload_left);
    }
  }
  client->talker->SayNext(std::move(said));
  // hello may be refused: then all calls end at once.
  (void)client->transport->Connect(DeadlineAfterMs(kDeadlineMs));
  for (Asked& asked : calls) client->transport->Start(&asked.call);
  for (Asked& asked : calls) client->transport->Wait(&asked.call);
  client->transport->Disconnect();
  for (const Asked& asked : calls) CheckEnded(asked);
  (void)client->transport->TakeBreakReason();
}

}  // namespace nram
