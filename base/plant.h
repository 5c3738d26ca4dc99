#ifndef NRAM_BASE_PLANT_H_
#define NRAM_BASE_PLANT_H_

// Bugs that are planted on purpose, to show that the simulation (tests/sim) finds them. Only a build with -DNRAM_PLANT
// has any, and in it one at a time. In all other builds NRAM_PLANTED is false, and nothing of it is left.

#ifdef NRAM_PLANT

#include <string_view>

// Each bug is described where it is planted, and in tests/sim/README.md.
#define NRAM_PLANTS(PLANT)                     \
  /* The server. */                            \
  PLANT(no_fence_on_hello)                     \
  PLANT(lease_end_keeps_reservation)           \
  PLANT(lease_end_keeps_regions)               \
  PLANT(late_reserve_executed)                 \
  PLANT(checksum_not_checked)                  \
  PLANT(damage_hidden)                         \
  PLANT(trim_leaves_last_page)                 \
  PLANT(compaction_copies_less)                \
  /* The client's operations. */               \
  PLANT(acknowledged_when_sent)                \
  PLANT(retry_overtakes)                       \
  PLANT(other_life_is_a_hole)                  \
  PLANT(loss_is_zeros)                         \
  PLANT(perhaps_not_noted)                     \
  PLANT(perhaps_read_not_noted)                \
  PLANT(span_placed_twice)                     \
  PLANT(destroy_forgotten)                     \
  PLANT(used_room_looked_for)                  \
  /* The client's sessions, room and waits. */ \
  PLANT(former_connection_stays)               \
  PLANT(room_returned_twice)                   \
  PLANT(former_term_counts)                    \
  PLANT(kept_room_counted_twice)               \
  PLANT(surplus_counted_again)                 \
  PLANT(grant_leaked)                          \
  PLANT(waiter_not_resumed)                    \
  PLANT(late_waiter_not_resumed)               \
  /* Copies. */                                \
  PLANT(copy_that_missed_stays)                \
  PLANT(joining_copy_is_read)                  \
  PLANT(join_copies_nothing)                   \
  PLANT(gate_passed)                           \
  PLANT(read_not_confirmed)                    \
  PLANT(lower_generation_taken)                \
  PLANT(create_keeps_leaf)                     \
  PLANT(lost_span_is_hole)                     \
  PLANT(trim_of_one_copy)                      \
  PLANT(doubt_forgotten)                       \
  PLANT(refused_copies_stay)                   \
  PLANT(destroyed_made_anew)                   \
  PLANT(copy_outside_gate)                     \
  PLANT(joining_copy_misses_changes)           \
  PLANT(join_raises_nothing)                   \
  PLANT(other_place_known)                     \
  PLANT(leaves_without_proof)                  \
  /* Sealed pages. */                          \
  PLANT(counter_given_twice)                   \
  PLANT(counter_not_compared)                  \
  PLANT(mend_unverified)                       \
  PLANT(doubt_forgotten_when_full)             \
  PLANT(version_not_doubted)                   \
  PLANT(versions_told_after_gate)              \
  PLANT(hole_believed)                         \
  PLANT(unsealed_page_believed)                \
  /* Versions: versions_store_test does. */    \
  PLANT(displaced_in_place)                    \
  PLANT(born_not_set)                          \
  PLANT(compactor_skips_deltas)                \
  PLANT(trim_counts_kept_frame)                \
  /* Versions: publish_sim_test does. */       \
  PLANT(publish_gate_passed)                   \
  PLANT(publish_late_member)                   \
  /* Giving back: donors_test finds these. */  \
  PLANT(donors_no_calm)                        \
  PLANT(donors_pressed_forgotten)              \
  PLANT(donors_room_alone)                     \
  PLANT(donors_no_budget)                      \
  PLANT(donors_allowance_taken)                \
  PLANT(donors_search_for_ever)

namespace nram {

enum class Plant {
  none,
#define NRAM_PLANT_NAME(name) name,
  NRAM_PLANTS(NRAM_PLANT_NAME)
#undef NRAM_PLANT_NAME
};

// Set before anything runs.
inline Plant planted = Plant::none;

// False: there is no such bug.
inline bool SetPlanted(std::string_view text) {
#define NRAM_PLANT_NAME(name) \
  if (text == #name) {        \
    planted = Plant::name;    \
    return true;              \
  }
  NRAM_PLANTS(NRAM_PLANT_NAME)
#undef NRAM_PLANT_NAME
  return false;
}

}  // namespace nram

#define NRAM_PLANTED(name) (::nram::planted == ::nram::Plant::name)

#else

#define NRAM_PLANTED(name) false

#endif  // NRAM_PLANT

#endif  // NRAM_BASE_PLANT_H_
