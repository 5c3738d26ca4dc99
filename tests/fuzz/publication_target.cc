#include <glog/logging.h>

#include <algorithm>
#include <string>

#include "absl/strings/string_view.h"
#include "base/units.h"
#include "client/pool/publication_record.h"
#include "tests/fuzz/input.h"
#include "tests/fuzz/targets.h"

namespace nram {
namespace {

// Observers trust the record without another check. This one calculates in numbers that cannot overflow.
void CheckArray(const PublishedArray& array, const PublicationRecord& record) {
  CHECK_LT(array.mapping, record.lengths.size());
  CHECK_LE(array.extents.size(), kDimensionsMax);
  CHECK(!array.name.empty() && array.name.find('\0') == std::string::npos);
  unsigned __int128 bytes = ElementBytes(array.type);
  CHECK(bytes > 0);
  for (const uint64_t extent : array.extents) {
    bytes *= std::max<uint64_t>(extent, 1);
    CHECK(bytes <= kRegionBytesMax) << array.name;
  }
  CHECK(array.offset + bytes <= record.lengths[array.mapping]) << array.name;
  CHECK_LE(BytesOf(array), static_cast<uint64_t>(bytes));
}

void CheckDecoded(absl::string_view bytes) {
  const absl::StatusOr<PublicationRecord> record = DecodeRecord(bytes);
  if (!record.ok()) {
    CHECK(absl::IsDataLoss(record.status()) || absl::IsNotFound(record.status())) << record.status();
    return;
  }
  CHECK_EQ(RecordNumber(bytes), record->number);
  CHECK(CheckRecord(*record).ok());
  for (const PublishedArray& array : record->arrays) CheckArray(array, *record);
  const absl::StatusOr<PublicationRecord> again = DecodeRecord(EncodeRecord(*record));
  // Numbers that were written shortly may be longer now.
  if (EncodeRecord(*record).size() <= kPublicationBytesMax) CHECK(again.ok() && *again == *record) << again.status();
}

}  // namespace

void FuzzPublication(const uint8_t* data, size_t size) {
  FuzzInput input(data, size);
  const uint8_t how = input.Byte();
  if (how % 4 == 0) {
    const absl::string_view bytes = input.Take(input.size());
    CheckDecoded(bytes);
    if (const auto head = DecodeHead(bytes); head.ok()) CHECK(DecodeHead(EncodeHead(*head)).value() == *head);
    return;
  }
  // A text with a correct frame. The number is most often that of the text.
  const uint64_t number = how % 4 == 1 ? input.AnyNumber() : 7;
  const std::string text(input.Take(input.size()));
  CheckDecoded(FrameRecord(number, how % 4 == 3 ? text + "}" : text));
}

}  // namespace nram
