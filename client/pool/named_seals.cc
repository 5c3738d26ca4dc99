#include "client/pool/named_seals.h"

#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "base/utf8.h"

namespace nram {

absl::StatusOr<bool> NamedSeals::Decide(const RegionOptions& options) const {
  const bool seals = options.seal == Seal::kYes || (options.seal == Seal::kAuto && demands());
  if (!seals || secret_ != nullptr) return seals;
  return absl::FailedPreconditionError(
      absl::StrCat("region ", Quoted(options.name),
                   " is sealed and outlives this process, so it needs a key file. Make and name one "
                   "((umask 077; head -c 32 /dev/urandom > FILE), NRAM_KEY_FILE=FILE), or do not seal (NRAM_SEAL=0)"));
}

absl::StatusOr<std::optional<SealManifest>> NamedSeals::Check(const std::string& name, RegionId id,
                                                              const std::vector<RegionInfo>& infos) const {
  bool sealed = false;
  for (const RegionInfo& info : infos) sealed = sealed || (info.id == id && info.pages_sealed);
  if (!sealed) {
    if (!demands()) return std::nullopt;
    return absl::FailedPreconditionError(
        absl::StrCat("region ", Quoted(name), " is not sealed, and this pool seals its regions: its servers can read ",
                     "all of it, and may have made it. To accept that, set NRAM_SEAL=0"));
  }
  if (secret_ == nullptr) {
    return absl::FailedPreconditionError(absl::StrCat(
        "region ", Quoted(name), " is sealed: name the key file that it was made with (NRAM_KEY_FILE=FILE)"));
  }
  std::optional<SealManifest> all;
  for (const RegionInfo& info : infos) {
    if (info.id != id) continue;
    absl::StatusOr<SealManifest> manifest = SealManifest::Read(*secret_, info.seal_manifest);
    if (!manifest.ok()) return Annotate(manifest.status(), absl::StrCat("region ", Quoted(name)));
    const SealManifest told{.id = id, .name = name, .size_bytes = info.size_bytes, .copies = info.copies, .salts = {}};
    if (!info.pages_sealed || !manifest->IsOfSame(told)) {
      return absl::DataLossError(absl::StrCat("a server has another region named ", Quoted(name),
                                              ", or has changed its manifest: the server is broken or lies"));
    }
    if (!all.has_value()) {
      all = *std::move(manifest);
    } else {
      all->AddOwnersOf(*manifest);
    }
  }
  return all;
}

absl::StatusOr<NamedSeals::Term> NamedSeals::BeginOwner(SealManifest manifest, PageVersion untold) const {
  if (manifest.salts.size() >= SealManifest::kOwnersMax) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "region ", Quoted(manifest.name), " was attached for writing ", manifest.salts.size(),
        " times, the maximum for a sealed region: attach it read-only and copy it to a new one"));
  }
  OwnerSalt salt;
  do {
    const uint64_t random[] = {environment_->RandomId(), environment_->RandomId()};
    static_assert(sizeof random == sizeof salt);
    memcpy(salt.data(), random, sizeof salt);
  } while (manifest.HasOwner(OwnerOf(salt)));
  manifest.salts.push_back(salt);
  Term term;
  NRAM_ASSIGN_OR_RETURN(term.manifest, manifest.Write(*secret_));
  NRAM_ASSIGN_OR_RETURN(std::unique_ptr<KeyRing> ring, KeyRing::Derive(*secret_, manifest));
  term.seal = std::make_unique<RegionSeal>(sealers_, std::move(ring), OwnerOf(salt), untold);
  return term;
}

absl::StatusOr<NamedSeals::Term> NamedSeals::BeginReader(const SealManifest& manifest) const {
  NRAM_ASSIGN_OR_RETURN(std::unique_ptr<KeyRing> ring, KeyRing::Derive(*secret_, manifest));
  Term term;
  term.seal = std::make_unique<RegionSeal>(sealers_, std::move(ring));
  return term;
}

}  // namespace nram
