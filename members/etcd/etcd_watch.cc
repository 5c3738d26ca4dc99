#include "members/etcd/etcd_watch.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/utf8.h"

namespace nram {

grpc::Status EtcdWatch::Run(const std::string& prefix, int64_t from_revision, Heard heard, absl::Status* refused) {
  auto* const create = request_.mutable_create_request();
  create->set_key(prefix);
  create->set_range_end(EtcdRangeEnd(prefix));
  create->set_start_revision(from_revision);
  stream_ = stub_->PrepareAsyncWatch(context_, &queue_);
  stream_->StartCall(TagOf(kStart));
  int64_t heard_ns = MonotonicNs();
  int64_t ask_ns = INT64_MAX;  // when etcd is to be asked whether it is there
  const int64_t silence_ns = silence_ms_ * kNsPerMs;
  while (true) {
    void* tag = nullptr;
    bool ok = false;
    const int64_t wait_ns = std::max<int64_t>(std::min(heard_ns + silence_ns, ask_ns) - MonotonicNs(), 0);
    const auto next = queue_.AsyncNext(&tag, &ok, std::chrono::system_clock::now() + std::chrono::nanoseconds(wait_ns));
    const int64_t now_ns = MonotonicNs();
    if (next == grpc::CompletionQueue::GOT_EVENT) {
      if (tag == TagOf(kWrite)) writing_ = false;
      if (!ok) return End();
      if (tag == TagOf(kStart)) {
        Write();
        stream_->Read(&response_, TagOf(kRead));
      } else if (tag == TagOf(kRead)) {
        heard_ns = now_ns;
        if (ask_ns == INT64_MAX) ask_ns = now_ns + silence_ns / 3;
        if (!Take(heard, refused)) {
          context_->TryCancel();
          return End();
        }
        stream_->Read(&response_, TagOf(kRead));
      }
    }
    if (now_ns - heard_ns >= silence_ns) {
      context_->TryCancel();
      (void)End();
      return {grpc::StatusCode::UNAVAILABLE, absl::StrCat("nothing was received for ", silence_ms_, " ms")};
    }
    if (now_ns >= ask_ns && !writing_) {
      AskProgress();
      ask_ns = now_ns + silence_ns / 3;
    }
  }
}

bool EtcdWatch::Take(Heard heard, absl::Status* refused) {
  if (response_.canceled()) {
    *refused =
        response_.compact_revision() > 0
            ? absl::OutOfRangeError(
                  absl::StrCat("etcd has compacted its changes up to revision ", response_.compact_revision()))
            : absl::UnavailableError(absl::StrCat("etcd ended the watch: ", Printable(response_.cancel_reason(), 200)));
    return false;
  }
  std::vector<EtcdClient::Change> changes;
  for (etcdserverpb::Event& event : *response_.mutable_events()) {
    EtcdClient::Change change{std::move(*event.mutable_kv()->mutable_key()), std::nullopt};
    if (event.type() == etcdserverpb::Event::PUT) change.value = std::move(*event.mutable_kv()->mutable_value());
    changes.push_back(std::move(change));
  }
  heard(changes);
  return true;
}

void EtcdWatch::AskProgress() {
  request_.mutable_progress_request();
  Write();
}

void EtcdWatch::Write() {
  writing_ = true;
  stream_->Write(request_, TagOf(kWrite));
}

grpc::Status EtcdWatch::End() {
  grpc::Status status;
  stream_->Finish(&status, TagOf(kFinish));
  void* tag = nullptr;
  bool ok = false;
  // A frozen host must not keep this waiting.
  context_->TryCancel();
  while (queue_.Next(&tag, &ok) && tag != TagOf(kFinish)) {
  }
  queue_.Shutdown();
  while (queue_.Next(&tag, &ok)) {
  }
  return status;
}

}  // namespace nram
