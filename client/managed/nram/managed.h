#ifndef NRAM_CLIENT_MANAGED_NRAM_MANAGED_H_
#define NRAM_CLIENT_MANAGED_NRAM_MANAGED_H_

/*
 * nram: managed memory, from C. Objects that live in other machines' RAM, of which a budget is here at a time. A
 * program says which ones it uses now: it adheres to them. <nram/managed.hpp> is the C++ face. No userfaultfd, no
 * privilege.
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
 * All functions may be called from any thread. Two threads that adhere to the same object share its memory, as threads
 * do. Functions that adhere may block: for the timeout of the options (10 s) where a server does not answer, three
 * times that if other objects have to leave first, and for wait_ms where other threads hold the room. In a child after
 * fork() they fail with ENOTSUP. No function may be called from a signal handler.
 *
 * Those that return int return 0, or -1 on error; those that return a pointer NULL. errno and nram_error() of <nram.h>
 * tell why: ENOSPC (more would be adhered to than fits the budget), ENOMEM (the pool, or the address space, is full),
 * EIO (servers do not answer or have lost data), EINVAL, ENOENT (no such pool), ENOTSUP.
 */

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#ifdef __cplusplus
extern "C" {
#endif

/* A region of a pool, a budget, and the objects in them. */
typedef struct nram_managed nram_managed_t;

/* Fill with nram_managed_options_init(), then change what you want; zeros are the defaults. */
struct nram_managed_options {
  size_t size;
  /* Local memory for objects, 1 MiB or more; 0: $NRAM_BUDGET ("512M"; "auto": half of what this machine has available
     now), else 256 MiB. */
  uint64_t budget_bytes;
  uint32_t copies;     /* of each object, on different hosts, 1 to 4; 0: $NRAM_COPIES, else 1 */
  uint32_t timeout_ms; /* after which a server that does not answer counts as lost; 0: 10,000 */
  uint32_t wait_ms;    /* the longest wait for room that other threads hold; 0: 60,000 */
  uint32_t no_wait;    /* not 0: as nram_managed_set_waits(m, 0) */
};

static inline void nram_managed_options_init(struct nram_managed_options* options) {
  memset(options, 0, sizeof(*options));
  options->size = sizeof(*options);
}

/*
 * Opens a pool, as nram_open() does ("host:port,host:port", "@hostfile"; NULL: $NRAM_POOL, else the pool of `nram up`),
 * and makes a region in it. Sealed where a server is on another machine ($NRAM_SEAL). `options` may be NULL.
 */
nram_managed_t* nram_managed_open(const char* pool, const struct nram_managed_options* options);
/* All guards must be released. Objects are gone; destructors of C++ objects do not run. */
int nram_managed_close(nram_managed_t* m);
/* That of the program, opened at the first call from the environment, and never closed (EINVAL). What it has in the
   pool goes when the program ends by exit() or from main(), with the last of its objects; else with its lease. */
nram_managed_t* nram_managed_default(void);

/* An object; plain data, to be kept by the caller and not to be changed. */
struct nram_managed_object {
  void* block;
  uint64_t offset;
};
/* What keeps an object here. Plain data; may be moved, also to another thread, and is released once. */
struct nram_managed_guard {
  void* block;
  void* taker;
};

enum {
  NRAM_MANAGED_FIXED = 1, /* of an object: it is always at the same address. Costs fresh pages each time it comes */
  NRAM_MANAGED_READ = 0,  /* of a guard: nothing is written through it, and nothing is written back for it */
  NRAM_MANAGED_WRITE = 2, /* of a guard */
  /* Of a guard: goes beyond the budget if there is no other way, for programs that clean up. */
  NRAM_MANAGED_BEYOND = 4,
};

/* A new object of zeros, of 1 byte to 1 TiB. Aligned as malloc's; from 4096 bytes of nram_managed_new_aligned on. */
int nram_managed_new(nram_managed_t* m, size_t bytes, int flags, struct nram_managed_object* object);
/* With an alignment, contents that are unspecified, and a guard for writing. Returns the address. */
void* nram_managed_new_aligned(nram_managed_t* m, size_t bytes, size_t alignment, int flags,
                               struct nram_managed_object* object, struct nram_managed_guard* guard);
/* No guard may hold the object. */
void nram_managed_delete(nram_managed_t* m, const struct nram_managed_object* object);

/* The object's address, valid until the guard is released. `flags`: NRAM_MANAGED_READ or _WRITE, and _BEYOND. */
void* nram_managed_adhere(nram_managed_t* m, const struct nram_managed_object* object, int flags,
                          struct nram_managed_guard* guard);
/*
 * All of them or none, in an order that cannot deadlock with others who do the same. `objects`, `flags`, `guards` and
 * `addresses` have `count` members.
 */
int nram_managed_adhere_all(nram_managed_t* m, size_t count, const struct nram_managed_object* const* objects,
                            const int* flags, struct nram_managed_guard* guards, void** addresses);
void nram_managed_release(nram_managed_t* m, const struct nram_managed_guard* guard);
/* Begins to fetch the object, and returns at once. */
void nram_managed_start(nram_managed_t* m, const struct nram_managed_object* object);

/* EINVAL: less than 1 MiB. Returns at once; what is here beyond it leaves as guards and servers allow. */
int nram_managed_set_budget(nram_managed_t* m, uint64_t bytes);
/* 0: a request that does not fit beside what is held fails at once, also where another thread would release it soon. */
void nram_managed_set_waits(nram_managed_t* m, int waits);
/* The share of the budget, in per cent, for objects that are fetched ahead of use: 0 to 50 (EINVAL); 10 at first. */
int nram_managed_set_ahead(nram_managed_t* m, uint32_t percent);

/* Since nram_managed_open(), unless it says "now". Objects are moved in blocks: large ones each, small ones packed. */
struct nram_managed_stats {
  size_t size;             /* set by the caller: sizeof(struct nram_managed_stats) */
  uint64_t budget_bytes;   /* now */
  uint64_t managed_bytes;  /* now: all blocks */
  uint64_t local_bytes;    /* now: what is here or on its way, and bookkeeping */
  uint64_t remote_bytes;   /* now: what is in the pool alone */
  uint64_t metadata_bytes; /* now: of the local bytes */
  uint64_t misses;         /* times that a thread had to wait for a block */
  uint64_t ahead_hits;     /* blocks fetched ahead that were used */
  uint64_t ahead_wasted;   /* and that were not */
  uint64_t fetched_bytes;  /* from servers */
  uint64_t ahead_bytes;    /* of them: ahead of use */
  uint64_t written_bytes;  /* to servers */
  uint64_t evictions;
  uint64_t room_waits;  /* times that a thread had to wait for others' guards */
  uint64_t over_budget; /* requests that failed with ENOSPC */
  uint64_t failed_reads;
  uint64_t failed_writes;
};
int nram_managed_get_stats(nram_managed_t* m, struct nram_managed_stats* stats);

/* Why the calling thread's last call that failed did; as nram_error() of <nram.h>. */
const char* nram_managed_error(void);

#ifdef __cplusplus
}
#endif

#endif /* NRAM_CLIENT_MANAGED_NRAM_MANAGED_H_ */
