#include "tests/util/evil_donor.h"

#include <glog/logging.h>

#include <algorithm>
#include <cstring>

#include "proto/encode_message.h"

namespace nram {

void EvilDonor::NoteWrite(RegionId region, uint64_t first_page, const PayloadTables& tables,
                          absl::Span<const std::byte> chunks) {
  size_t at = 0;
  for (size_t i = 0; i < tables.seals.size(); ++i) {
    const bool is_sent = tables.masks.empty() || tables.masks[i] == kAllChunks;
    if (!is_sent) continue;
    std::vector<Version>& kept = kept_[{Raw(region), first_page + i}];
    if (kept.size() == kVersionsMax) kept.erase(kept.begin() + static_cast<long>(random_() % kVersionsMax));
    kept.push_back({tables.seals[i], std::string(reinterpret_cast<const char*>(&chunks[at]), kPageBytes)});
    at += kPageBytes;
  }
}

const EvilDonor::Version* EvilDonor::FindOld(RegionId region, uint64_t page) {
  const auto it = kept_.find({Raw(region), page});
  return it == kept_.end() ? nullptr : &it->second[random_() % it->second.size()];
}

const EvilDonor::Version* EvilDonor::FindAny(bool other_region, RegionId region) {
  if (kept_.empty()) return nullptr;
  auto it = kept_.begin();
  std::advance(it, static_cast<long>(random_() % kept_.size()));
  const bool is_other = it->first.first != Raw(region);
  return is_other == other_region ? &it->second[random_() % it->second.size()] : nullptr;
}

// Null: this lie is not possible here.
const char* EvilDonor::Lie(Pages* pages) {
  const size_t i = random_() % pages->versions.size();
  Version& version = pages->versions[i];
  const Version* other = nullptr;
  switch (random_() % 12) {
    case 0:
    case 1:
      other = FindOld(pages->region, pages->first + i);
      if (other == nullptr || other->seal == version.seal) return nullptr;
      version = *other;
      return "an old version";
    case 2:
      other = FindAny(/*other_region=*/false, pages->region);
      if (other == nullptr || other->seal == version.seal) return nullptr;
      version = *other;
      return "another page";
    case 3:
      other = FindAny(/*other_region=*/true, pages->region);
      if (other == nullptr) return nullptr;
      version = *other;
      return "a page of another region";
    case 4:
      if (version.page.empty()) return nullptr;
      version = Version();
      return "a hole";
    case 5:
      other = FindOld(pages->region, pages->first + i);
      if (version.page.empty() || other == nullptr || other->seal == version.seal) return nullptr;
      version.seal = other->seal;
      return "another seal";
    case 6:
      if (version.page.empty()) return nullptr;
      version.page[random_() % kPageBytes] ^= static_cast<char>(1 << random_() % 8);
      return "a changed byte";
    case 7:
      if (version.page.empty()) return nullptr;
      version.seal.tag[random_() % version.seal.tag.size()] ^= static_cast<uint8_t>(1 << random_() % 8);
      return "a changed tag";
    case 8:
      if (!version.page.empty() && random_() % 4 != 0) return nullptr;
      // A page of his own, in the place of a hole most of the time, with a seal that says hole.
      version.page.assign(kPageBytes, static_cast<char>(1 + random_() % 255));
      version.seal = PageSeal();
      if (random_() % 2 == 0) version.seal.tag[0] = 1;
      return "a page of his own that claims to be a hole";
    case 9:
      if (version.page.empty()) return nullptr;
      version.seal.counter[random_() % version.seal.counter.size()] ^= static_cast<uint8_t>(1 << random_() % 8);
      return "a changed counter";
    default: {
      Version& second = pages->versions[random_() % pages->versions.size()];
      if (second.seal == version.seal) return nullptr;
      std::swap(version, second);
      return "two pages in each other's place";
    }
  }
}

const char* EvilDonor::Twist(std::string* reply, uint64_t one_in) {
  if (one_in == 0 || random_() % one_in != 0) return nullptr;
  MessageHeader header;
  if (!DecodeHeader(reinterpret_cast<const std::byte*>(reply->data()), &header).ok()) return nullptr;
  if (!header.is<ReadReply>() || header.reason != Reason::kOk || !header.sealed()) return nullptr;
  Pages pages;
  pages.region = header.region();
  pages.first = header.range().first_page();
  const char* const payload = reply->data() + kMessageHeaderBytes;
  const char* seals = payload + header.mask_bytes();
  const char* chunks = payload + header.table_bytes();
  for (uint64_t i = 0; i < header.range().pages(); ++i) {
    Version version;
    memcpy(&version.seal, seals + i * sizeof(PageSeal), sizeof(PageSeal));
    if (!header.sparse() || static_cast<uint8_t>(payload[i]) == kAllChunks) {
      version.page.assign(chunks, kPageBytes);
      chunks += kPageBytes;
    }
    pages.versions.push_back(std::move(version));
  }
  const char* what = nullptr;
  for (int i = 0; what == nullptr && i < 20; ++i) what = Lie(&pages);
  if (what == nullptr) return nullptr;
  std::string masks, all_seals, all_pages;
  for (const Version& version : pages.versions) {
    masks.push_back(static_cast<char>(version.page.empty() ? ChunkMask{0} : kAllChunks));
    all_seals.append(reinterpret_cast<const char*>(&version.seal), sizeof(PageSeal));
    all_pages += version.page;
  }
  header.flags |= kFlagSparse;
  const std::string told = masks + all_seals + all_pages;
  header.payload_bytes = static_cast<uint32_t>(told.size());
  *reply = EncodeMessage(header, told);
  ++lies_;
  return what;
}

const char* EvilDonor::TwistChange(std::string* reply) {
  MessageHeader header;
  if (!DecodeHeader(reinterpret_cast<const std::byte*>(reply->data()), &header).ok()) return nullptr;
  if (!header.is<WriteReply>() && !header.is<TrimReply>()) return nullptr;
  constexpr Reason kReasons[] = {Reason::kOk,       Reason::kOk,      Reason::kFull,
                                 Reason::kDraining, Reason::kDamaged, Reason::kUnknownRegion,
                                 Reason::kFenced,   Reason::kNoSeals, Reason::kOtherGeneration};
  header.reason = kReasons[random_() % std::size(kReasons)];
  if (header.is<WriteReply>()) {
    auto body = header.as<WriteReply>();
    body.stored_pages = static_cast<uint32_t>(random_() % 70);
    header.set(body);
  }
  *reply = EncodeMessage(header);
  ++lies_;
  return "of a change";
}

}  // namespace nram
