// nram checkpoint, nram restore: published versions to files, and back.

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <iostream>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/status.h"
#include "base/units.h"
#include "base/utf8.h"
#include "client/pool/publication.h"
#include "tools/nram/checkpoint_dir.h"
#include "tools/nram/published.h"

namespace nram {
namespace {

constexpr int64_t kTimeoutMs = 30'000;
// A wait for the next version is begun anew after this time.
constexpr int64_t kTurnMs = 60'000;

void RegisterProgress(ArgParser* parser, bool* progress) {
  parser->Switch("progress", progress, {"", "show the progress, or --no-progress (default: on a terminal)"});
}

struct CheckpointFlags {
  NamedPoolFlags pool;
  bool once = false;
  bool progress = isatty(STDERR_FILENO) != 0;
  int64_t every = 1;

  void Register(ArgParser* parser) {
    pool.Register(parser);
    parser->Switch("once", &once, {"", "write the newest version and end"});
    parser->Integer("every", 1, 1'000'000, &every, {"N", "1..1000000: write only every Nth version (default 1)"});
    RegisterProgress(parser, &progress);
  }
};

struct RestoreFlags {
  NamedPoolFlags pool;
  std::string as;
  bool progress = isatty(STDERR_FILENO) != 0;
  int64_t copies = 1;

  void Register(ArgParser* parser) {
    pool.Register(parser);
    parser->String("as", &as, {"NAME", "the region's name (default: its former name)"});
    parser->Integer("copies", 1, kReplicasMax, &copies,
                    {"N", "1..4 copies of each page, on different hosts (default 1)"});
    RegisterProgress(parser, &progress);
  }
};

// A line on the standard error that says how far it is: written anew once a second, and at the end.
class Progress {
 public:
  Progress(bool shows, const CheckpointManifest& manifest) : shows_(shows) {
    for (const auto& mapping : manifest.mappings) total_ += mapping.bytes;
  }
  ~Progress() {
    if (!shows_) return;
    Show();
    fprintf(stderr, "\n");
  }
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  void Add(uint64_t bytes) {
    done_ += bytes;
    if (shows_ && MonotonicNs() >= next_ns_) Show();
  }

 private:
  void Show() {
    next_ns_ = MonotonicNs() + kNsPerSecond;
    fprintf(stderr, "\r%s of %s   ", FormatByteSize(done_).c_str(), FormatByteSize(total_).c_str());
  }

