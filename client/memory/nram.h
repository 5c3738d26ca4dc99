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
 * A page is fetched when a thread touches it, and evicted when the budget is used up; only changed data travels back.
 * docs/memory.md tells the costs and the limits. All sizes are bytes, unless a comment says otherwise.
 *
 * Errors: functions that return a pointer return NULL, those that return int -1; errno and nram_error() then tell the
 * reason. These may come from any function:
 *
 *   ENOMEM     the pool, or the address space, is full; nothing has changed
 *   EINVAL     an argument is wrong; the message tells the accepted range
 *   EIO        servers do not answer or have lost data
 *   ENOTSUP    this is a child of fork(), or the kernel is too old (5.7 is needed, 5.14 to pin)
 *
 * ENOENT, EEXIST, EBUSY, ENOSPC, EPERM, ETIMEDOUT and EINPROGRESS have their meaning at each function.
 *
 * Threads: any thread may call any function at any time, unless the function's comment says otherwise.
 *
 * Waiting: when a server does not answer, touching a page blocks for about the timeout of the options (10 s), and a
 * function for up to three times that: it waits for others' operations on the same pages, and then for its own.
 * nram_munmap() and nram_close() take as long for each mapping. Allocating may map memory, and nram_free() and
 * nram_realloc() may give pages back. Functions that never wait for servers say so.
 *
 * Lost pages: touching a page that cannot be had is SIGBUS, with its address in si_addr, and EFAULT from system calls;
 * it never reads as zeros. Before Linux 6.6 the whole process ends. nram_options.on_loss hears the reason.
 *
 * Signals: no function may be called from a signal handler, nor may a handler touch nram memory if it can interrupt a
 * function of nram: block its signal meanwhile. A thread that waits for a page takes signals; a system call that waits
 * takes only SIGKILL. nram's own threads block all signals; threads that gRPC starts later have the mask of the thread
 * that called nram.
 *
 * fork(): in the child all functions fail with ENOTSUP, nram_open() too, and touching the parent's nram memory is
 * SIGSEGV, never zeros. exec and posix_spawn are free to use. If the program's own malloc is jemalloc too, fork() may
 * hang while another thread's allocation gets room from the pool; posix_spawn does not.
 *
 * Forbidden on nram memory: madvise(2) with MADV_DONTNEED, MADV_FREE or MADV_DOFORK, mprotect(2) to PROT_NONE, and
 * munmap(2) and mremap(2). Threads may hang, the program may end, or a child may read zeros. nram_advise() and
 * nram_munmap() do that work. No thread may have its stack in nram memory, and malloc or operator new may not be
 * replaced by nram_malloc().
 *
 * Writers behind the page tables (O_DIRECT reads, registered io_uring buffers, RDMA, vmsplice, process_vm_writev(2))
 * lose data without an error if their page is evicted meanwhile: pin it first (NRAM_PIN). ptrace(2) and /proc/PID/mem
 * are EIO for pages that are not resident; process_vm_readv(2) fetches them.
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

/* An open pool, a budget, and the memory in it. */
typedef struct nram_handle nram_t;

/* The order of eviction when the budget is used up. */
enum nram_policy {
  NRAM_POLICY_DEFAULT = 0,       /* NRAM_POLICY_SECOND_CHANCE */
  NRAM_POLICY_SECOND_CHANCE = 1, /* first in, first out; a page that had to be fetched again soon is spared for
                                    another round */
  NRAM_POLICY_FIFO = 2,
  NRAM_POLICY_RANDOM = 3,
};

/* A page that cannot be had. */
struct nram_loss {
  void* address;      /* of the page */
  size_t length;      /* of the page, bytes */
  const char* reason; /* valid during the call */
};

/*
 * Fill with nram_options_init(), then set fields; zeros are the defaults. Later versions add fields at the end; `size`
 * tells which version the caller was built with. nram_open() copies all of it; contexts of callbacks must exist until
 * nram_close() has returned.
 */
