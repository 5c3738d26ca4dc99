#include "members/etcd/etcd_client.h"

#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/status.h"
#include "base/sync.h"
#include "base/tls/context.h"
#include "base/tls/tls_dir.h"
#include "base/utf8.h"
#include "members/etcd/etcd_watch.h"
#include "proto/etcd.grpc.pb.h"
#include "proto/grpc_log.h"

namespace nram {
namespace {

// An answer that is longer is not of nram's keys.
constexpr int kReplyBytesMax = 16 << 20;

absl::StatusOr<std::shared_ptr<grpc::ChannelCredentials>> CredentialsOf(const std::string& tls_dir) {
  if (tls_dir.empty()) return grpc::InsecureChannelCredentials();
  NRAM_ASSIGN_OR_RETURN(const TlsFiles files, TlsFiles::In(tls_dir, TlsRole::kClient));
  NRAM_RETURN_IF_ERROR(CheckKeyMode(files.key));
  grpc::SslCredentialsOptions options;
  NRAM_ASSIGN_OR_RETURN(options.pem_root_certs, ReadFile(files.authorities));
  NRAM_ASSIGN_OR_RETURN(options.pem_cert_chain, ReadFile(files.certificate));
  NRAM_ASSIGN_OR_RETURN(options.pem_private_key, ReadFile(files.key));
  return grpc::SslCredentials(options);
}

class GrpcEtcdClient final : public EtcdClient {
 public:
  GrpcEtcdClient(std::vector<std::string> hosts, std::string tls_dir)
      : hosts_(std::move(hosts)), tls_dir_(std::move(tls_dir)) {}

  absl::StatusOr<Listing> List(const std::string& prefix, int64_t limit, int64_t deadline_ns) override {
    etcdserverpb::RangeRequest request;
    request.set_key(prefix);
    request.set_range_end(EtcdRangeEnd(prefix));
    request.set_limit(limit);
    etcdserverpb::RangeResponse reply;
    NRAM_RETURN_IF_ERROR(Call(deadline_ns, [&](grpc::ClientContext* context) {
      return etcdserverpb::KV::NewStub(channel_)->Range(context, request, &reply);
    }));
    Listing listing;
    listing.revision = reply.header().revision();
    listing.count = reply.count();
    for (etcdserverpb::KeyValue& pair : *reply.mutable_kvs()) {
      listing.pairs.push_back({std::move(*pair.mutable_key()), std::move(*pair.mutable_value())});
    }
    return listing;
  }

  absl::Status Watch(const std::string& prefix, int64_t from_revision, int64_t silence_ms,
                     absl::FunctionRef<void(const std::vector<Change>&)> heard) override {
    absl::Status refused;
    const absl::Status ended = Call(INT64_MAX, [&](grpc::ClientContext* context) {
      EtcdWatch watch(context, etcdserverpb::Watch::NewStub(channel_), silence_ms);
      return watch.Run(prefix, from_revision, heard, &refused);
    });
    if (!refused.ok()) return refused;
    return ended.ok() ? absl::UnavailableError(absl::StrCat("etcd at ", host(), " has ended the watch")) : ended;
  }

  absl::StatusOr<Entry> Get(const std::string& key, int64_t deadline_ns) override {
    etcdserverpb::RangeRequest request;
    request.set_key(key);
    etcdserverpb::RangeResponse reply;
    NRAM_RETURN_IF_ERROR(Call(deadline_ns, [&](grpc::ClientContext* context) {
      return etcdserverpb::KV::NewStub(channel_)->Range(context, request, &reply);
    }));
    return ToEntry(&reply);
  }

  absl::StatusOr<Swapped> Swap(const std::string& key, int64_t revision, const std::optional<std::string>& value,
                               int64_t deadline_ns) override {
    etcdserverpb::TxnRequest request;
    etcdserverpb::Compare* const compare = request.add_compare();
    compare->set_target(etcdserverpb::Compare::MOD);
    compare->set_key(key);
    compare->set_mod_revision(revision);
    if (value.has_value()) {
      etcdserverpb::PutRequest* const put = request.add_success()->mutable_request_put();
      put->set_key(key);
      put->set_value(*value);
    } else {
      request.add_success()->mutable_request_delete_range()->set_key(key);
    }
    request.add_failure()->mutable_request_range()->set_key(key);
    etcdserverpb::TxnResponse reply;
    NRAM_RETURN_IF_ERROR(Call(deadline_ns, [&](grpc::ClientContext* context) {
      return etcdserverpb::KV::NewStub(channel_)->Txn(context, request, &reply);
    }));
    Swapped swapped;
    swapped.done = reply.succeeded();
    if (swapped.done) {
      if (value.has_value()) swapped.now.revision = reply.header().revision();
    } else if (reply.responses_size() == 1 && reply.responses(0).has_response_range()) {
      swapped.now = ToEntry(reply.mutable_responses(0)->mutable_response_range());
    } else {
      return absl::InternalError(absl::StrCat("etcd at ", host(), " did not return the key's value"));
    }
    return swapped;
  }

  absl::StatusOr<int64_t> GrantLease(int64_t ttl_s, int64_t deadline_ns) override {
    etcdserverpb::LeaseGrantRequest request;
    request.set_ttl(ttl_s);
    etcdserverpb::LeaseGrantResponse reply;
    NRAM_RETURN_IF_ERROR(Call(deadline_ns, [&](grpc::ClientContext* context) {
      return etcdserverpb::Lease::NewStub(channel_)->LeaseGrant(context, request, &reply);
    }));
    if (!reply.error().empty()) {
      return absl::UnavailableError(absl::StrCat("etcd grants no lease: ", Printable(reply.error(), 200)));
    }
    return reply.id();
  }

