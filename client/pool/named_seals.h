#ifndef NRAM_CLIENT_POOL_NAMED_SEALS_H_
#define NRAM_CLIENT_POOL_NAMED_SEALS_H_

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/pool/environment.h"
#include "client/pool/options.h"
#include "client/seal/region_seal.h"
#include "client/seal/seal_manifest.h"
#include "client/seal/seal_secret.h"
#include "client/transport/control_client.h"

namespace nram {

// How regions with a name are sealed (adr/0016): whether they are, and with which keys. Thread-safe. Asks no server.
class NamedSeals {
 public:
  // All outlive it. `secret`: of the pool's key file; null: it has none.
  NamedSeals(const PoolOptions* options, const SealSecret* secret, Sealers* sealers, Environment* environment)
      : options_(options), secret_(secret), sealers_(sealers), environment_(environment) {}

  // Whether a region that is created so is sealed. FAILED_PRECONDITION: it is to be, and there is no key file.
  absl::StatusOr<bool> Decide(const RegionOptions& options) const;
  // The word of all servers that have the region about its seal, taken together; nothing: it is plain. `infos`: as they
  // know it; those of other ids do not count. FAILED_PRECONDITION: this pool has no key file, or another one, or takes
  // no plain regions. DATA_LOSS: a server's word cannot be true.
  absl::StatusOr<std::optional<SealManifest>> Check(const std::string& name, RegionId id,
                                                    const std::vector<RegionInfo>& infos) const;

  // The seal with which a region's handle seals and opens, and the manifest that its servers are to keep from then on.
  struct Term {
    std::unique_ptr<RegionSeal> seal;  // null: the region is plain
    std::string manifest;              // of an owner
  };
  // A new owner, with a key that was never used. `untold`: the version of pages that no server has told of.
  // RESOURCE_EXHAUSTED: the region's number of owners is at its limit, or no memory may be locked.
  absl::StatusOr<Term> BeginOwner(SealManifest manifest, PageVersion untold) const;
  absl::StatusOr<Term> BeginReader(const SealManifest& manifest) const;

 private:
  // Named regions are to be sealed, and plain ones are refused, unless the options say otherwise.
  bool demands() const { return secret_ != nullptr ? options_->seal != Seal::kNo : options_->seal == Seal::kYes; }

  const PoolOptions* const options_;
  const SealSecret* const secret_;
  Sealers* const sealers_;
  Environment* const environment_;
};

}  // namespace nram

#endif  // NRAM_CLIENT_POOL_NAMED_SEALS_H_