struct nram_options {
  size_t size;
  /*
   * Local memory for pages: 4 MiB or more (with larger pages about 90 of them), or NRAM_BUDGET_AUTO; 0: $NRAM_BUDGET,
   * else 256 MiB. The variable is "512M", "auto" or "auto:256M-4G"; "/node" behind it, as in "8G/node", shares it
   * equally among the ranks of an MPI program on this machine. nram_set_budget() changes the budget.
   */
  uint64_t budget_bytes;
  uint64_t page_bytes; /* unit of faults, fetched whole: a multiple of 4096 up to 1 MiB; 0: 4096 */
  uint32_t handlers;   /* threads that answer faults, 1 to 64; 0: 4. Many threads on a real network need more */
  enum nram_policy policy;
  uint32_t timeout_ms; /* after which a server that does not answer counts as lost; 0: 10,000 */
  /*
   * nram_malloc of fewer bytes is the C library's malloc, outside the budget, to be freed before nram_close(); 0: none.
   */
  uint64_t local_below;
  /*
   * Called on a thread of nram's, once for each lost page, before the threads that wait for it get SIGBUS or EFAULT. It
   * must neither touch nram memory nor call nram, nor wait for a thread that does: a write(2) that waits for the page
   * holds the lock of its pipe, which may be stderr's. NULL: a thread of nram's writes a line to stderr.
   */
  void (*on_loss)(const struct nram_loss* loss, void* context);
  void* on_loss_context;
  /*
   * Copies of each page, on servers of different hosts, 1 to 4; 0: $NRAM_COPIES, else 1. N copies outlive the loss of
   * N-1 of these hosts, and take N times as much room in the pool. If neither the field nor the variable is set,
   * mappings with NRAM_MAP_KEEP have 2 copies where servers of two hosts answer.
   */
  uint32_t copies;
  /*
   * A file with a secret of 16 to 4096 bytes, which only this user may read; NULL: $NRAM_KEY_FILE, else none. It seals
   * mappings that have a name: servers see only ciphertext, and any holder of the file can attach them. Without a key
   * file they are plain, wherever the servers are. nram_open() reads it, once.
   */
  const char* key_file;
  /*
   * Bounds of a budget that follows the machine. 0: those of $NRAM_BUDGET, else 64 MiB and this machine's memory. A
   * fixed size in $NRAM_BUDGET ignores them; a fixed budget_bytes beside them is EINVAL.
   */
  uint64_t budget_min_bytes;
  uint64_t budget_max_bytes;
  /*
   * Called after each change of the budget, in order, on a thread of nram's or on the one that called
   * nram_set_budget(). Pages beyond a smaller budget may still be resident. It must not call nram_set_budget() or
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
 * the pool of `nram up` on this machine, else /etc/nram/pool. `options` may be NULL for the defaults. Returns a handle
 * that nram_close() ends. Waits for each server for two seconds at most and, if none has answered by then, until the
 * timeout for the first.
 *
 * Environment beside the options: $NRAM_FAST_WAKE ("auto", which is up to 16 processors, "on" or "off") keeps this
 * machine's idle processors from sleeping while many pages are waited for, where the process may. $NRAM_SEAL ("1"
 * always, "0" never) decides on sealing mappings without a name; by default they are sealed if some server is on
 * another machine. $NRAM_METRICS names a file NAME.prom, to which figures for Prometheus' node_exporter are written
 * every 10 s ("%p": the process id).
 *
 * ENOENT: there is no such pool, or no such key file. EPERM: the kernel gives this user no userfaultfd; or this user
 * cannot read the key file, or others may read or replace it (the message tells the remedy). EBUSY: the key file is
 * being written. ENOMEM: the pool has fewer hosts than copies. EIO: no server answers.
 */
nram_t* nram_open(const char* pool, const struct nram_options* options);
/*
 * Frees all that was allocated or mapped through the handle. No other thread may use that memory or the handle any
 * more. The handle is gone in any case; -1 says that a kept mapping could not be written back (call nram_flush() before
 * to be sure). A program that exits without it has its room freed when its lease ends: after 10 s, with several copies
 * after 60 s.
 */
int nram_close(nram_t* n);

/*
 * Changes the budget. Never waits for servers: pages beyond a smaller budget are written back and dropped as fast as
 * servers take them, and threads that need a page meanwhile wait longer, but are served. A larger budget fills as pages
 * are touched; pages that are dirty at that moment may be written back whole. If the budget follows the machine, this
 * is its ceiling from now on (and its floor, if that is higher).
 *
 * EINVAL: less than the least budget, or more than this machine's memory and the budget of nram_open(), or than the
 * first ceiling. EBUSY: more than half of it is pinned; a budget that follows the machine keeps that much instead.
 */
int nram_set_budget(nram_t* n, uint64_t bytes);

/*
 * The message of the calling thread's last call that failed: cause, place and remedy. Never waits. Owned by nram, valid
 * until the thread's next call that fails.
 */
const char* nram_error(void);

/* ---- mappings ---- */

enum {
  NRAM_MAP_READ_ONLY = 1, /* attach a named region that exists; writing to it is SIGSEGV. Any number of processes */
  NRAM_MAP_ATTACH = 2,    /* attach a named region that exists, for reading and writing. One process at a time, and
                             one mapping in it (EBUSY) */
  NRAM_MAP_KEEP = 4,      /* the region outlives the mapping and the process, with flushed and evicted data; otherwise
                             it is freed with its mapping */
  /*
   * With one of the first two: attach the region although a server has restarted that may have had the newest, or the
   * only, copy of some pages. These are zeros then, or older, or lost. Without this flag that is EIO. A server that
   * only does not answer is EIO in any case.
   */
  NRAM_MAP_ACCEPT_LOSS = 8,
};

/*
 * Maps `length` bytes of zeros (rounded up to pages) and returns their address, which nram_munmap() ends. Room for all
 * of them, in each copy, is reserved on the servers at once, so that a page, once written, never fails to find room.
 * ENOMEM: the pool has no room, or fewer hosts than copies.
 *
 * `name` (at most 255 bytes of UTF-8 without control characters, else EINVAL; unique in the pool) lets others attach
 * the region; NULL: none. EEXIST: the name is taken. Readers see the data that the writer had flushed when they
 * attached; of later data they see the old or the new, or nothing where it was first written after they attached. An
 * attacher passes the length that it wants to see, 0 for all; ENOENT: no such name. A kept region ends when a process
 * attaches it (NRAM_MAP_ATTACH) without NRAM_MAP_KEEP and unmaps it.
 *
 * A key file seals the region, for as long as it lives. EBUSY: the region is sealed, and this program has no key file
 * or another one; or it is plain, and this program has one (NRAM_SEAL=0 takes it as it is); or NRAM_SEAL=1 asks for a
 * seal, and there is no key file. EIO: servers contradict the writer of a sealed region. A reader of a sealed region
 * cannot get the data of a writer that attaches it later: that is a loss (SIGBUS) until the reader maps it again. A
 * sealed region can be attached for writing a thousand times: ENOMEM then; readers can still attach and copy it.
 */
void* nram_mmap(nram_t* n, size_t length, const char* name, int flags);
/*
 * Unmaps a whole mapping, given its first address (else EINVAL). No other thread may use the mapping any more. A kept
 * region is flushed before; if that fails, nothing is unmapped. It remains this handle's until nram_close(): to others,
 * attaching it for writing is EBUSY until then. Versions of a region that is not kept are freed with it.
 */
int nram_munmap(nram_t* n, void* address);
/* The length of the mapping that starts at `address`, rounded up to pages; 0 if none does. Never waits for servers. */
size_t nram_length(nram_t* n, const void* address);

enum nram_advice {
  NRAM_NORMAL = 0,     /* recognise streams and read ahead */
  NRAM_SEQUENTIAL = 1, /* read ahead as far as possible from the first fault on */
  NRAM_RANDOM = 2,     /* never read ahead */
  NRAM_WILL_NEED = 3,  /* begin to fetch, as much as half of the budget; waits while 16 windows are on their way. Tries
                          lost pages again */
  NRAM_DONT_NEED = 4,  /* write back and drop the local copy, now; the contents remain */
  NRAM_PIN = 5,        /* fetch, and never evict. At most half of the budget (ENOSPC). Needs Linux 5.14 (ENOTSUP).
                          Pinned pages count as dirty, so each flush sends them */
  NRAM_UNPIN = 6,      /* pins are not counted: one call undoes all pins of a page. Never waits for servers */
  NRAM_DROP = 7,       /* the contents are not needed any more: zeros from now on; frees them on the servers too, at
                          once. After an error each page is as it was, or zeros. EINVAL: the mapping is read-only */
};

/*
 * Advice for the pages that lie in [address, address + length): those that it touches, but NRAM_DROP only for those
 * that lie wholly in it. The range lies in one mapping or block (else EINVAL). NRAM_NORMAL, NRAM_SEQUENTIAL and
 * NRAM_RANDOM hold for the whole mapping and never wait for servers. Pin before a device registers the memory. A pin
 * that fails unpins the pages that it had newly pinned, even if another thread has pinned them since.
 */
int nram_advise(nram_t* n, void* address, size_t length, enum nram_advice advice);
/* nram_advise(NRAM_WILL_NEED). */
int nram_prefetch(nram_t* n, void* address, size_t length);
/*
 * Writes the changed pages of the range back; after 0 the servers have them. The pages remain resident. No device may
 * write to pinned pages meanwhile.
 */
int nram_flush(nram_t* n, void* address, size_t length);

/* ---- versions ---- */

/*
 * A program publishes states of its named mappings. Others, on any node, started at any time, each see one whole state,
 * unchanging until they ask for the next. docs/adr/0019-versions.md tells how.
 *
 *   producer: double *a = nram_mmap(n, bytes, "field", 0);   for (;;) { step(a); nram_publish(n, a, NULL); }
 *   observer: uint64_t v;  const double *a = nram_observe(m, "field", 0, &v);
 *             for (;;) { look(a); nram_next(m, (void *)a, 1000, &v); }
 *
 * A version costs the servers the data that changes after it. Servers without room for newer data drop versions, the
 * oldest first, even observed ones: their pages that are not resident are lost then (SIGBUS), and never show another
 * state.
 */
enum { NRAM_VERSION_NEWEST = 0 };

/*
 * The life of a version that is not observed: one of these, or a number of seconds after the program has ended. All but
 * the first need mappings that are kept (NRAM_MAP_KEEP).
 */
enum nram_version_keep {
  NRAM_KEEP_WITH_OWNER = 0,     /* while its mapping has an owner */
  NRAM_KEEP_UNTIL_DROPPED = -1, /* also when the program has ended */
};

/* The answer to a new version that would be one too many (nram_publish_options.most). */
enum nram_version_full {
  NRAM_FULL_DROP_OLDEST = 0, /* drop versions, the oldest first, even observed ones, whose absent pages are lost */
  NRAM_FULL_WAIT = 1,        /* wait for `wait_ms` until observers have let go of one; then ENOSPC */
  NRAM_FULL_FAIL = 2,        /* ENOSPC at once */
};

/* The type of an array's elements. NRAM_BOOL is a byte of 0 or 1; a complex number is a real and an imaginary part. */
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
 * An array in a version: dense, in one of its mappings. A producer describes arrays (nram_publish_options.arrays), and
 * observers find them by name, so that they need no other knowledge of a mapping. An array without dimensions is a
 * single element, such as a time or a count.
 */
struct nram_array {
  size_t size;      /* sizeof(struct nram_array): nram_array_init() */
  const char* name; /* 1 to 255 bytes of UTF-8 without control characters, unique in the version */
  /*
   * The first element, at a multiple of its alignment. All elements lie in one of the published mappings; an extent of
   * 0 counts as 1 there. An array with such an extent may have NULL, which counts as the begin of the first mapping.
   * An observer gets the address in its own memory, to be read only; NULL if it has not mapped that mapping
   * (nram_observe() maps the first alone).
   */
  const void* data;
  enum nram_element type;
  enum nram_order order;
  uint32_t dimensions; /* 0 to NRAM_DIMENSIONS_MAX */
  uint32_t mapping;    /* for observers: the number of the version's mapping, from 0; publishing ignores it */
  uint64_t offset;     /* for observers: bytes from the begin of that mapping to the first element */
  uint64_t extents[NRAM_DIMENSIONS_MAX]; /* elements in each dimension */
};

static inline void nram_array_init(struct nram_array* array) {
  memset(array, 0, sizeof(*array));
  array->size = sizeof(*array);
}

/* Fill with nram_publish_options_init(); as nram_options. The call copies all of it. */
struct nram_publish_options {
  size_t size;
  int keep;           /* an nram_version_keep, or seconds */
  uint32_t history;   /* versions to keep, the new one included, besides observed ones; 0: 2 */
  uint64_t step;      /* the program's own count, for nram_get_version_info() */
  const char* header; /* JSON, of some 50 KiB at most, for nram_version_header(); NULL: none */
  /*
   * Versions that servers may have at a time, observed ones and the new one included: 2 or more; 0: 1,000, and no more
   * than that in any case. Unobserved versions of the history are dropped first. This bounds the cost of versions;
   * servers without room for newer data drop the oldest in any case.
   */
  uint32_t most;
  enum nram_version_full when_full;
  uint32_t wait_ms; /* with NRAM_FULL_WAIT */
  /*
   * The arrays of the mappings, for nram_find_array(). At most 512, in some 50 KiB with the header; an array takes
   * about 100 bytes of them, a mapping as much and 21 for each server that has a part of it. All have the same `size`.
   */
  const struct nram_array* arrays;
  size_t array_count;
};

static inline void nram_publish_options_init(struct nram_publish_options* options) {
  memset(options, 0, sizeof(*options));
  options->size = sizeof(*options);
}

/*
 * Makes the present contents of the mapping its newest version, and returns its number in *version (which may be NULL).
 * Only changes since the last version travel. Returns when the state is fixed: the program may write on. A write to a
 * page of the version that servers do not have yet makes a copy of the page, or waits until it is sent. Writes of other
 * threads during the call are in the version up to some moment, the same for all threads. Blocks longer while an
 * earlier version of this handle is on its way (one is, at a time), or NRAM_DROP is under way.
 *
 * nram_publish_all() makes one version of 1 to 64 mappings, under the name of the first: observers, nram_published()
 * and nram_drop_version() go by that.
 *
 * Until servers have sealed the version, nram_flush(), NRAM_DONT_NEED and NRAM_DROP of the mapping wait. If threads
 * wait for local memory, and servers take nothing of the version for a quarter of a second, nram gives the version up.
 * Pinned pages that a device writes to may be torn in a version.
 *
 * EINVAL: a mapping has no name, or one above 246 bytes, or is attached read-only, or is not kept as `keep` demands;
 * the header is no JSON; an array's description is impossible, or the array is in none of the mappings. EEXIST: another
 * region NAME.versions exists. ENOSPC: there are as many versions as there may be. EIO: servers do not answer.
 */
int nram_publish(nram_t* n, const void* address, uint64_t* version);
int nram_publish_all(nram_t* n, const void* const* addresses, size_t count, const struct nram_publish_options* options,
                     uint64_t* version);
/*
 * Waits until the version (0: the last) can be observed, for `timeout_ms` at most. ETIMEDOUT: not yet. EIO: it could
 * not be published, for the reason in the message, and does not exist. EINPROGRESS: its last step has no answer, so it
 * may exist or not. Publish again: it exists if a later version does, and this function says so then. EINVAL: this
 * handle published no such version.
 */
int nram_published(nram_t* n, const void* address, uint64_t version, uint32_t timeout_ms);
/*
 * Drops the version: it cannot be observed any more, and is freed when its last observer lets go of it. `address` is
 * the producer's mapping. Blocks while a version of this handle is on its way. ENOENT: no such version.
 */
int nram_drop_version(nram_t* n, const void* address, uint64_t version);

/*
 * Maps a version (NRAM_VERSION_NEWEST, or a number) read-only, and returns the address, which nram_munmap() ends. Its
 * pages are fetched when they are touched, within the budget. *got, which may be NULL, is its number. ENOENT: there is
 * no such version (yet). EIO: it was dropped, or servers do not answer. The errors of a key file are those of
 * nram_mmap(). If servers do not answer, it blocks for about four times the timeout, and some more for each mapping.
 *
 * nram_observe_all() maps all mappings of the version, in the order of nram_publish_all(): *count is the room in
 * `addresses`, and then their number. EINVAL: there are more.
 */
void* nram_observe(nram_t* n, const char* name, uint64_t version, uint64_t* got);
int nram_observe_all(nram_t* n, const char* name, uint64_t version, void** addresses, size_t* count, uint64_t* got);
/*
 * Goes on to the newest version, at the same address, as soon as there is one above the present; with all mappings of
 * one nram_observe_all(). Unchanged pages remain resident. No other thread may use or unmap these mappings meanwhile,
 * or call nram_next() for one of them, or use the names and the header of the former version.
 *
 * ETIMEDOUT: there was none within `timeout_ms` (0: looks once). A newer one that servers do not give takes the timeout
 * of the options more for each mapping. EBUSY: the newer version has other mappings, or of other lengths: observe it
 * anew. After an error the mappings are as before.
 */
int nram_next(nram_t* n, void* address, uint32_t timeout_ms, uint64_t* got);
/*
 * The header of the observed version, "" if it has none; owned by nram, valid until nram_next() or nram_munmap(). NULL:
 * EINVAL, no version is observed there. Never waits for servers.
 */
const char* nram_version_header(nram_t* n, const void* address);
/*
 * The array of the observed version with this name, or with that number, from 0, in the order of its producer.
 * `address` is any mapping that observes it. Fills *array, whose `size` the caller has set (nram_array_init()); name
 * and data are valid until nram_next() or nram_munmap(). The next version may have other arrays, or have them
 * elsewhere: find them anew. ENOENT: there is none. EIO: its description is impossible. Neither waits for servers.
 */
int nram_find_array(nram_t* n, const void* address, const char* name, struct nram_array* array);
int nram_get_array(nram_t* n, const void* address, size_t index, struct nram_array* array);

/* The observed version's number and time. */
struct nram_version_info {
  size_t size; /* set by the caller: sizeof(struct nram_version_info) */
  uint64_t version;
  uint64_t step;   /* nram_publish_options.step */
  int64_t time_ns; /* of its publication, by that machine's clock, in nanoseconds since 1970 */
};
/* Fills *info, whose `size` the caller has set. EINVAL: no version is observed there. Never waits for servers. */
int nram_get_version_info(nram_t* n, const void* address, struct nram_version_info* info);

/* ---- heap ---- */

/*
 * As their namesakes in the C library (nram_aligned_alloc: any size); on errors NULL and ENOMEM, and nram_realloc()
 * leaves the block as it was. They may wait for servers, but nram_usable_size(). The bookkeeping is in local memory.
 *
 * They need jemalloc, which libnram.so.0 brings; libnram-core.so.0 is without them. Pages of freed blocks are dropped,
 * here and on the servers, within seconds (those that a thread keeps at hand, when it ends), but their room remains
 * reserved for this heap until nram_close().
 *
 * nram_free() of a pointer that is no block of this handle's heap, or of a block that was freed lately (most of the
 * last 4,000 or so), ends the program with a message. Addresses inside of blocks, and blocks freed long ago, are not
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
  uint64_t write_faults;          /* of them: first writes to a resident page */
  uint64_t hits;                  /* of them: for a page that was resident or on its way (read ahead) */
  uint64_t zero_pages;            /* pages filled with zeros without a server */
  uint64_t fetched_bytes;         /* from servers */
  uint64_t prefetched_bytes;      /* of them: read ahead */
  uint64_t prefetch_wasted_bytes; /* of them: dropped untouched */
  uint64_t written_bytes;         /* to servers */
  uint64_t evicted_pages;
  uint64_t lost_pages;
  uint64_t wait_ns;        /* time from faults' arrival to their end, summed over faults */
  uint64_t metadata_bytes; /* now: nram's own bookkeeping, outside the budget */
  uint64_t budget_shrank;  /* times that the budget became smaller */
  uint64_t budget_grew;    /* times that it became larger */
};

/* Fills *stats, whose `size` the caller has set. Never waits for servers. */
int nram_get_stats(nram_t* n, struct nram_stats* stats);

#ifdef __cplusplus
}
#endif

#endif /* NRAM_CLIENT_MEMORY_NRAM_H_ */