  absl::Status KeepAlive(int64_t lease, int64_t deadline_ns) override {
    etcdserverpb::LeaseKeepAliveRequest request;
    request.set_id(lease);
    etcdserverpb::LeaseKeepAliveResponse reply;
    NRAM_RETURN_IF_ERROR(Call(deadline_ns, [&](grpc::ClientContext* context) {
      const auto stub = etcdserverpb::Lease::NewStub(channel_);
      const auto stream = stub->LeaseKeepAlive(context);
      const bool answered = stream->Write(request) && stream->Read(&reply);
      stream->WritesDone();
      if (answered) context->TryCancel();
      const grpc::Status status = stream->Finish();
      return answered ? grpc::Status::OK : status;
    }));
    // No time left: it has ended.
    if (reply.ttl() > 0) return absl::OkStatus();
    return absl::NotFoundError("the lease at etcd has ended");
  }

  absl::Status EndLease(int64_t lease, int64_t deadline_ns) override {
    etcdserverpb::LeaseRevokeRequest request;
    request.set_id(lease);
    etcdserverpb::LeaseRevokeResponse reply;
    return Call(deadline_ns, [&](grpc::ClientContext* context) {
      return etcdserverpb::Lease::NewStub(channel_)->LeaseRevoke(context, request, &reply);
    });
  }

  absl::Status Put(const std::string& key, const std::string& value, int64_t lease, int64_t deadline_ns) override {
    etcdserverpb::PutRequest request;
    request.set_key(key);
    request.set_value(value);
    request.set_lease(lease);
    etcdserverpb::PutResponse reply;
    return Call(deadline_ns, [&](grpc::ClientContext* context) {
      return etcdserverpb::KV::NewStub(channel_)->Put(context, request, &reply);
    });
  }

  std::string host() const override {
    MutexLock lock(&mu_);
    return hosts_[host_ % hosts_.size()];
  }

  void Stop() override {
    MutexLock lock(&mu_);
    stopped_ = true;
    if (context_ != nullptr) context_->TryCancel();
  }

 private:
  static Entry ToEntry(etcdserverpb::RangeResponse* reply) {
    if (reply->kvs_size() == 0) return {};
    etcdserverpb::KeyValue* const pair = reply->mutable_kvs(0);
    return {pair->mod_revision(), std::move(*pair->mutable_value())};
  }

  // Has `run` make one call on channel_.
  template <typename Run>
  absl::Status Call(int64_t deadline_ns, Run run) {
    NRAM_RETURN_IF_ERROR(Connect());
    grpc::ClientContext context;
    if (deadline_ns != INT64_MAX) {
      context.set_deadline(std::chrono::system_clock::now() +
                           std::chrono::nanoseconds(std::max<int64_t>(deadline_ns - MonotonicNs(), 0)));
    }
    {
      MutexLock lock(&mu_);
      if (stopped_) return absl::CancelledError("stopped");
      context_ = &context;
    }
    const grpc::Status status = run(&context);
    MutexLock lock(&mu_);
    context_ = nullptr;
    if (status.ok()) return absl::OkStatus();
    if (stopped_) return absl::CancelledError("stopped");
    const auto code = static_cast<absl::StatusCode>(status.error_code());
    const std::string text =
        absl::StrCat("etcd at ", hosts_[host_ % hosts_.size()], ": ", Printable(status.error_message(), 300));
    // The next call goes to another host, by a connection of its own: this one may be half dead.
    if (code != absl::StatusCode::kNotFound) {
      channel_.reset();
      ++host_;
    }
    return absl::Status(code, text);
  }

  absl::Status Connect() {
    if (channel_ != nullptr) return absl::OkStatus();
    NRAM_ASSIGN_OR_RETURN(const auto credentials, CredentialsOf(tls_dir_));
    grpc::ChannelArguments arguments;
    arguments.SetMaxReceiveMessageSize(kReplyBytesMax);
    arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
    arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
    channel_ = grpc::CreateCustomChannel(host(), credentials, arguments);
    return absl::OkStatus();
  }

  const std::vector<std::string> hosts_;
  const std::string tls_dir_;
  std::shared_ptr<grpc::Channel> channel_;  // of the one user
  mutable Mutex mu_;
  size_t host_ ABSL_GUARDED_BY(mu_) = 0;
  bool stopped_ ABSL_GUARDED_BY(mu_) = false;
  grpc::ClientContext* context_ ABSL_GUARDED_BY(mu_) = nullptr;  // of the call under way
};

}  // namespace

std::unique_ptr<EtcdClient> EtcdClient::Create(std::vector<std::string> hosts, std::string tls_dir) {
  TakeGrpcLog();
  return std::make_unique<GrpcEtcdClient>(std::move(hosts), std::move(tls_dir));
}

std::string EtcdTlsDir() {
  constexpr char kDefault[] = "/etc/nram/etcd-tls";
  const char* const named = std::getenv("NRAM_ETCD_TLS_DIR");
  if (named != nullptr && *named != '\0') return std::string(named) == kNoTls ? "" : named;
  return MayExist(absl::StrCat(kDefault, "/ca.pem")) || MayExist(absl::StrCat(kDefault, "/ca.crt")) ? kDefault : "";
}

std::string EtcdRangeEnd(absl::string_view prefix) {
  std::string end(prefix);
  while (!end.empty()) {
    if (static_cast<unsigned char>(end.back()) != 0xFF) {
      ++end.back();
      return end;
    }
    end.pop_back();
  }
  return std::string(1, '\0');
}

}  // namespace nram
