#ifndef NRAM_TESTS_FUZZ_FUSE_REQUESTS_H_
#define NRAM_TESTS_FUZZ_FUSE_REQUESTS_H_

#include <algorithm>
#include <cstring>
#include <string>

#include "absl/strings/string_view.h"
#include "fsd/fuse_adapter.h"
#include "tests/fuzz/input.h"

namespace nram {

// Composes requests as the kernel does: bodies have their size, names end, and announced data follows. libfuse relies
// on this.
class FuseRequests {
 public:
  FuseRequests(FuzzInput* input, FuseWorker* worker) : input_(*input), worker_(worker) {}

  // Each returns the request's bytes.
  size_t Init() {
    fuse_init_in init{};
    init.major = 7;
    init.minor = 31 + input_.Byte() % 8;
    init.max_readahead = static_cast<uint32_t>(input_.AnyNumber());
    init.flags = input_.Byte() % 2 == 0 ? ~0u : static_cast<uint32_t>(input_.Number(4));
    init.flags2 = static_cast<uint32_t>(input_.AnyNumber());
    Begin(FUSE_INIT, 0);
    Put(init);
    return End();
  }
  size_t Next();

 private:
  // The bytes that requests of one input read, write and copy in all; beyond them they are small.
  static constexpr size_t kDataBytesPerInput = 256 * 1024;
  static constexpr size_t kLargeBytes = 128 * 1024;

  void Begin(uint32_t opcode, uint64_t nodeid) {
    header_ = {};
    header_.opcode = opcode;
    header_.nodeid = nodeid;
    header_.unique = ++unique_ * 2;
    const uint8_t who = opcode == FUSE_INIT ? 0 : input_.Byte();
    header_.uid = who % 2 * 1000;
    header_.gid = who / 2 % 2 * 1000;
    bytes_ = sizeof header_;
  }
  size_t End() {
    header_.len = static_cast<uint32_t>(bytes_);
    memcpy(worker_->request(), &header_, sizeof header_);
    return bytes_;
  }
  template <typename Body>
  void Put(const Body& body) {
    memcpy(worker_->request() + bytes_, &body, sizeof body);
    bytes_ += sizeof body;
  }
  void PutText(absl::string_view text, bool terminated = true) {
    memcpy(worker_->request() + bytes_, text.data(), text.size());
    bytes_ += text.size();
    if (terminated) worker_->request()[bytes_++] = std::byte{0};
  }

  uint64_t Inode() { return input_.SmallOrAny(8) + 1; }
  uint64_t Offset() {
    const uint8_t unit = input_.Byte();
    if (unit % 8 == 7) return input_.AnyNumber();
    return input_.Number(2) << (unit % 2 == 0 ? 0 : 9);
  }
  uint32_t Size() {
    const uint8_t kind = input_.Byte();
    size_t size = kind % 8 == 7 ? input_.Number(4) % kLargeBytes : kind % 8 < 4 ? input_.Byte() : input_.Number(2);
    size = std::min(size, std::max<size_t>(data_left_, 700));
    data_left_ -= std::min(data_left_, size);
    return static_cast<uint32_t>(size);
  }
  // Few names, so that requests meet the same files; some names are long, or strange.
  std::string Name() {
    const uint8_t kind = input_.Byte();
    if (kind % 8 < 6) return std::string(1, static_cast<char>('a' + kind / 8 % 6));
    if (kind % 8 == 6) return std::string(250 + kind / 8 % 8, 'n');
    std::string name(input_.Take(input_.Byte() % 16));
    name.resize(strlen(name.c_str()));
    return name;
  }
  std::string XattrName() {
    static constexpr const char* kNames[] = {
        "user.a", "user.b", "trusted.a", "security.capability", "system.posix_acl_access", "system.posix_acl_default"};
    const uint8_t kind = input_.Byte();
    return kind % 8 < 6 ? kNames[kind % 8] : "user." + Name();
  }
  std::string Data(size_t size) {
    std::string data(input_.Take(std::min<size_t>(size, input_.Byte())));
    data.resize(size, 'd');
    return data;
  }

  bool PutNamesRequest(uint32_t opcode);
  void PutDataRequest(uint32_t opcode);
  void PutXattrRequest(uint32_t opcode);
  void PutOtherRequest(uint32_t opcode);

  FuzzInput& input_;
  FuseWorker* const worker_;
  fuse_in_header header_{};
  uint64_t unique_ = 0;
  size_t bytes_ = 0;
  size_t data_left_ = kDataBytesPerInput;
};

}  // namespace nram

#endif  // NRAM_TESTS_FUZZ_FUSE_REQUESTS_H_
