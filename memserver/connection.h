#ifndef NRAM_MEMSERVER_CONNECTION_H_
#define NRAM_MEMSERVER_CONNECTION_H_

// One data connection: a socket, the reader of its messages, its session, and the replies that wait to be sent. It
// belongs to one worker thread at a time.

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "base/fd.h"
#include "base/mapping.h"
#include "base/tls/channel.h"
#include "memserver/connection_table.h"
#include "memserver/session.h"
#include "proto/message_reader.h"

namespace nram {

// A worker's reply buffers. A connection holds one only while it has replies to send. So the number of buffers bounds
// the memory, not the number of connections. Not thread-safe.
class ReplyBuffers {
 public:
  static constexpr size_t kBufferBytes = kMessageBytesMax + 64 * 1024;

  explicit ReplyBuffers(size_t count);
  // Null if all are held.
  std::byte* Take();
  void Give(std::byte* buffer) { free_.push_back(buffer); }

 private:
  Mapping memory_;
  std::vector<std::byte*> free_;
};

class Connection : private MessageReader::Handler {
 public:
  static constexpr size_t kReadAheadBytes = 64 * 1024;
  // The memory that a connection takes, idle or not.
  static constexpr uint64_t kFixedBytes = kReadAheadBytes + 8192;

  // The connection's state after Pump.
  enum class State {
    kNothing,   // nothing had come
    kIdle,      // everything that came was handled; wait for more
    kMore,      // Pump stopped for fairness; there may be more
    kWantsOut,  // replies wait until the peer takes them
    kStarved,   // it waits for landing frames or a reply buffer; try again soon
    kEnded,     // the peer closed it in good order
  };

  // `buffers`: of its worker. SetBuffers replaces them when the connection moves to another worker.
  // `tls`: of its handshake; null: plain.
  Connection(UniqueFd fd, const TlsSession* tls, std::string peer, const SessionContext& context, ReplyBuffers* buffers,
             int64_t now_ns);
  ~Connection() override;

  // Reads, executes and replies without blocking, for a bounded number of rounds. After an error the caller logs it and
  // closes the connection.
  absl::StatusOr<State> Pump(int64_t now_ns);

  // DEADLINE_EXCEEDED if, for longer than `limit_ns`, the connection
  //   has moved no byte in the middle of a message or of its replies,
  //   has not said hello, or
  //   has been idle with a lease that has ended.
  // Also if one message or its replies have taken kPaceFactor times as long: they hold this server's buffers.
  absl::Status CheckStall(int64_t now_ns, int64_t limit_ns) const;

  // It is in the middle of a message or of its replies, so it holds this server's buffers, and has moved no byte for
  // `limit_ns`.
  bool HoldsIdly(int64_t now_ns, int64_t limit_ns) const {
    return (has_output() || reader_.mid_message()) && now_ns - progress_ns_ > limit_ns;
  }

  // A connection of its tenant has waited for landing frames within `limit_ns`. And this one holds some for a message
  // that has taken longer, or that cannot be executed because a newer connection has replaced this one.
  bool KeepsOthersWaiting(int64_t now_ns, int64_t limit_ns) const {
    if (!session_.lands() || now_ns - session_.tenant()->landing_waited_ns > limit_ns) return false;
    return session_.fenced() || now_ns - rest_ns_ > limit_ns;
  }

  // Only between two Pumps, with nothing left to send.
  void SetBuffers(ReplyBuffers* buffers) { buffers_ = buffers; }
  bool has_output() const { return reply_.data != nullptr; }

  int fd() const { return fd_.get(); }
  const std::string& peer() const { return peer_; }
  const Session& session() const { return session_; }

  // Takes a place in the table, until the connection is destroyed. `source`: the peer's address without the port.
  void TakePlace(ConnectionTable* table, std::string source, int64_t now_ns) {
    place_.emplace(table, &session_, fd_.get(), std::move(source), now_ns);
  }

  // The peer's identity; empty without rules.
  void SetIdentity(std::string identity, QuotaShare share) {
    identity_ = std::move(identity);
    share_ = std::move(share);
  }
  const std::string& identity() const { return identity_; }

  uint64_t rules = 0;         // the version of the rules that it was judged by
  uint32_t epoll_events = 0;  // as registered; the worker's
  bool charged = false;       // to the arena: it is not one of the prepaid connections
  bool queued = false;        // in the worker's list of connections to pump again

 private:
  static constexpr int kRoundsMax = 8;
  static constexpr int kPaceFactor = 6;
  static constexpr size_t kFlushBytes = 16 * 1024;

  absl::StatusOr<bool> OnHeader(const MessageHeader& header, const PayloadTables& tables, Landing* landing) override;
  absl::Status OnMessage(const MessageHeader& header, absl::Span<const uint32_t> page_crcs) override;
  void OnCorrupt(const MessageHeader& header) override {}

  // Sends replies. False: the peer does not take all of them now.
  absl::StatusOr<bool> Flush();
  void NoteProgress();
  // The connection is between two messages, has just finished one, or waits for this server.
  void NoteRest();

  QuotaShare share_;
  std::string identity_;
  const UniqueFd fd_;
  Channel channel_;
  const std::string peer_;
  ReplyBuffers* buffers_;
  MessageReader reader_{kReadAheadBytes};
  Session session_;
  ReplyBuffer reply_;
  size_t sent_ = 0;
  int64_t now_ns_;       // the Pump's
  int64_t progress_ns_;  // when it last moved bytes, or waited for this server; before hello, when it began
  int64_t rest_ns_;      // of NoteRest: from then a message may take kPaceFactor times the limit
  // The last member, so that the connection leaves the table before anything else is gone. Empty in tests without a
  // table.
  std::optional<ConnectionPlace> place_;
};

}  // namespace nram

#endif  // NRAM_MEMSERVER_CONNECTION_H_
