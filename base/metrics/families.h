#ifndef NRAM_BASE_METRICS_FAMILIES_H_
#define NRAM_BASE_METRICS_FAMILIES_H_

#include <prometheus/metric_family.h>

#include <vector>

#include "base/metrics/figures.h"

namespace nram {

// The figures as prometheus-cpp has them.
std::vector<prometheus::MetricFamily> ToFamilies(const Figures& figures);

}  // namespace nram

#endif  // NRAM_BASE_METRICS_FAMILIES_H_
