#ifndef NRAM_CLIENT_RUN_PAGE_VIEWS_H_
#define NRAM_CLIENT_RUN_PAGE_VIEWS_H_

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/types/span.h"
#include "base/sync.h"
#include "client/run/page_store.h"

namespace nram {

// Pages by their numbers.
struct PageRun {
  uint64_t first = 0;
  uint64_t count = 0;
};

// One store for the pages of several programs, which are copies of one another by fork(2). Each has a *view*: its pages
// by their homes. A page of the store, a *slot*, that several views see is never written to: a view that writes gets
// its own slot. As long as there is one view that was never copied, its homes are the slots. Thread-safe. Views must
// end before it does.
class PageViews {
 public:
  // A program's store. Calls that touch the same home are one after the other, as an engine makes them.
  class View : public PageStore {
   public:
    ~View() override;
    absl::Status ReadPages(uint64_t page, absl::Span<std::byte> to) override;
    absl::Status WritePages(absl::Span<const Write> writes) override;
    void Forget(uint64_t page, uint64_t count) override;
    // Forgets all. Without that the slots of an ended view remain taken until the end of the store.
    void Release();
    // A view that sees `seen` of this one's pages. `stored`: all that this one has written, if it was never copied. No
    // other call of this view may be under way.
    std::unique_ptr<View> Copy(absl::Span<const PageRun> stored, absl::Span<const PageRun> seen);

   private:
    friend class PageViews;
    static constexpr uint64_t kBlockPages = 512;
    static constexpr uint64_t kNone = ~uint64_t{0};
    using Block = std::array<uint64_t, kBlockPages>;

    View(PageViews* views, bool whole) : views_(views), whole_(whole) {}
    uint64_t SlotOf(uint64_t home) const;
    // The one that has the home; it is made if there is none.
    Block& BlockOf(uint64_t home);
    void SetSlot(uint64_t home, uint64_t slot) { BlockOf(home)[home % kBlockPages] = slot; }
    // Takes [home, home + count) out. Slots that no view sees any more are added to `unseen`: they are still taken.
    void Unsee(uint64_t home, uint64_t count, std::vector<uint64_t>* unseen) ABSL_EXCLUSIVE_LOCKS_REQUIRED(views_->mu_);

    // Guarded by the views' lock.
    PageViews* const views_;
    bool whole_;                // homes are slots
    uint64_t written_end_ = 0;  // while whole: all written homes are below it
    absl::flat_hash_map<uint64_t, std::unique_ptr<Block>> blocks_;
  };

  // `store` outlives it.
  explicit PageViews(PageStore* store) : store_(store) {}
  // A view that has nothing yet.
  std::unique_ptr<View> Make();

 private:
  static constexpr uint64_t kBlockPages = 512;
  // Slots of pages that cannot have their homes' begin this far behind the last home at the first copy.
  static constexpr uint64_t kGapPages = uint64_t{1} << 28;

  uint16_t& Seers(uint64_t slot) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Some slots in a row, at most `count`, one view each.
  PageRun TakeSlots(uint64_t count) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Blocks for the store's answers.
  void Free(std::vector<uint64_t> unseen) ABSL_LOCKS_EXCLUDED(mu_);

  PageStore* const store_;
  Mutex mu_;
  int views_ ABSL_GUARDED_BY(mu_) = 0;
  // The number of views that see each slot.
  using SeersBlock = std::array<uint16_t, kBlockPages>;
  absl::flat_hash_map<uint64_t, std::unique_ptr<SeersBlock>> seers_ ABSL_GUARDED_BY(mu_);
  std::pair<uint64_t, SeersBlock*> last_seers_ ABSL_GUARDED_BY(mu_) = {0, nullptr};  // that was looked for
  uint64_t base_ ABSL_GUARDED_BY(mu_) = 0;                  // of slots that are no homes; 0: none yet
  uint64_t next_ ABSL_GUARDED_BY(mu_) = 0;                  // of those, the first that was never taken
  std::map<uint64_t, uint64_t> free_ ABSL_GUARDED_BY(mu_);  // runs below it: first and pages
};

}  // namespace nram

#endif  // NRAM_CLIENT_RUN_PAGE_VIEWS_H_
