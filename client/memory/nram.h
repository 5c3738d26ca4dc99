#ifndef NRAM_CLIENT_MEMORY_NRAM_H_
#define NRAM_CLIENT_MEMORY_NRAM_H_

/*
 * nram: memory that lives in other machines' RAM, with a budget of local memory that you choose.
 *
 *   nram_t *n = nram_open(NULL, NULL);                  // the pool and the budget from the environment
 *   double *a = nram_mmap(n, 64ull << 30, NULL, 0);     // 64 GiB, of which the budget is here at a time
 *   for (...) a[i] = ...;                               // plain pointers, plain threads, plain system calls
 *   nram_close(n);
 *
 * Pages come when they are touched and go when the budget is used up; only what was written travels back.
 * docs/memory.md tells what it costs and what may happen.
 *
 * All functions may be called from any thread. When a server is away, touching a page blocks for about the timeout of
 * the options (10 s), and functions for up to three times that: they wait for what others have under way with the same
 * pages, and then for what they do themselves; nram_munmap() and nram_close() as long for each mapping. Allocating may
 * have to map memory, and nram_free() and nram_realloc() to give pages back. Those that return a pointer return NULL,
 * those that return int -1, on error; errno and nram_error() then tell why.
 *
 * No function may be called from a signal handler, nor may a handler touch nram memory if it can interrupt one: block
 * its signal meanwhile. In a child after fork() all fail with ENOTSUP, nram_open() too, and its copy of the parent's
 * nram memory is not there: touching it is SIGSEGV, never zeros. exec and posix_spawn are free to use.
 *
 * Errors of all: ENOMEM (the pool, or the address space, is full; nothing has changed), EINVAL (the message tells the
 * accepted range), ENOENT, EEXIST, EBUSY, ENOSPC (where it says so), EIO (servers do not answer or have lost data),
 * EPERM (the kernel gives this user no userfaultfd; the message tells which line mends it), ENOTSUP (after fork),
 * ETIMEDOUT (where it says so).
 */

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#ifdef __cplusplus
extern "C" {
#endif

#define NRAM_VERSION_MAJOR 0
#define NRAM_VERSION_MINOR 1

/* nram_options.budget_bytes: the budget follows the machine. */
#define NRAM_BUDGET_AUTO UINT64_MAX

/* A pool that is open, a budget, and the memory in it. */
typedef struct nram_handle nram_t;

/* Which page leaves when the budget is used up. */
enum nram_policy {
  NRAM_POLICY_DEFAULT = 0,
  NRAM_POLICY_SECOND_CHANCE = 1, /* first in, first out, but a page that had to be fetched again soon
                                    stays for another round */
  NRAM_POLICY_FIFO = 2,
  NRAM_POLICY_RANDOM = 3,
};

/* What is known of a page that cannot be had. */
struct nram_loss {
  void* address;      /* of the page */
  size_t length;      /* bytes, a page */
  const char* reason; /* valid during the call */
};

/*
 * Fill with nram_options_init(), then change what you want; zeros are the defaults. Later versions add fields at the
 * end; `size` tells which version the caller was built with.
 */
struct nram_options {
  size_t size;
  /*
   * Local memory for pages: 4 MiB or more (with larger pages about 90 of them), or NRAM_BUDGET_AUTO; 0: $NRAM_BUDGET
   * ("512M", "auto" or "auto:256M-4G"; with "/node" behind it, as in "8G/node", the ranks of an MPI program on this
   * machine share it equally), else 256 MiB. nram_set_budget() changes it.
   */
  uint64_t budget_bytes;
  uint64_t page_bytes; /* unit of faults: a multiple of 4096 up to 1 MiB; 0: 4096 */
  uint32_t handlers;   /* threads that answer faults, 1 to 64; 0: 4 */
  enum nram_policy policy;
  uint32_t timeout_ms; /* after which a server that does not answer counts as lost; 0: 10,000 */
  /* nram_malloc of fewer bytes is the C library's malloc, outside the budget, to be freed before nram_close(); 0: none.
   */
  uint64_t local_below;
  /*
   * Called on a thread of nram's, once, before the threads that wait for a lost page get SIGBUS (si_addr tells the
   * address), or EFAULT from the system call that they wait in. It must neither touch nram memory nor call nram, nor
   * wait for who does: a write(2) that waits for the page holds the lock of its pipe, which may be stderr's. NULL: a
   * line on stderr, written by a thread of its own.
   */
  void (*on_loss)(const struct nram_loss* loss, void* context);
  void* on_loss_context;
  /*
   * Copies of each page, on servers of different hosts, 1 to 4; 0: $NRAM_COPIES, else 1. N copies outlive the loss of
   * N-1 of these hosts, and take N times as much room in the pool. Where neither says anything, mappings with
   * NRAM_MAP_KEEP have 2 if servers of two hosts answer.
   */
  uint32_t copies;
  /*
   * A file with a secret of 16 to 4096 bytes, which only this user may read; NULL: $NRAM_KEY_FILE, else none. With it
   * mappings that have a name are sealed: servers see only ciphertext, and whoever has the file can attach them.
   * Without it they are plain, wherever the servers are. It is read once, by nram_open().
   */
  const char* key_file;
  /*
   * Of a budget that follows the machine: between which sizes. 0: what $NRAM_BUDGET says, else 64 MiB, and this
   * machine's memory. They mean nothing if $NRAM_BUDGET is a fixed size, and are EINVAL beside a fixed budget_bytes.
   */
  uint64_t budget_min_bytes;
  uint64_t budget_max_bytes;
  /*
   * Called after each change of the budget, in order, on a thread of nram's or on the one that called
   * nram_set_budget(). Pages beyond a smaller budget may still be here. It must not call nram_set_budget() or
   * nram_close(). May be NULL.
   */
  void (*on_budget)(uint64_t old_bytes, uint64_t new_bytes, void* context);
  void* on_budget_context;
};

static inline void nram_options_init(struct nram_options* options) {
  memset(options, 0, sizeof(*options));
  options->size = sizeof(*options);
}

/*
 * Opens a pool: "host:port,host:port", "@hostfile", "dns:name:port" or "etcd:host:port/name"; NULL: $NRAM_POOL, else
 * the pool of `nram up` on this machine,
 * else /etc/nram/pool. `options` may be NULL for the defaults. ENOENT: there is no such pool. While many pages are
 * waited for, this machine's idle processors are kept from sleeping, where the process may: $NRAM_FAST_WAKE, "auto"
 * (up to 16 processors), "on" or "off". Pages of mappings without a name are sealed against their servers where one of
 * these is on another machine: $NRAM_SEAL, "1" always, "0" never; those with a name where there is a key file. The key
 * file's errors: EBUSY if it is not fit for a secret (the message tells what to do), ENOENT, EPERM. $NRAM_METRICS names
 * a file NAME.prom, where figures for Prometheus' node_exporter are written every 10 s ("%p": the process id).
 *
 * nram_close() frees everything that was allocated or mapped through the handle; no thread may use that memory any
 * more. The handle is gone in any case; -1 says that a kept mapping could not be written back (flush before to be
 * sure).
 */
nram_t* nram_open(const char* pool, const struct nram_options* options);
int nram_close(nram_t* n);

/*
 * Changes the budget. Returns at once: pages beyond a smaller budget are written back and dropped as fast as servers
 * take them; threads that need a page meanwhile wait longer, but are served. A larger one fills as pages are touched.
 * If the budget follows the machine, this is its ceiling from now on (and its floor, if that is higher).
 *
 * EINVAL: less than the least budget, or more than this machine's memory and the budget of nram_open(), or than the
 * first ceiling. EBUSY: more than half of it is pinned. With a budget that follows the machine, that much stays.
 */
int nram_set_budget(nram_t* n, uint64_t bytes);

/* What went wrong in this thread's last call that failed: what, where, how to mend it. Valid until the next that fails.
 */
const char* nram_error(void);

/* ---- mappings ---- */

enum {
  NRAM_MAP_READ_ONLY = 1, /* attach a named region that exists; writing to it is SIGSEGV. Any number of processes */
  NRAM_MAP_ATTACH = 2,    /* attach a named region that exists, for reading and writing. One process at a time, and
                             one mapping in it (EBUSY) */
  NRAM_MAP_KEEP = 4,      /* the region outlives the mapping and the process; without, it goes with its mapping */
  /*
   * With one of the first two: attach it although a server has restarted that may have had the newest, or all there
   * was, of some pages. They are zeros then, or older, or lost. Without it that is EIO. A server that only does not
   * answer is EIO in any case.
   */
  NRAM_MAP_ACCEPT_LOSS = 8,
};

/*
 * Maps `length` bytes of zeros (rounded up to pages). Room for all of them, in each copy, is reserved on the servers at
 * once, so that no page, once written, ever fails to find room: ENOMEM says now that there is none, or that the pool
 * has fewer hosts than pages are to have copies.
 *
 * With a `name` (at most 255 bytes of UTF-8 without control characters, else EINVAL; unique in the pool) others can
 * attach it. EEXIST: the name is taken. Readers see what the writer had flushed when they attached; of what he flushes
 * later they see the old or the new. An attacher passes the length he wants to see, 0 for all; ENOENT: no such name. A
 * kept region ends when somebody attaches it (NRAM_MAP_ATTACH) without NRAM_MAP_KEEP and unmaps it.
 *
 * With a key file the region is sealed, for as long as it lives. EBUSY: it is sealed, and this program has no key file
 * or another one; or it is plain, and this program has one (NRAM_SEAL=0 takes it as it is); or NRAM_SEAL=1 asks for a
 * seal, and there is no key file. EIO: servers say of a sealed region what its writer did not. A reader of a sealed
 * region cannot get what a writer writes that has attached it later: that is a loss (SIGBUS) until it maps it again. A
 * sealed region can be attached for writing a thousand times: ENOMEM then; readers can, and may copy it.
 */
void* nram_mmap(nram_t* n, size_t length, const char* name, int flags);
/*
 * Unmaps a whole mapping, given its first address. A kept region is flushed before; if that fails, nothing is unmapped.
 * It stays this handle's until nram_close(): to others, attaching it for writing is EBUSY until then.
 */
int nram_munmap(nram_t* n, void* address);
/* The length of the mapping that starts at `address`, in whole pages; 0 if none does. */
size_t nram_length(nram_t* n, const void* address);

enum nram_advice {
  NRAM_NORMAL = 0,     /* streams are recognised and read ahead */
  NRAM_SEQUENTIAL = 1, /* read ahead as far as possible from the first fault on */
  NRAM_RANDOM = 2,     /* never read ahead */
  NRAM_WILL_NEED = 3,  /* start fetching, as much as half of the budget; waits while 16 windows are on their way. Lost
                          pages are tried again */
  NRAM_DONT_NEED = 4,  /* write back and let go of the local copy, now; the contents stay */
  NRAM_PIN = 5,        /* fetch, and never let go. At most half of the budget: ENOSPC */
  NRAM_UNPIN = 6,
  NRAM_DROP = 7, /* contents are not needed any more: zeros from now on; frees them on the servers too, at once. After
                    an error each page is as it was, or zeros */
};

/*
 * For the pages that lie in [address, address + length): those it touches, but NRAM_DROP only for those that lie wholly
 * in it. NRAM_NORMAL, NRAM_SEQUENTIAL and NRAM_RANDOM hold for the whole mapping. EINVAL: not nram memory.
 */
int nram_advise(nram_t* n, void* address, size_t length, enum nram_advice advice);
/* nram_advise(NRAM_WILL_NEED). */
int nram_prefetch(nram_t* n, void* address, size_t length);
/*
 * Writes back what was written in the range; when it returns 0, the servers have it. Pages stay here. No device may
 * write to pinned ones meanwhile.
 */
int nram_flush(nram_t* n, void* address, size_t length);

/* ---- versions ---- */

/*
 * A program publishes states of its named mappings; others, on any node, started at any time, each see one state whole,
 * unchanging until they ask for the next. docs/adr/0019-versions.md tells how.
 *
 *   producer: double *a = nram_mmap(n, bytes, "field", 0);   for (;;) { step(a); nram_publish(n, a, NULL); }
 *   observer: uint64_t v;  const double *a = nram_observe(m, "field", 0, &v);
 *             for (;;) { look(a); nram_next(m, (void *)a, 1000, &v); }
 *
 * A version costs the servers what changes after it. It gives way, the oldest first, when they have no room for newer
 * data, even while it is observed: pages of it that are not here are lost then (SIGBUS), and never those of another
 * state.
 */
enum { NRAM_VERSION_NEWEST = 0 };

/* How long a version stays, besides while somebody observes it; or a number of seconds after the program has ended. The
 * last two need mappings that are kept (NRAM_MAP_KEEP). */
enum nram_version_keep {
  NRAM_KEEP_WITH_OWNER = 0,     /* while its mapping has an owner */
  NRAM_KEEP_UNTIL_DROPPED = -1, /* also when the program has ended */
};

/* The answer to a new version that would be one too many (nram_publish_options.most). */
enum nram_version_full {
  NRAM_FULL_DROP_OLDEST = 0, /* versions go, the oldest first, even observed ones: what of them is not here is lost */
  NRAM_FULL_WAIT = 1,        /* the producer waits for `wait_ms` until observers have let go of one; then ENOSPC */
  NRAM_FULL_FAIL = 2,        /* ENOSPC at once */
};

/* What an array's elements are. NRAM_BOOL is a byte of 0 or 1; complex numbers are a real part and an imaginary one. */
enum nram_element {
  NRAM_INT8 = 1,
  NRAM_INT16 = 2,
  NRAM_INT32 = 3,
  NRAM_INT64 = 4,
  NRAM_UINT8 = 5,
  NRAM_UINT16 = 6,
  NRAM_UINT32 = 7,
  NRAM_UINT64 = 8,
  NRAM_FLOAT16 = 9,
  NRAM_FLOAT32 = 10,
  NRAM_FLOAT64 = 11,
  NRAM_COMPLEX64 = 12,  /* two of float32 */
  NRAM_COMPLEX128 = 13, /* two of float64 */
  NRAM_BOOL = 14,
};

enum nram_order {
  NRAM_ORDER_C = 0,       /* neighbours differ in the last index */
  NRAM_ORDER_FORTRAN = 1, /* in the first */
};

enum { NRAM_DIMENSIONS_MAX = 8 };

/*
 * An array in a version: dense, in one of its mappings. A producer describes them (nram_publish_options.arrays), and
 * observers find them by name, so that they need not know beforehand what a mapping holds. An array without dimensions
 * is a single element, such as a time or a count.
 */
struct nram_array {
  size_t size;      /* sizeof(struct nram_array): nram_array_init() */
  const char* name; /* 1 to 255 bytes of UTF-8 without control characters; each array of a version has its own */
  /*
   * The first element, at a multiple of its alignment. All of them lie in one of the mappings that are published; an
   * extent of 0 counts as 1 there. With one it may be NULL: then it counts as the begin of the first mapping. Found by
   * an observer: where they are in his memory, to be read only; NULL if he has not mapped that mapping (nram_observe()
   * maps the first alone).
   */
  const void* data;
  enum nram_element type;
  enum nram_order order;
  uint32_t dimensions; /* 0 to NRAM_DIMENSIONS_MAX */
  uint32_t mapping;    /* found by an observer: which mapping of the version, from 0; publishing does not look at it */
  uint64_t offset;     /* the same: of the first element from the begin of that mapping, in bytes */
  uint64_t extents[NRAM_DIMENSIONS_MAX]; /* elements in each dimension */
};

static inline void nram_array_init(struct nram_array* array) {
  memset(array, 0, sizeof(*array));
  array->size = sizeof(*array);
}

/* Fill with nram_publish_options_init(); as nram_options. */
struct nram_publish_options {
  size_t size;
  int keep;           /* an nram_version_keep, or seconds */
  uint32_t history;   /* versions that stay, the new one included, besides those that are observed; 0: 2 */
  uint64_t step;      /* the program's own count: nram_get_version_info() tells it */
  const char* header; /* JSON, of some 50 KiB at most, for nram_version_header(); NULL: none */
  /*
   * Versions of it that servers may have at a time, observed ones and the new one included: 2 or more; 0: 1,000, and
   * no more than that in any case. Those of the history that nobody observes go first. It bounds what versions cost;
   * where servers have no room for newer data, the oldest give way in any case.
   */
  uint32_t most;
  enum nram_version_full when_full;
  uint32_t wait_ms;
  /*
   * For nram_find_array(): what the mappings hold. At most 512, in some 50 KiB with the header; an array takes about
   * 100 bytes of them, a mapping as much and 21 for each server that has a part of it. All have the same `size`. Copied
   * by the call.
   */
  const struct nram_array* arrays;
  size_t array_count;
};

static inline void nram_publish_options_init(struct nram_publish_options* options) {
  memset(options, 0, sizeof(*options));
  options->size = sizeof(*options);
}

/*
 * Makes what the mapping holds now its newest version, and returns its number in *version (which may be NULL). Only
 * what was changed since the last one travels. Returns when the state is fixed: the program may write on; a page of the
 * version that it writes to before servers have it makes the writer wait for that. Blocks longer while an earlier
 * version of this handle is on its way (one is, at a time), or NRAM_DROP is under way. What other threads write during
 * the call is in the version up to some moment, the same for all threads.
 *
 * nram_publish_all() makes one version of 1 to 64 mappings. It has the name of the first: observers, nram_published()
 * and nram_drop_version() go by that.
 *
 * Until servers have sealed the version, nram_flush(), NRAM_DONT_NEED and NRAM_DROP of the mapping wait. A thread that
 * needs local memory waits for what is on its way; if a server does not take it for a quarter of a second, the version
 * is given up. Pages that are pinned and that a device writes to may be torn in a version.
 *
 * EINVAL: a mapping has no name, or one above 246 bytes, or is attached read-only, or is not kept and the version is to
 * stay; the header is no JSON; an array is described that cannot be, or that is in none of the mappings. EEXIST: a
 * region NAME.versions exists that is not this one's. ENOSPC: there are as many versions as there may be. EIO: servers
 * do not answer.
 */
int nram_publish(nram_t* n, const void* address, uint64_t* version);
int nram_publish_all(nram_t* n, const void* const* addresses, size_t count, const struct nram_publish_options* options,
                     uint64_t* version);
/*
 * Waits until the version (0: the last) can be observed. ETIMEDOUT: not yet. EIO: it could not be published, the
 * message tells why, and there is none of that number. EINPROGRESS: its last step has no answer, so it may be there or
 * not. Publish again: it is there when a later version is, and this says so then. EINVAL: no such version was published
 * by this handle.
 */
int nram_published(nram_t* n, const void* address, uint64_t version, uint32_t timeout_ms);
/*
 * The version is not there from now on, and is freed when nobody observes it any more. `address`: the producer's.
 * Blocks while a version of this handle is on its way. ENOENT: it is not there.
 */
int nram_drop_version(nram_t* n, const void* address, uint64_t version);

/*
 * Maps a version (NRAM_VERSION_NEWEST, or a number) read-only; its pages come as they are touched, within the budget.
 * *got, which may be NULL, is its number. nram_munmap() ends it. ENOENT: there is no such version (yet). EIO: it is
 * gone, or servers do not answer. The errors of a key file are those of nram_mmap().
 *
 * nram_observe_all() maps all mappings of the version, in the order of nram_publish_all(): *count is the room in
 * `addresses`, and then how many there are. EINVAL: there are more.
 */
void* nram_observe(nram_t* n, const char* name, uint64_t version, uint64_t* got);
int nram_observe_all(nram_t* n, const char* name, uint64_t version, void** addresses, size_t* count, uint64_t* got);
/*
 * Goes on to the newest version, at the same address, as soon as there is one above the present; with all mappings that
 * one nram_observe_all() has made. Pages that are the same stay here. No thread may use the mappings meanwhile, nor the
 * names and the header of the former version.
 * ETIMEDOUT: there was none within `timeout_ms` (0: looks once). EBUSY: the newer version has other mappings, or of
 * other lengths: observe it anew. After an error all is as before.
 */
int nram_next(nram_t* n, void* address, uint32_t timeout_ms, uint64_t* got);
/* The header of the observed version, "" if it has none; valid until nram_next() or nram_munmap(). NULL: EINVAL. */
const char* nram_version_header(nram_t* n, const void* address);
/*
 * The array of the observed version that has this name, or the one of that number, from 0, in the order of its
 * producer. `address`: of any mapping that observes it. Fills *array, whose `size` the caller has set
 * (nram_array_init()); name and data are valid until nram_next() or nram_munmap(). The next version may have other
 * arrays, or have them elsewhere: find them anew. ENOENT: there is none. EIO: the version says what cannot be. They
 * wait for nobody.
 */
int nram_find_array(nram_t* n, const void* address, const char* name, struct nram_array* array);
int nram_get_array(nram_t* n, const void* address, size_t index, struct nram_array* array);

/* Of the observed version. */
struct nram_version_info {
  size_t size; /* set by the caller: sizeof(struct nram_version_info) */
  uint64_t version;
  uint64_t step;
  int64_t time_ns; /* when it was published, by that machine's clock: since 1970 */
};
int nram_get_version_info(nram_t* n, const void* address, struct nram_version_info* info);

/* ---- heap ---- */

/*
 * As their namesakes in the C library (nram_aligned_alloc: any size); errors as well: NULL and ENOMEM. The bookkeeping
 * is in local memory. They need jemalloc, which libnram.so.0 brings; libnram-core.so.0 is without them. Pages of freed
 * blocks leave this machine and the servers within seconds (those that a thread keeps at hand, when it ends), but their
 * room stays reserved for this heap until nram_close(). nram_free of what is no block of this handle's heap, or was
 * freed lately, ends the program with a message; addresses inside of blocks, and blocks freed long ago, are not
 * noticed.
 */
void* nram_malloc(nram_t* n, size_t size);
void* nram_calloc(nram_t* n, size_t count, size_t size);
void* nram_realloc(nram_t* n, void* block, size_t size);
void* nram_aligned_alloc(nram_t* n, size_t alignment, size_t size);
void nram_free(nram_t* n, void* block);
size_t nram_usable_size(nram_t* n, const void* block);

/* ---- statistics ---- */

/* Since nram_open(), unless it says "now". */
struct nram_stats {
  size_t size;                    /* set by the caller: sizeof(struct nram_stats) */
  uint64_t budget_bytes;          /* now */
  uint64_t mapped_bytes;          /* now: mappings and heap */
  uint64_t resident_bytes;        /* now: pages here, buffers of pages on their way, and sums */
  uint64_t faults;                /* times that a thread had to wait for nram */
  uint64_t write_faults;          /* of them: first writes to a page that was here already */
  uint64_t hits;                  /* of them: the page was here or on its way already (read ahead) */
  uint64_t zero_pages;            /* pages given out as zeros without a server */
  uint64_t fetched_bytes;         /* from servers */
  uint64_t prefetched_bytes;      /* of them: read ahead */
  uint64_t prefetch_wasted_bytes; /* of them: thrown away untouched */
  uint64_t written_bytes;         /* to servers */
  uint64_t evicted_pages;
  uint64_t lost_pages;
  uint64_t wait_ns;        /* time from faults' arrival to their end, summed over faults */
  uint64_t metadata_bytes; /* now: nram's own bookkeeping, outside the budget */
  uint64_t budget_shrank;  /* times that the budget became smaller */
  uint64_t budget_grew;    /* and larger */
};

int nram_get_stats(nram_t* n, struct nram_stats* stats);

#ifdef __cplusplus
}
#endif

#endif /* NRAM_CLIENT_MEMORY_NRAM_H_ */
