#ifndef NRAM_BASE_TLS_SECRET_H_
#define NRAM_BASE_TLS_SECRET_H_

#include <array>
#include <cstdint>

namespace nram {

// A traffic secret of TLS_AES_256_GCM_SHA384. Forgotten when it goes away.
struct TrafficSecret {
  TrafficSecret() = default;
  TrafficSecret(const TrafficSecret&) = default;
  TrafficSecret& operator=(const TrafficSecret&) = default;
  ~TrafficSecret() {
    volatile uint8_t* const bytes_of = bytes.data();
    for (size_t i = 0; i < bytes.size(); ++i) bytes_of[i] = 0;
  }

  std::array<uint8_t, 48> bytes{};
};

}  // namespace nram

#endif  // NRAM_BASE_TLS_SECRET_H_
