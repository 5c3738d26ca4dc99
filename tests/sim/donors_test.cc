#include <cstdio>
#include <cstdlib>
#include <string>
#include "absl/strings/numbers.h"
#include "absl/strings/strip.h"
#include "absl/strings/string_view.h"
#include "tests/sim/donors_world.h"
using namespace nram; using namespace nram::sim;
int main(int argc, char** argv) {
  DonorWorldOptions o; uint64_t seed = 1;
  o.jobs = {.steps = 300, .spikes = 500, .ramps = 300, .periodics = 100, .racks = 300};
  int64_t quiet = 60000;
  auto num=[&](absl::string_view f, absl::string_view n, auto* v){ int64_t x; if(absl::ConsumePrefix(&f,n)&&absl::SimpleAtoi(f,&x)){*v=x;} };
  for (int i=1;i<argc;i++){ absl::string_view f=argv[i]; num(f,"--seed=",&seed); num(f,"--donors=",&o.donors); num(f,"--clients=",&o.clients); num(f,"--pool=",&o.pool); num(f,"--fill=",&o.fill_percent); num(f,"--storm=",&o.storm_ms); num(f,"--quiet=",&quiet); num(f,"--rack=",&o.rack);
   num(f,"--steps=",&o.jobs.steps); num(f,"--spikes=",&o.jobs.spikes); num(f,"--ramps=",&o.jobs.ramps); num(f,"--periodics=",&o.jobs.periodics); num(f,"--racks=",&o.jobs.racks); num(f,"--max=",&o.jobs.percent_max); num(f,"--link=",&o.link_bytes_per_s); num(f,"--copied=",&o.copied_percent);num(f,"--growth=",&o.growth_percent);}
  DonorWorld w(o, seed);
  printf("stored %lu MiB\n", w.stored_bytes()/kMiB);
  auto show=[&]{ const auto& c=w.counts(); auto m=[](uint64_t b){return b/kMiB;};
   printf("%3ld s asking %zu (%lu) busy %zu free %lu stored %lu| asked %lu needed %lu moves %lu drops %lu repairs %lu grown %lu noplace %lu refused %lu late %lu to_asking %lu returns %lu searches %lu vain %lu one %u longest %ld last %ld lost %lu\n", w.now_ms()/1000, w.asking(), m(w.asked_bytes()), w.busy(), m(w.free_bytes()), m(w.stored_bytes()), m(c.asked), m(c.needed), m(c.moves), m(c.drops), m(c.repairs), m(c.grown), c.no_place, c.refusals, c.late, c.to_asking, c.returns, c.searches, c.in_vain, c.moves_of_one, c.longest_ms, c.last_move_ms, c.lost); fflush(stdout);};
  for (int64_t t=0;t<o.storm_ms;t+=10000){ w.RunUntil(t+10000); show(); }
  w.Calm();
  for (int64_t t=0;t<quiet;t+=10000){ w.RunUntil(w.now_ms()+10000); show(); }
  auto s = w.Check(); printf("check: %s\n", s.c_str());
}