  const bool shows_;
  uint64_t done_ = 0;
  uint64_t total_ = 0;
  int64_t next_ns_ = 0;
};

absl::Status CopyMapping(Region* version, const CheckpointManifest& manifest, size_t mapping, CheckpointWriter* writer,
                         Progress* progress) {
  std::vector<std::byte> data(kCheckpointBlockBytes);
  for (uint64_t block = 0; block < manifest.blocks(mapping); ++block) {
    const uint64_t bytes = manifest.BytesOfBlock(mapping, block);
    if (writer->Has(mapping, block)) {
      progress->Add(bytes);
      continue;
    }
    // A region has whole pages.
    const auto to = absl::MakeSpan(data).first(RoundUp(bytes, kPageBytes));
    NRAM_RETURN_IF_ERROR(version->Read(block * kCheckpointBlockBytes, to));
    NRAM_RETURN_IF_ERROR(writer->Write(mapping, block, to.first(bytes)));
    progress->Add(bytes);
  }
  return absl::OkStatus();
}

absl::Status WriteCheckpoint(Pool* pool, const std::string& name, const PublicationRecord& record,
                             const std::string& directory, bool shows) {
  CheckpointManifest manifest{name, record.number, record.step, record.time_ns, record.header_json, {}, record.arrays};
  for (size_t i = 0; i < record.regions.size(); ++i) {
    manifest.mappings.push_back({record.regions[i].name, record.lengths[i]});
  }
  // All of them are held before the first is copied.
  std::vector<std::unique_ptr<Region>> versions;
  for (const VersionPlace& place : record.regions) {
    NRAM_ASSIGN_OR_RETURN(std::unique_ptr<Region> version, pool->OpenVersion(place));
    versions.push_back(std::move(version));
  }
  NRAM_ASSIGN_OR_RETURN(const std::unique_ptr<CheckpointWriter> writer, CheckpointWriter::Create(directory, manifest));
  if (!writer->complete()) {
    Progress progress(shows, manifest);
    for (size_t i = 0; i < versions.size(); ++i) {
      NRAM_RETURN_IF_ERROR(CopyMapping(versions[i].get(), manifest, i, writer.get(), &progress));
    }
  }
  NRAM_RETURN_IF_ERROR(writer->Finish());
  printf("%s\n", writer->path().c_str());
  fflush(stdout);
  return absl::OkStatus();
}

absl::Status Checkpoint(const CheckpointFlags& flags, const std::string& name, const std::string& directory) {
  NRAM_ASSIGN_OR_RETURN(const std::unique_ptr<Pool> pool, OpenNamedPool(flags.pool));
  NRAM_ASSIGN_OR_RETURN(const std::unique_ptr<Publication> publication,
                        FindPublication(pool.get(), name, AttachMode::kReadOnly));
  uint64_t wanted = 0;  // the newest, but not before this one
  while (true) {
    const absl::StatusOr<PublicationRecord> record = publication->Read(0, DeadlineAfterMs(kTimeoutMs));
    if (flags.once || (!record.ok() && !absl::IsNotFound(record.status()))) NRAM_RETURN_IF_ERROR(record.status());
    if (record.ok() && record->number >= wanted) {
      absl::Status status = WriteCheckpoint(pool.get(), name, *record, directory, flags.progress);
      if (flags.once) return status;
      // It has given way; there will be another.
      if (absl::IsDataLoss(status)) {
        std::cerr << "nram checkpoint: " << status.message() << std::endl;
        status = absl::OkStatus();
      }
      NRAM_RETURN_IF_ERROR(status);
      wanted = record->number + static_cast<uint64_t>(flags.every);
    }
    const absl::StatusOr<uint64_t> next =
        publication->AwaitAbove(std::max<uint64_t>(wanted, 1) - 1, DeadlineAfterMs(kTurnMs));
    if (!next.ok() && !absl::IsDeadlineExceeded(next.status())) return next.status();
  }
}

absl::Status RestoreMapping(const CheckpointReader& reader, size_t mapping, Region* region, Progress* progress) {
  const CheckpointManifest& manifest = reader.manifest();
  std::vector<std::byte> data(kCheckpointBlockBytes);
  for (uint64_t block = 0; block < manifest.blocks(mapping); ++block) {
    std::fill(data.begin(), data.end(), std::byte{0});
    const uint64_t bytes = manifest.BytesOfBlock(mapping, block);
    NRAM_RETURN_IF_ERROR(reader.Read(mapping, block, absl::MakeSpan(data).first(bytes)));
    progress->Add(bytes);
    // A block that was never written stays a hole.
    if (std::all_of(data.begin(), data.end(), [](std::byte b) { return b == std::byte{0}; })) continue;
    NRAM_RETURN_IF_ERROR(
        region->Write(block * kCheckpointBlockBytes, absl::MakeConstSpan(data).first(RoundUp(bytes, kPageBytes))));
  }
  return absl::OkStatus();
}

// Publishes the restored data as a version of `name`, with all fields of its manifest.
absl::Status PublishRestored(Pool* pool, const std::string& name, const CheckpointManifest& manifest,
                             const std::vector<std::unique_ptr<Region>>& regions) {
  auto publication = Publication::Create(pool, name, {});
  // The list may have outlived its regions.
  if (absl::IsAlreadyExists(publication.status())) publication = Publication::Attach(pool, name, AttachMode::kOwner);
  NRAM_RETURN_IF_ERROR(publication.status());
  PublicationRecord record;
  record.number = std::max(manifest.number, (*publication)->NextNumber());
  record.time_ns = manifest.time_ns;
  record.step = manifest.step;
  record.header_json = manifest.header_json;
  record.arrays = manifest.arrays;
  for (size_t i = 0; i < regions.size(); ++i) {
    NRAM_ASSIGN_OR_RETURN(const SealedVersion sealed, regions[i]->Snapshot(VersionKeep::kUntilDropped));
    record.regions.push_back(
        {regions[i]->name(), regions[i]->id(), sealed.number, sealed.incarnations, sealed.least_in_sync});
    record.lengths.push_back(manifest.mappings[i].bytes);
  }
  return (*publication)->Commit(record, DeadlineAfterMs(kTimeoutMs));
}

absl::Status Restore(const RestoreFlags& flags, const std::string& directory) {
  NRAM_ASSIGN_OR_RETURN(const std::unique_ptr<CheckpointReader> reader, CheckpointReader::Open(directory));
  const CheckpointManifest& manifest = reader->manifest();
  if (!flags.as.empty() && manifest.mappings.size() > 1) {
    return absl::InvalidArgumentError(
        absl::StrCat(directory, " has ", manifest.mappings.size(), " mappings: --as names a single one, so omit it"));
  }
  NRAM_ASSIGN_OR_RETURN(const std::unique_ptr<Pool> pool, OpenNamedPool(flags.pool));
  Progress progress(flags.progress, manifest);
  std::vector<std::unique_ptr<Region>> regions;
  for (size_t i = 0; i < manifest.mappings.size(); ++i) {
    RegionOptions options;
    options.name = flags.as.empty() ? manifest.mappings[i].name : flags.as;
    options.size_bytes = manifest.mappings[i].bytes;
    options.copies = static_cast<int>(flags.copies);
    options.versioned = true;
    NRAM_ASSIGN_OR_RETURN(std::unique_ptr<Region> region, pool->CreateRegion(options));
    if (const absl::Status status = RestoreMapping(*reader, i, region.get(), &progress); !status.ok()) {
      (void)region->Destroy();
      return Annotate(status, absl::StrCat("region \"", Printable(options.name, 1000), "\" was not restored"));
    }
    printf("%s  %s\n", Printable(options.name, 1000).c_str(), FormatByteSize(options.size_bytes).c_str());
    regions.push_back(std::move(region));
  }
  // The memory is there in any case.
  const std::string& name = flags.as.empty() ? manifest.name : flags.as;
  if (const absl::Status status = PublishRestored(pool.get(), name, manifest, regions); !status.ok()) {
    std::cerr << "nram restore: the regions are restored, but not published under the name \"" << Printable(name, 1000)
              << "\": " << status.message() << std::endl;
  }
  return absl::OkStatus();
}

int RunCheckpoint(CheckpointFlags& flags, const Invocation& given) {
  if (given.words.size() != 2) {
    std::cerr << "nram checkpoint: give the name of a publication and a directory\n"
                 "Try 'nram checkpoint --help'.\n";
    return 2;
  }
  return ToExitCode(Checkpoint(flags, given.words[0], given.words[1]), "nram checkpoint");
}

int RunRestore(RestoreFlags& flags, const Invocation& given) {
  if (given.words.size() != 1) {
    std::cerr << "nram restore: give one directory that nram checkpoint has written\nTry 'nram restore --help'.\n";
    return 2;
  }
  return ToExitCode(Restore(flags, given.words[0]), "nram restore");
}

}  // namespace

Command CheckpointCommand() {
  return DefineCommand<CheckpointFlags>({"checkpoint", "write published versions to files",
                                         R"(usage: nram checkpoint NAME DIR [flags]

Writes each version that is published under NAME to DIR/NAME-N/, and prints that path when
the checkpoint is whole and on the disk. mapping-0.raw and so on hold the memory's contents
(holes take no room), sums holds a checksum of each MiB, and manifest.json, written last,
describes the checkpoint. The publishing program continues meanwhile. If it publishes
versions faster than the disk can write them, some are skipped.

If this command is interrupted and started again, it continues with the same version while
that version exists.

)",
                                         R"(
example: nram checkpoint temperature /scratch/run7 --every=10
         nram checkpoint temperature /scratch/run7 --once
)"},
                                        Words::kAny, &RunCheckpoint);
}

Command RestoreCommand() {
  return DefineCommand<RestoreFlags>({"restore", "load a checkpoint into the pool",
                                      R"(usage: nram restore DIR [flags]

Makes a region of each mapping in DIR, a checkpoint by nram checkpoint (DIR is the directory
with manifest.json), and checks every MiB against its checksum. Programs then attach the
region by its name. Fails if a region of that name exists. The state is also published
again, with its step, header and arrays, until it is dropped.

The regions have no owner and are listed as orphans: nram regions --destroy=NAME destroys one,
with its versions.

)",
                                      R"(
example: nram restore /scratch/run7/temperature-120 --as=temperature
)"},
                                     Words::kAny, &RunRestore);
}

}  // namespace nram
