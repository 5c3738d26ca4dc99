#ifndef NRAM_MEMBERS_ETCD_ETCD_WATCH_H_
#define NRAM_MEMBERS_ETCD_ETCD_WATCH_H_

#include <grpcpp/grpcpp.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "members/etcd/etcd_client.h"
#include "proto/etcd.grpc.pb.h"

namespace nram {

// One watch of etcd's, on the caller's thread: reads, asks now and then whether etcd is there, and notices silence. Not
// thread-safe; `context` may be cancelled by others.
class EtcdWatch {
 public:
  using Heard = absl::FunctionRef<void(const std::vector<EtcdClient::Change>&)>;

  EtcdWatch(grpc::ClientContext* context, std::unique_ptr<etcdserverpb::Watch::Stub> stub, int64_t silence_ms)
      : context_(context), stub_(std::move(stub)), silence_ms_(silence_ms) {}

  // Blocks until the watch ends, and says how. *refused: etcd has said that it does not watch any more, and why.
  grpc::Status Run(const std::string& prefix, int64_t from_revision, Heard heard, absl::Status* refused);

 private:
  enum Tag : intptr_t { kStart = 1, kRead, kWrite, kFinish };
  static void* TagOf(Tag tag) { return reinterpret_cast<void*>(tag); }

  // False: it was refused.
  bool Take(Heard heard, absl::Status* refused);
  void AskProgress();
  void Write();
  // Waits for the operations under way.
  grpc::Status End();

  grpc::ClientContext* const context_;
  const std::unique_ptr<etcdserverpb::Watch::Stub> stub_;
  const int64_t silence_ms_;
  grpc::CompletionQueue queue_;
  std::unique_ptr<grpc::ClientAsyncReaderWriter<etcdserverpb::WatchRequest, etcdserverpb::WatchResponse>> stream_;
  etcdserverpb::WatchRequest request_;
  etcdserverpb::WatchResponse response_;
  bool writing_ = false;
};

}  // namespace nram

#endif  // NRAM_MEMBERS_ETCD_ETCD_WATCH_H_
