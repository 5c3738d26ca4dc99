#ifndef NRAM_MEMSERVER_SEAL_ORDER_H_
#define NRAM_MEMSERVER_SEAL_ORDER_H_

// The order of a region's seals at a server, in the 16 bits that an entry has for it (adr/0019). Each seal has a place,
// from 1 on. A new entry is born at the newest seal; a version sees it if that is before the version's place.
//
// When places are used up, those of living versions become the first ones of the other half of the 16 bits. A birth's
// top bit says which half it is of, and a table gives the present place for an old one. So births can be compared at
// any time, while those of the old half are rewritten step by step.

#include <cstdint>
#include <vector>

namespace nram {

// Not thread-safe.
class SealOrder {
 public:
  static constexpr uint16_t kPlacesMax = 0x7FFF;

  // `places`: how many there are, before they have to be renumbered.
  explicit SealOrder(uint16_t places = kPlacesMax) : places_(places) {}

  // The birth of everything that is written now.
  uint16_t birth() const { return static_cast<uint16_t>(half_ | newest_); }
  // The place of a birth, to be compared with others of the same moment.
  uint16_t PlaceOf(uint16_t born) const;
  // The same birth, in the present half.
  uint16_t Renewed(uint16_t born) const { return static_cast<uint16_t>(half_ | PlaceOf(born)); }

  // Whether there is no place for one more seal.
  bool is_full() const { return newest_ == places_; }
  // The place of a new seal. There must be one.
  uint16_t Seal() { return ++newest_; }

  // From now on the places of the living versions, `living` in order, are 1, 2, ... No renumbering may be under way,
  // and there must be places left afterwards.
  void BeginRenumbering(std::vector<uint16_t> living);
  // All births are of the present half.
  void EndRenumbering();
  bool renumbers() const { return renumbers_; }

 private:
  static constexpr uint16_t kHalf = 0x8000;

  const uint16_t places_;
  uint16_t half_ = 0;
  uint16_t newest_ = 0;
  bool renumbers_ = false;
  // While it renumbers: the places in the other half of those that were living, in order.
  std::vector<uint16_t> former_;
};

}  // namespace nram

#endif  // NRAM_MEMSERVER_SEAL_ORDER_H_
