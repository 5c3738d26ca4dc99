#ifndef NRAM_TESTS_UTIL_LYING_SERVER_H_
#define NRAM_TESTS_UTIL_LYING_SERVER_H_

// A memory server that gives the test's answers, on both planes, and stores nothing. Without an answer from the test,
// it answers as a good server would.

#include <atomic>
#include <functional>
#include <list>
#include <memory>
#include <string>
#include <thread>

#include "base/endpoint.h"
#include "base/fd.h"
#include "base/sync.h"
#include "proto/control.grpc.pb.h"
#include "proto/message.h"

namespace nram {

// The hooks run on the server's threads, one at a time; set them through Set.
struct Lies {
  template <typename Request, typename Reply>
  using Hook = std::function<grpc::Status(const Request&, Reply*)>;  // changes the good answer, or refuses

  Hook<v1::HelloRequest, v1::HelloReply> hello;
  Hook<google::protobuf::Message, v1::LeaseReply> lease;  // GrantLease, RenewLease, Reserve
  Hook<v1::CreateRegionRequest, v1::CreateRegionReply> create;
  Hook<v1::AttachRegionRequest, v1::AttachRegionReply> attach;
  Hook<v1::EndLeaseRequest, v1::EndLeaseReply> end_lease;
  Hook<v1::DestroyRegionRequest, v1::DestroyRegionReply> destroy;
  Hook<v1::ListRegionsRequest, v1::ListRegionsReply> list_regions;
  Hook<v1::ListSpansRequest, v1::ListSpansReply> list_spans;
  Hook<v1::ListVersionsRequest, v1::ListVersionsReply> list_versions;
  Hook<v1::HoldVersionRequest, v1::HoldVersionReply> hold_version;
  Hook<v1::ListChangesRequest, v1::ListChangesReply> list_changes;
  // Given the good answer to a message on the data plane, returns the bytes to send; an empty string sends nothing.
  std::function<std::string(const MessageHeader& request, const MessageHeader& good)> message;
};

// Thread-safe.
class LyingServer {
 public:
  static constexpr uint64_t kIncarnation = 0x77;

  LyingServer();
  ~LyingServer();

  // Waits for the hooks that run.
  void Set(Lies lies);
  Endpoint endpoint() const { return {"127.0.0.1", port_, ""}; }
  int data_port() const { return data_port_; }
  uint64_t hellos() const { return hellos_; }  // on the control plane

  // A message as it is sent; its payload is zeros.
  static std::string Encode(MessageHeader header);

 private:
  class Service;

  void AcceptLoop();
  void Serve(int fd);
  std::string Answer(const MessageHeader& request);

  std::atomic<bool> stopping_{false};
  std::atomic<uint64_t> hellos_{0};
  int port_ = 0;
  int data_port_ = 0;
  Mutex mu_;  // held while a hook runs
  Lies lies_ ABSL_GUARDED_BY(mu_);
  std::unique_ptr<Service> service_;
  std::unique_ptr<grpc::Server> grpc_;
  UniqueFd listener_;
  std::thread acceptor_;
  struct Connection {
    std::atomic<bool> ended{false};
    std::thread thread;
  };
  std::list<Connection> connections_;  // the acceptor's until that has ended
};

}  // namespace nram

#endif  // NRAM_TESTS_UTIL_LYING_SERVER_H_
