#ifndef NRAM_CLIENT_POOL_RESERVATION_H_
#define NRAM_CLIENT_POOL_RESERVATION_H_

#include <atomic>
#include <cstdint>
#include <map>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/pool/io.h"
#include "client/pool/placing.h"

namespace nram {

// Places the spans of a range and takes room for all of its pages, on each copy, one span after the other. The region
// gets all of the room or none. A copy whose server is away or drained, while another's is not, gets its room when it
// moves: until then a write may cost the span that copy, and does not fail. An operation's handle, as Io is. Used once.
class Reservation {
 public:
  using Callback = void (*)(Reservation* reservation, void* context);

  Reservation() = default;
  ~Reservation();
  Reservation(const Reservation&) = delete;
  Reservation& operator=(const Reservation&) = delete;

  // Blocks until the operation that was started is done and returns its result. If there is a callback, call this only
  // when it runs.
  absl::Status Wait();

  // --- For Region.
  // Does not block. The callback, if any, is the last thing that touches the operation.
  void Start(const IoPlace& place, const absl::StatusOr<IoRequest>& request, Callback callback = nullptr,
             void* context = nullptr);

 private:
  static constexpr uint32_t kRunning = 0, kSleeping = 1, kDone = 2;

  // Goes on until it has to wait, or is done.
  void Go();
  // Room for one span. False: it has to wait.
  bool TakeSpan();
  // Where the span is, or is to be. False: it fails, or waits for a server, as *waits says.
  bool FindServers(uint64_t span, bool* waits);
  void KeepUsable(const CopyMap::Servers& in_sync);
  // The room that the span takes at one server.
  uint64_t PriceAt(uint16_t server, uint64_t pages) const;
  // Places it, if it is new. False: it is elsewhere now.
  bool PlaceSpan(uint64_t span);
  void DropGrants();
  // False: it has to wait for room there. Else there is a grant, or the waiter's outcome says why not.
  bool TakeRoom(ServerSession* session, uint64_t bytes);
  // Each false: it has to wait for the server.
  bool NoteNoRoom(uint64_t bytes);
  // True: the span once more, without that server's copy.
  bool PassOver();
  bool FailToPlace(uint64_t bytes);
  bool AwaitServer(ServerSession* session);
  // It was to wait for the server, and has an outcome.
  void LookAtServer();
  void Fail(const absl::Status& status) {
    if (status_.ok()) status_ = status;
  }
  // Gives the room to the region's quota, or back to the client's room at the servers.
  void Settle();
  void Finish();
  static void OnResume(Waiter* waiter) { static_cast<Reservation*>(waiter->context)->Go(); }

  IoPlace place_;
  uint64_t chunk_ = 0;
  uint64_t end_ = 0;
  Placing search_;
  Waiter waiter_;
  bool waited_ = false;               // the waiter has an outcome to be looked at
  bool awaits_server_ = false;        // likewise, of a wait for a server's connection
  ServerSession* session_ = nullptr;  // where it waits, or where its grant is
  // Of the span that it is at.
  Room::Grant grant_;
  CopyMap::Servers servers_;
  CopyMap::Servers where_;                                 // all of its copies, as they were when servers_ were chosen
  bool placed_ = false;                                    // it is there; else it is to be
  CopyMap::Servers passed_over_;                           // of its copies: those that gave no room while another may
  absl::InlinedVector<Room::Grant, kReplicasMax> grants_;  // of the first servers
  std::map<uint16_t, Room::Grant> taken_;                  // by server
  absl::Status status_;
  std::atomic<uint32_t> state_{kRunning};
  Callback callback_ = nullptr;
  void* callback_context_ = nullptr;
};

}  // namespace nram

#endif  // NRAM_CLIENT_POOL_RESERVATION_H_
