#include "tools/nram/checkpoint_dir.h"

#include <fcntl.h>
#include <limits.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "base/crc32c.h"
#include "base/file.h"
#include "base/status.h"
#include "nlohmann/json.hpp"

namespace nram {
namespace {

using nlohmann::json;

constexpr int kFormat = 1;
// The manifest of a checkpoint while it is written.
constexpr const char* kPlan = "/manifest.json.part";
constexpr const char* kManifest = "/manifest.json";
constexpr const char* kSums = "/sums";
constexpr size_t kMappingsMax = 4096;
// The bound for all mappings together: the sums of their blocks are kept in memory.
constexpr uint64_t kBytesMax = uint64_t{64} << 40;

std::string ToText(const CheckpointManifest& manifest) {
  json mappings = json::array();
  for (size_t i = 0; i < manifest.mappings.size(); ++i) {
    mappings.push_back({{"name", manifest.mappings[i].name},
                        {"bytes", manifest.mappings[i].bytes},
                        {"file", absl::StrCat("mapping-", i, ".raw")}});
  }
  json out = {{"format", kFormat},
              {"name", manifest.name},
              {"number", manifest.number},
              {"step", manifest.step},
              {"time_ns", manifest.time_ns},
              {"header", manifest.header_json},
              {"block_bytes", kCheckpointBlockBytes},
              {"mappings", mappings}};
  if (!manifest.arrays.empty()) out["arrays"] = ArraysToJson(manifest.arrays);
  return out.dump(2, ' ', false, json::error_handler_t::replace) + "\n";
}

// nullopt: it is no manifest.
std::optional<CheckpointManifest> FromText(const std::string& text) {
  const json in = json::parse(text, nullptr, /*allow_exceptions=*/false);
  const auto is_number = [](const json& at, const char* key) {
    return at.is_object() && at.contains(key) && at[key].is_number_unsigned();
  };
  const auto is_text = [](const json& at, const char* key) {
    return at.is_object() && at.contains(key) && at[key].is_string();
  };
  const bool fits = is_number(in, "format") && in["format"] == kFormat && is_text(in, "name") &&
                    is_number(in, "number") && is_number(in, "step") && is_number(in, "time_ns") &&
                    is_text(in, "header") && is_number(in, "block_bytes") &&
                    in["block_bytes"] == kCheckpointBlockBytes && in.contains("mappings") && in["mappings"].is_array();
  if (!fits || in["mappings"].size() > kMappingsMax) return std::nullopt;
  CheckpointManifest manifest;
  manifest.name = in["name"].get<std::string>();
  manifest.number = in["number"].get<uint64_t>();
  manifest.step = in["step"].get<uint64_t>();
  manifest.time_ns = in["time_ns"].get<int64_t>();
  manifest.header_json = in["header"].get<std::string>();
  uint64_t bytes_left = kBytesMax;
  std::vector<uint64_t> lengths;
  for (const json& mapping : in["mappings"]) {
    if (!is_text(mapping, "name") || !is_number(mapping, "bytes")) return std::nullopt;
    manifest.mappings.push_back({mapping["name"].get<std::string>(), mapping["bytes"].get<uint64_t>()});
    const uint64_t bytes = manifest.mappings.back().bytes;
    if (bytes > bytes_left) return std::nullopt;
    bytes_left -= bytes;
    lengths.push_back(bytes);
  }
  // Former checkpoints say nothing of them.
  if (in.contains("arrays")) {
    absl::StatusOr<std::vector<PublishedArray>> arrays = ArraysFromJson(in["arrays"]);
    if (!arrays.ok() || !CheckArrays(*arrays, lengths).ok()) return std::nullopt;
    manifest.arrays = *std::move(arrays);
  }
  return manifest;
}

// All of it, or an error.
absl::Status ReadAt(int fd, void* to, uint64_t bytes, uint64_t offset, const std::string& path) {
  auto* at = static_cast<char*>(to);
  while (bytes > 0) {
    const ssize_t got = pread(fd, at, bytes, static_cast<off_t>(offset));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return ErrnoStatus(errno, absl::StrCat("read ", path));
    if (got == 0) return absl::DataLossError(absl::StrCat(path, " ends before byte ", offset + bytes));
    at += got;
    bytes -= static_cast<uint64_t>(got);
    offset += static_cast<uint64_t>(got);
  }
  return absl::OkStatus();
}

absl::Status WriteAt(int fd, const void* from, uint64_t bytes, uint64_t offset, const std::string& path) {
  const auto* at = static_cast<const char*>(from);
  while (bytes > 0) {
    const ssize_t put = pwrite(fd, at, bytes, static_cast<off_t>(offset));
    if (put < 0 && errno == EINTR) continue;
    if (put < 0) return ErrnoStatus(errno, absl::StrCat("write ", path));
    at += put;
    bytes -= static_cast<uint64_t>(put);
    offset += static_cast<uint64_t>(put);
  }
  return absl::OkStatus();
}

absl::Status Sync(const std::string& path) {
  const UniqueFd fd(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!fd.valid() || fsync(fd.get()) != 0) return ErrnoStatus(errno, absl::StrCat("fsync ", path));
  return absl::OkStatus();
}

absl::Status MakeDirectory(const std::string& path) {
  if (mkdir(path.c_str(), 0777) == 0 || errno == EEXIST) return absl::OkStatus();
  return ErrnoStatus(errno, absl::StrCat("make directory ", path));
}

bool IsZeros(const std::byte* data, uint64_t bytes) {
  return std::all_of(data, data + bytes, [](std::byte b) { return b == std::byte{0}; });
}

}  // namespace

uint64_t CheckpointManifest::BytesOfBlock(size_t mapping, uint64_t block) const {
  return std::min(kCheckpointBlockBytes, mappings[mapping].bytes - block * kCheckpointBlockBytes);
}

std::string CheckpointPath(const std::string& directory, const std::string& name, uint64_t number) {
  return absl::StrCat(directory, "/", absl::StrReplaceAll(name, {{"%", "%25"}, {"/", "%2F"}}), "-", number);
}

CheckpointFiles::CheckpointFiles(std::string path, CheckpointManifest manifest)
    : path_(std::move(path)), manifest_(std::move(manifest)) {
  uint64_t first = 0;
  for (size_t i = 0; i < manifest_.mappings.size(); ++i) {
    first_block_.push_back(first);
    first += manifest_.blocks(i);
  }
  sums_.resize(first);
}

std::string CheckpointFiles::FileOf(size_t mapping) const { return absl::StrCat(path_, "/mapping-", mapping, ".raw"); }

absl::Status CheckpointFiles::Open(int flags) {
  const auto open_one = [&](const std::string& path, UniqueFd* fd) {
    fd->reset(open(path.c_str(), flags | O_CLOEXEC | O_NOFOLLOW, 0666));
    return fd->valid() ? absl::OkStatus() : ErrnoStatus(errno, absl::StrCat("open ", path));
  };
  NRAM_RETURN_IF_ERROR(open_one(path_ + kSums, &sums_fd_));
  for (size_t i = 0; i < manifest_.mappings.size(); ++i) {
    UniqueFd fd;
    NRAM_RETURN_IF_ERROR(open_one(FileOf(i), &fd));
    data_.push_back(std::move(fd));
  }
  return absl::OkStatus();
}

absl::Status CheckpointFiles::ReadData(size_t mapping, uint64_t block, absl::Span<std::byte> to) const {
  return ReadAt(data_[mapping].get(), to.data(), to.size(), block * kCheckpointBlockBytes, FileOf(mapping));
}

absl::StatusOr<std::unique_ptr<CheckpointWriter>> CheckpointWriter::Create(const std::string& directory,
                                                                           const CheckpointManifest& manifest) {
  if (manifest.name.empty() || manifest.mappings.empty() || manifest.mappings.size() > kMappingsMax) {
    return absl::InvalidArgumentError(absl::StrCat("a checkpoint needs a name and 1 to ", kMappingsMax, " mappings"));
  }
  uint64_t bytes_left = kBytesMax;
  for (const auto& mapping : manifest.mappings) {
    if (mapping.bytes > bytes_left) {
      return absl::InvalidArgumentError(absl::StrCat("a checkpoint has at most ", FormatByteSize(kBytesMax)));
    }
    bytes_left -= mapping.bytes;
  }
  std::string path = CheckpointPath(directory, manifest.name, manifest.number);
  if (const size_t size = path.size() - directory.size() - 1; size > NAME_MAX) {
    return absl::InvalidArgumentError(absl::StrCat("the name of this checkpoint's directory would have ", size,
                                                   " bytes (\"%\" and \"/\" count three each), at most ", NAME_MAX,
                                                   " are possible: publish under a shorter name"));
  }
  std::unique_ptr<CheckpointWriter> writer(new CheckpointWriter(std::move(path), manifest));
  NRAM_RETURN_IF_ERROR(writer->Begin(directory));
  return writer;
}

absl::Status CheckpointWriter::Begin(const std::string& directory) {
  NRAM_RETURN_IF_ERROR(MakeDirectory(directory));
  NRAM_RETURN_IF_ERROR(MakeDirectory(path_));
  const std::string plan = ToText(manifest_);
  NRAM_RETURN_IF_ERROR(Open(O_RDWR | O_CREAT));
  if (flock(sums_fd_.get(), LOCK_EX | LOCK_NB) != 0) {
    return absl::UnavailableError(absl::StrCat(path_, " is being written by another process"));
  }
  if (const absl::StatusOr<std::string> whole = ReadFile(path_ + kManifest); whole.ok()) {
    complete_ = *whole == plan;
    if (complete_) return absl::OkStatus();
    return absl::AlreadyExistsError(absl::StrCat(path_, " is another checkpoint: remove it first"));
  }
  const absl::StatusOr<std::string> begun = ReadFile(path_ + kPlan);
  resumes_ = begun.ok() && *begun == plan;
  if (!resumes_) {
    // The sums are emptied first: sums of blocks that are no longer there must not be believed.
    if (ftruncate(sums_fd_.get(), 0) != 0) return ErrnoStatus(errno, absl::StrCat("truncate ", path_, kSums));
    for (size_t i = 0; i < data_.size(); ++i) {
      if (ftruncate(data_[i].get(), 0) != 0) return ErrnoStatus(errno, absl::StrCat("truncate ", FileOf(i)));
    }
    NRAM_RETURN_IF_ERROR(WriteFileAtomically(path_ + kPlan, plan));
  }
  for (size_t i = 0; i < data_.size(); ++i) {
    if (ftruncate(data_[i].get(), static_cast<off_t>(manifest_.mappings[i].bytes)) != 0) {
      return ErrnoStatus(errno, absl::StrCat("make ", FileOf(i), " ", manifest_.mappings[i].bytes, " bytes long"));
    }
  }
  if (ftruncate(sums_fd_.get(), static_cast<off_t>(sums_.size() * sizeof(Sum))) != 0) {
    return ErrnoStatus(errno, absl::StrCat("make room in ", path_, kSums));
  }
  return ReadAt(sums_fd_.get(), sums_.data(), sums_.size() * sizeof(Sum), 0, path_ + kSums);
}

bool CheckpointWriter::Has(size_t mapping, uint64_t block) const {
  if (complete_) return true;
  const Sum& sum = sums_[IndexOf(mapping, block)];
  if (sum.done != kDone) return false;
  // The machine may have stopped when the sum was on the disk already, and the data was not.
  std::vector<std::byte> data(manifest_.BytesOfBlock(mapping, block));
  return ReadData(mapping, block, absl::MakeSpan(data)).ok() && Crc32c(0, data.data(), data.size()) == sum.crc;
}

absl::Status CheckpointWriter::Write(size_t mapping, uint64_t block, absl::Span<const std::byte> from) {
  if (from.size() != manifest_.BytesOfBlock(mapping, block)) {
    return absl::InvalidArgumentError(absl::StrCat("block ", block, " of mapping ", mapping, " has ",
                                                   manifest_.BytesOfBlock(mapping, block), " bytes, not ",
                                                   from.size()));
  }
  const std::string path = FileOf(mapping);
  const uint64_t begin = block * kCheckpointBlockBytes;
  // Runs of pages that are no zeros; all of a block where something may be.
  const auto is_hole = [&](uint64_t at) {
    return !resumes_ && IsZeros(from.data() + at, std::min<uint64_t>(kPageBytes, from.size() - at));
  };
  for (uint64_t at = 0; at < from.size();) {
    uint64_t end = at;
    while (end < from.size() && !is_hole(end)) end += kPageBytes;
    end = std::min<uint64_t>(end, from.size());
    if (end > at) NRAM_RETURN_IF_ERROR(WriteAt(data_[mapping].get(), from.data() + at, end - at, begin + at, path));
    at = end + kPageBytes;  // that one is a hole
  }
  const uint64_t index = IndexOf(mapping, block);
  sums_[index] = {Crc32c(0, from.data(), from.size()), kDone};
  return WriteAt(sums_fd_.get(), &sums_[index], sizeof(Sum), index * sizeof(Sum), path_ + kSums);
}

absl::Status CheckpointWriter::Finish() {
  if (complete_) return absl::OkStatus();
  for (size_t i = 0; i < sums_.size(); ++i) {
    if (sums_[i].done != kDone) {
      return absl::FailedPreconditionError(absl::StrCat("MiB ", i, " of checkpoint ", path_, " was not written"));
    }
  }
  for (size_t i = 0; i < data_.size(); ++i) {
    if (fsync(data_[i].get()) != 0) return ErrnoStatus(errno, absl::StrCat("fsync ", FileOf(i)));
  }
  if (fsync(sums_fd_.get()) != 0) return ErrnoStatus(errno, absl::StrCat("fsync ", path_, kSums));
  NRAM_RETURN_IF_ERROR(Sync(path_ + kPlan));
  NRAM_RETURN_IF_ERROR(Sync(path_));
  if (rename((path_ + kPlan).c_str(), (path_ + kManifest).c_str()) != 0) {
    return ErrnoStatus(errno, absl::StrCat("rename ", path_, kPlan));
  }
  NRAM_RETURN_IF_ERROR(Sync(path_));
  NRAM_RETURN_IF_ERROR(Sync(path_ + "/.."));
  complete_ = true;
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<CheckpointReader>> CheckpointReader::Open(const std::string& path) {
  const absl::StatusOr<std::string> text = ReadFile(path + kManifest);
  if (absl::IsNotFound(text.status())) {
    return absl::NotFoundError(
        absl::StrCat(path, " has no manifest.json: it is not a checkpoint, or an unfinished one"));
  }
  NRAM_RETURN_IF_ERROR(text.status());
  std::optional<CheckpointManifest> manifest = FromText(*text);
  if (!manifest.has_value()) {
    return absl::DataLossError(absl::StrCat(path, kManifest, " is damaged, or written by a newer nram"));
  }
  // Checks the sizes before it takes memory for them.
  uint64_t blocks = 0;
  for (size_t i = 0; i < manifest->mappings.size(); ++i) {
    struct stat stat;
    const std::string file = absl::StrCat(path, "/mapping-", i, ".raw");
    if (::stat(file.c_str(), &stat) != 0) return absl::DataLossError(absl::StrCat(file, " is missing"));
    if (static_cast<uint64_t>(stat.st_size) != manifest->mappings[i].bytes) {
      return absl::DataLossError(absl::StrCat(file, " has ", stat.st_size, " bytes instead of ",
                                              manifest->mappings[i].bytes));
    }
    blocks += manifest->blocks(i);
  }
  struct stat sums;
  if (::stat((path + kSums).c_str(), &sums) != 0 || static_cast<uint64_t>(sums.st_size) != blocks * sizeof(Sum)) {
    return absl::DataLossError(absl::StrCat(path, kSums, " is missing, or has the wrong length"));
  }
  std::unique_ptr<CheckpointReader> reader(new CheckpointReader(path, *std::move(manifest)));
  NRAM_RETURN_IF_ERROR(reader->CheckpointFiles::Open(O_RDONLY));
  NRAM_RETURN_IF_ERROR(
      ReadAt(reader->sums_fd_.get(), reader->sums_.data(), reader->sums_.size() * sizeof(Sum), 0, path + kSums));
  return reader;
}

absl::Status CheckpointReader::Read(size_t mapping, uint64_t block, absl::Span<std::byte> to) const {
  if (to.size() != manifest_.BytesOfBlock(mapping, block)) return absl::InvalidArgumentError("not a block's size");
  NRAM_RETURN_IF_ERROR(ReadData(mapping, block, to));
  const Sum& sum = sums_[IndexOf(mapping, block)];
  if (sum.done == kDone && Crc32c(0, to.data(), to.size()) == sum.crc) return absl::OkStatus();
  return absl::DataLossError(absl::StrCat(FileOf(mapping), ": MiB ", block, " has a wrong checksum"));
}

}  // namespace nram
