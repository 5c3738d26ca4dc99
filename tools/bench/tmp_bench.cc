#include <cstdio>
#include "tools/bench/pool_bench.h"
#include "client/pool/pool_spec.h"
#include <glog/logging.h>
int main(int argc, char** argv) {
  FLAGS_logtostderr = true;
  google::InitGoogleLogging(argv[0]);
  using namespace nram;
  auto bare = BareSocket::Start().value();
  PinToProcessor(0);
  PoolOptions o; o.servers = ParsePoolSpec(argv[1]).value(); o.unix_sockets = false; o.spin.limit_us = 0;
  auto pool = Pool::Open(o).value();
  PoolOptions s = o; s.spin.limit_us = 50; s.servers = ParsePoolSpec(argv[2]).value();
  auto spool = Pool::Open(s).value();
  PoolBenchOptions b; b.rounds = 5; if (argc > 3) b.only = argv[3];
  auto st = RunPoolBench(&bare, pool.get(), spool.get(), b, [](const BenchRow& r) {
    printf("%-50s bare %9.1f nram %9.1f %s ratio %.2f [%.2f %.2f] mark %.1f %s\n", r.name.c_str(), r.bare, r.nram, r.unit.c_str(), r.ratio, r.ratio_min, r.ratio_max, r.mark, r.ok()?"ok":"MISS"); fflush(stdout); });
  if (!st.ok()) puts(st.ToString().c_str());
}
