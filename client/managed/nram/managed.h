#ifndef NRAM_CLIENT_MANAGED_NRAM_MANAGED_H_
#define NRAM_CLIENT_MANAGED_NRAM_MANAGED_H_

/*
 * nram: managed memory, from C. Objects live in other machines' RAM, and a budget of them is here at a time. A program
 * says which ones it uses now: it adheres to them. <nram/managed.hpp> is the C++ face. Managed memory needs no
 * userfaultfd and no privilege.
 *
 *   nram_managed_t *m = nram_managed_open(NULL, NULL);             // the pool and the budget from the environment
 *   struct nram_managed_object row;
 *   nram_managed_new(m, 1000 * sizeof(double), 0, &row);           // 1000 zeros
 *   struct nram_managed_guard guard;
 *   double *d = nram_managed_adhere(m, &row, NRAM_MANAGED_WRITE, &guard);
 *   d[0] = 1;                                                      // plain memory until the guard is released
 *   nram_managed_release(m, &guard);
 *   nram_managed_delete(m, &row);
 *   nram_managed_close(m);
 *
 * Threads: any thread may call any function at any time, but nram_managed_close() needs the handle alone. Threads that
 * adhere to the same object share its memory, as threads do. No function may be called from a signal handler.
 *
 * Waiting: functions that adhere or make objects may block: for the timeout of the options (10 s) if a server does not
 * answer, three times that if other objects have to be evicted first, and for wait_ms if other threads hold the room.
 * nram_managed_delete() waits for operations on the object's block, nram_managed_close() for all. The other functions
 * never wait for servers, but those that open a pool.
 *
 * Errors: functions that return a pointer return NULL, those that return int -1 (else 0); errno and
 * nram_managed_error() then tell the reason:
 *
 *   ENOSPC     more would be adhered to than fits the budget
 *   ENOMEM     the pool, or the address space, is full, or the pool has fewer hosts than copies
 *   EIO        servers do not answer or have lost data
 *   EINVAL     an argument is wrong; the message tells the accepted range
 *   ENOENT     there is no such pool
 *   ENOTSUP    this is a child of fork(), and the object is not here
 *
 * Pointers must not be NULL, unless a comment says otherwise. A child of fork() may adhere to objects that were here,
 * one at a time, and release them: it has copies. Other functions fail with ENOTSUP there, or do nothing.
 */

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#ifdef __cplusplus
extern "C" {
#endif

/* A region of a pool, a budget, and the objects in them. */
typedef struct nram_managed nram_managed_t;

/* Fill with nram_managed_options_init(), then set fields; zeros are the defaults. */
struct nram_managed_options {
  size_t size;
  /*
   * Local memory for objects, bytes, 1 MiB or more; 0: $NRAM_BUDGET ("512M", or "auto", which is half of the memory
   * that is available now; "/node" behind it shares it among an MPI program's ranks on this machine), else 256 MiB.
   */
  uint64_t budget_bytes;
  uint32_t copies;     /* of each object, on different hosts, 1 to 4; 0: $NRAM_COPIES, else 1 */
  uint32_t timeout_ms; /* after which a server that does not answer counts as lost; 0: 10,000 */
  uint32_t wait_ms;    /* the longest wait for room that other threads hold; 0: 60,000 */
  uint32_t no_wait;    /* other than 0: as nram_managed_set_waits(m, 0) */
};

static inline void nram_managed_options_init(struct nram_managed_options* options) {
  memset(options, 0, sizeof(*options));
  options->size = sizeof(*options);
}

/*
 * Opens a pool, as nram_open() does ("host:port,host:port", "@hostfile"; NULL: $NRAM_POOL, else the pool of `nram up`),
 * and makes a region in it, sealed if a server is on another machine ($NRAM_SEAL). `options` may be NULL. Returns a
 * handle that nram_managed_close() ends. Blocks as nram_open().
 */
nram_managed_t* nram_managed_open(const char* pool, const struct nram_managed_options* options);
/* All guards must be released. Frees all objects; destructors of C++ objects do not run. */
int nram_managed_close(nram_managed_t* m);
/*
 * The program's own handle, opened at the first call from the environment, and never closed (EINVAL). Its part of the
 * pool is freed when the program ends by exit() or from main(), with its last object; otherwise when its lease ends.
 */
nram_managed_t* nram_managed_default(void);

/* An object. Plain data, which the caller keeps and does not change. */
struct nram_managed_object {
  void* block;
  uint64_t offset;
};
/* Keeps an object here. Plain data; may be moved, also to another thread, and is released once. */
struct nram_managed_guard {
  void* block;
  void* taker;
};

enum {
  NRAM_MANAGED_FIXED = 1,  /* of an object: it is always at the same address. Each fetch then costs fresh pages */
  NRAM_MANAGED_READ = 0,   /* of a guard: the program does not write through it, and nothing is written back for it */
  NRAM_MANAGED_WRITE = 2,  /* of a guard: the program may write through it */
  NRAM_MANAGED_BEYOND = 4, /* of a guard: goes beyond the budget if there is no other way, for programs that clean up */
};

/*
 * Makes an object of zeros, of 1 byte to 1 TiB, aligned as malloc's, and fills *object. Objects of up to 8 KiB share
 * blocks of 64 KiB, which are freed with their last object.
 */
int nram_managed_new(nram_managed_t* m, size_t bytes, int flags, struct nram_managed_object* object);
/*
 * The same with an alignment of up to 4096, unspecified contents, and a guard for writing, which the caller releases.
 * Returns the address.
 */
void* nram_managed_new_aligned(nram_managed_t* m, size_t bytes, size_t alignment, int flags,
                               struct nram_managed_object* object, struct nram_managed_guard* guard);
/* Frees the object. No guard may hold it. In a child of fork() it does nothing. */
void nram_managed_delete(nram_managed_t* m, const struct nram_managed_object* object);

/*
 * Fetches the object if it is not here, fills *guard, and returns the object's address, valid until the guard is
 * released. `flags`: NRAM_MANAGED_READ or _WRITE, and _BEYOND.
 */
void* nram_managed_adhere(nram_managed_t* m, const struct nram_managed_object* object, int flags,
                          struct nram_managed_guard* guard);
/*
 * The same for all objects or none, in an order that cannot deadlock with threads that do the same. `objects`, `flags`,
 * `guards` and `addresses` have `count` members. All objects must be of this handle.
 */
int nram_managed_adhere_all(nram_managed_t* m, size_t count, const struct nram_managed_object* const* objects,
                            const int* flags, struct nram_managed_guard* guards, void** addresses);
/* Ends the guard; any thread may. The address is invalid then. */
void nram_managed_release(nram_managed_t* m, const struct nram_managed_guard* guard);
/* Begins to fetch the object, and returns at once. */
void nram_managed_start(nram_managed_t* m, const struct nram_managed_object* object);

/* Returns at once; objects beyond a smaller budget are evicted as guards and servers allow. EINVAL: below 1 MiB. */
int nram_managed_set_budget(nram_managed_t* m, uint64_t bytes);
/* 0: a request that does not fit beside the present guards fails at once, even if another thread may release one. */
void nram_managed_set_waits(nram_managed_t* m, int waits);
/* The share of the budget, in per cent, for objects that are fetched ahead of use: 0 to 50 (EINVAL); 10 at first. */
int nram_managed_set_ahead(nram_managed_t* m, uint32_t percent);

/* Since nram_managed_open(), unless it says "now". A block is a large object, or a pack of small ones. */
struct nram_managed_stats {
  size_t size;             /* set by the caller: sizeof(struct nram_managed_stats) */
  uint64_t budget_bytes;   /* now */
  uint64_t managed_bytes;  /* now: all blocks */
  uint64_t local_bytes;    /* now: blocks that are here or on their way, kept buffers, and bookkeeping */
  uint64_t remote_bytes;   /* now: blocks that are in the pool alone */
  uint64_t metadata_bytes; /* now: bookkeeping, a part of local_bytes */
  uint64_t misses;         /* times that a thread had to wait for a block */
  uint64_t ahead_hits;     /* blocks fetched ahead that were used */
  uint64_t ahead_wasted;   /* blocks fetched ahead that were dropped unused */
  uint64_t fetched_bytes;  /* from servers */
  uint64_t ahead_bytes;    /* of them: ahead of use */
  uint64_t written_bytes;  /* to servers */
  uint64_t evictions;
  uint64_t room_waits;  /* times that a thread had to wait for others' guards */
  uint64_t over_budget; /* requests that failed with ENOSPC */
  uint64_t failed_reads;
  uint64_t failed_writes;
};
/* Fills *stats, whose `size` the caller has set. */
int nram_managed_get_stats(nram_managed_t* m, struct nram_managed_stats* stats);

/* The message of the calling thread's last call that failed; as nram_error() of <nram.h>. */
const char* nram_managed_error(void);

#ifdef __cplusplus
}
#endif

#endif /* NRAM_CLIENT_MANAGED_NRAM_MANAGED_H_ */
