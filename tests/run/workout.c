// A program for `nram run`, one exercise a call: it verifies all of its memory, and says "ok" if it is right.
//
//   fill MIB       malloc, write, verify in random order, twice
//   bss            the same in STATIC_MIB MiB of static data
//   threads MIB    four threads, each a quarter, with one another's words in the same pages
//   calls MIB      read(2) and write(2) from and to remote pages, through a pipe
//   exits COUNT    threads that end on stacks in malloc's memory
//   realloc MIB    blocks that grow, shrink and move
//   maps MIB       mmap, munmap, mremap, mprotect, madvise at random, against a model
//   mapthreads MIB the same by four threads
//   refused MIB    calls that the kernel refuses, and that so change nothing; advice and locks
//   brk MIB        the heap's end, up and down
//   fork MIB       fork(2) with MIB MiB in memory: the child verifies, writes its own and forks, too; neither sees the
//                  other's words
//   forks MIB      children that write at the same time as their parent, whose threads write, too
//   forkexec MIB   fork(2) and execution of true(1), many times, while the parent writes
//   forkgrow MIB   a thread forks, again and again, while another one allocates and writes MIB MiB
//   orphans MIB    a child that outlives its parent, and says so on the standard output
//   touchall MIB   fills MIB MiB, and reads each page that it may write to, by /proc/self/maps
//   foreign MIB    fork(2) by a call of a 32-bit program: prints the outcome
//   advised MIB    fork(2) with memory that must not be inherited: prints the outcome
//   vfork MIB      posix_spawn of true(1) with MIB MiB in memory
//   sharer MIB     a child that shares the memory kills the program, and must not go on with zeros
//   orphan MIB     the same, and it kills the supervisor
//   shared MIB     the same, and says "shared" instead: the test kills
//   exec MIB       fills, and executes itself anew
//   before MIB PROGRAM...  fills, and executes another program
//   hidden MIB     fill, and first gives up being dumpable: prints the outcome
//   signal N       raises a signal
//   exit N         exits

#define _GNU_SOURCE
#include "tests/run/workout.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <spawn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

extern char** environ;

static void DoFill(uint64_t* words, size_t bytes) {
  for (uint64_t round = 1; round <= 2; ++round) {
    Fill(words, bytes / 8, round);
    Verify(words, bytes / 8, round);
  }
}

struct Share {
  uint64_t* words;
  size_t count;
  size_t number;
};

static void* Work(void* context) {
  const struct Share* const share = context;
  for (uint64_t round = 1; round <= 2; ++round) {
    for (size_t i = share->number; i < share->count; i += 64) share->words[i] = Mix(i + round);
    for (size_t i = share->number; i < share->count; i += 64)
      Check(share->words[i] == Mix(i + round), "a thread's word");
  }
  return NULL;
}

static void DoThreads(size_t bytes) {
  uint64_t* const words = Allocate(bytes);
  pthread_t threads[4];
  struct Share shares[4];
  for (size_t i = 0; i < 4; ++i) {
    shares[i] = (struct Share){words, bytes / 8, i};
    Check(pthread_create(&threads[i], NULL, &Work, &shares[i]) == 0, "pthread_create");
  }
  for (size_t i = 0; i < 4; ++i) pthread_join(threads[i], NULL);
  free(words);
}

static void DoCalls(size_t bytes) {
  char* const from = (char*)Allocate(bytes);
  char* const to = (char*)Allocate(bytes);
  Fill((uint64_t*)from, bytes / 8, 5);
  memset(to, 1, bytes);
  int ends[2];
  Check(pipe(ends) == 0, "pipe");
  for (size_t at = 0; at < bytes; at += 65536) {
    size_t part = bytes - at < 65536 ? bytes - at : 65536;
    for (size_t done = 0; done < part;) {
      const ssize_t out = write(ends[1], from + at + done, part - done);
      Check(out > 0, "write from memory");
      for (ssize_t in = 0; in < out;) {
        const ssize_t got = read(ends[0], to + at + done + in, out - in);
        Check(got > 0, "read into memory");
        in += got;
      }
      done += out;
    }
  }
  Verify((uint64_t*)to, bytes / 8, 5);
}

static void* Nothing(void* context) { return context; }

static void DoExits(size_t count) {
  const size_t stack = 64 * 1024;
  char* const stacks = (char*)Allocate(64 * stack + PAGE);
  char* const aligned = (char*)(((uintptr_t)stacks + PAGE - 1) / PAGE * PAGE);
  const size_t bulk_bytes = 40 * MIB;
  uint64_t* const bulk = Allocate(bulk_bytes);
  for (size_t i = 0; i < count; ++i) {
    pthread_t thread;
    pthread_attr_t attributes;
    void* result = NULL;
    pthread_attr_init(&attributes);
    Check(pthread_attr_setstack(&attributes, aligned + i % 64 * stack, stack) == 0, "pthread_attr_setstack");
    Check(pthread_create(&thread, &attributes, &Nothing, bulk) == 0, "pthread_create");
    // Evicts the stacks.
    if (i % 50 == 0) Fill(bulk, bulk_bytes / 8, i);
    Check(pthread_join(thread, &result) == 0 && result == bulk, "pthread_join");
  }
}

static void DoRealloc(size_t bytes) {
  enum { kBlocks = 16 };
  uint64_t* blocks[kBlocks] = {0};
  size_t words[kBlocks] = {0};
  const size_t most = bytes / 8 / kBlocks * 2;
  for (uint64_t step = 0; step < 300; ++step) {
    const size_t i = Mix(step) % kBlocks;
    const size_t size = 64 + Mix(step + 1000) % most;
    const size_t kept = size < words[i] ? size : words[i];
    blocks[i] = realloc(blocks[i], size * 8);
    Check(blocks[i] != NULL, "realloc");
    for (size_t k = 0; k < kept; k += 64) Check(blocks[i][k] == Mix(k + i), "a word after realloc");
    for (size_t k = (kept + 63) / 64 * 64; k < size; k += 64) blocks[i][k] = Mix(k + i);
    words[i] = size;
  }
}

// Slots of 64 pages each, whose salt the model knows; 0: zeros.
enum { kSlots = 128, kSlotPages = 64 };
struct Slot {
  char* at;
  uint64_t salt;
};

static void FillSlot(struct Slot* slot, uint64_t salt) {
  for (size_t page = 0; page < kSlotPages; ++page) {
    *(uint64_t*)(slot->at + page * PAGE + 8 * (page % 512)) = salt == 0 ? 0 : Mix(page + salt);
  }
  slot->salt = salt;
}

static void CheckSlot(const struct Slot* slot) {
  for (size_t page = 0; page < kSlotPages; ++page) {
    const uint64_t word = *(uint64_t*)(slot->at + page * PAGE + 8 * (page % 512));
    Check(word == (slot->salt == 0 ? 0 : Mix(page + slot->salt)), "a page of a mapping");
  }
}

static void Change(struct Slot* slot, uint64_t step) {
  const size_t bytes = kSlotPages * PAGE;
  switch (Mix(step) % 7) {
    case 0:
      Check(munmap(slot->at, bytes) == 0, "munmap");
      slot->at = NULL;
      break;
    case 1:
      Check(madvise(slot->at, bytes, MADV_DONTNEED) == 0, "madvise");
      slot->salt = 0;
      CheckSlot(slot);
      break;
    case 2: {  // away and back, larger meanwhile
      if (step % 2 == 0) Check(madvise(slot->at, bytes, MADV_RANDOM) == 0, "advice");
      char* const moved = mremap(slot->at, bytes, 3 * bytes, MREMAP_MAYMOVE);
      Check(moved != MAP_FAILED, "mremap");
      slot->at = moved;
      CheckSlot(slot);
      memset(slot->at + bytes, 3, 2 * bytes);
      Check(mremap(slot->at, 3 * bytes, bytes, 0) == slot->at, "mremap to less");
      CheckSlot(slot);
      break;
    }
    case 3:
      Check(mprotect(slot->at, bytes, PROT_READ) == 0, "mprotect");
      CheckSlot(slot);
      Check(mprotect(slot->at, bytes, PROT_READ | PROT_WRITE) == 0, "mprotect back");
      break;
    case 4:  // another mapping in its place
      Check(mmap(slot->at, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == slot->at,
            "mmap over a mapping");
      slot->salt = 0;
      CheckSlot(slot);
      break;
    case 5: {  // onto a place of its own
      char* const place = mmap(NULL, 2 * bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
      Check(place != MAP_FAILED, "mmap of a place");
      Check(mremap(slot->at, bytes, bytes, MREMAP_MAYMOVE | MREMAP_FIXED, place + bytes) == place + bytes,
            "mremap to a place");
      Check(munmap(place, bytes) == 0, "munmap of half a place");
      slot->at = place + bytes;
      CheckSlot(slot);
      break;
    }
    default:
      FillSlot(slot, step + 1);
  }
}

static void ChangeMaps(struct Slot* slots, size_t used, uint64_t salt, uint64_t steps) {
  for (uint64_t step = salt; step < salt + steps; ++step) {
    struct Slot* const slot = &slots[Mix(step * 7 + 1) % used];
    if (slot->at == NULL) {
      slot->at = mmap(NULL, kSlotPages * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
      Check(slot->at != MAP_FAILED, "mmap");
      FillSlot(slot, step + 1);
    }
    CheckSlot(slot);
    Change(slot, step);
  }
  for (size_t i = 0; i < used; ++i) {
    if (slots[i].at != NULL) CheckSlot(&slots[i]);
  }
}

static size_t SlotsOf(size_t bytes) {
  const size_t slots = bytes / (kSlotPages * PAGE);
  return slots < kSlots ? slots : kSlots;
}

static void DoMaps(size_t bytes) {
  static struct Slot slots[kSlots];
  ChangeMaps(slots, SlotsOf(bytes), 0, 3000);
}

struct MapShare {
  struct Slot slots[kSlots];
  size_t used;
  uint64_t salt;
};

static void* WorkOnMaps(void* context) {
  struct MapShare* const share = context;
  ChangeMaps(share->slots, share->used, share->salt, 1000);
  return NULL;
}

static void DoMapThreads(size_t bytes) {
  static struct MapShare shares[4];
  pthread_t threads[4];
  for (size_t i = 0; i < 4; ++i) {
    shares[i].used = SlotsOf(bytes / 4);
    shares[i].salt = 1 + i * 1000000;
    Check(pthread_create(&threads[i], NULL, &WorkOnMaps, &shares[i]) == 0, "pthread_create");
  }
  for (size_t i = 0; i < 4; ++i) pthread_join(threads[i], NULL);
}

static void Refused(void* result, int error, const char* what) {
  const int got = errno;
  Check(result == MAP_FAILED && got == error, what);
}

static void DoRefused(size_t bytes) {
  const int both = PROT_READ | PROT_WRITE, anonymous = MAP_PRIVATE | MAP_ANONYMOUS, noreplace = 0x100000;
  // Before the program grows: free memory is dropped at once.
  char* const small = mmap(NULL, MIB, both, anonymous, -1, 0);
  Check(small != MAP_FAILED, "mmap");
  memset(small, 7, MIB);
  Check(mlock(small, MIB) == 0, "mlock of what fits");
  Check(munlock(small, MIB) == 0, "munlock");
  Check(madvise(small, MIB, MADV_FREE) == 0, "MADV_FREE");
  for (size_t i = 0; i < MIB; i += PAGE) Check(small[i] == 0, "a page that is free");
  Check(mlock(small, MIB / 2) == 0, "mlock of what leaves later");
  char* const words = mmap(NULL, bytes, both, anonymous, -1, 0);
  Check(words != MAP_FAILED, "mmap");
  Fill((uint64_t*)words, bytes / 8, 6);
  const size_t part = 4 * MIB;
  const int file = open("/proc/self/exe", O_RDONLY);
  Check(file >= 0, "the program's own file");
  for (char* at = words; at + 2 * part <= words + bytes; at += part) {
    Refused(mmap(at, part, both, anonymous | noreplace, -1, 0), EEXIST, "MAP_FIXED_NOREPLACE");
    Refused(mmap(at, part, both, anonymous | noreplace | MAP_FIXED, -1, 0), EEXIST, "and MAP_FIXED");
    Refused(mmap(at, part, PROT_READ, MAP_PRIVATE | MAP_FIXED, 1000, 0), EBADF, "no file");
    Refused(mmap(at, part, PROT_READ, MAP_PRIVATE | MAP_FIXED, file, 5), EINVAL, "an offset");
    Refused(mmap(at, part, both, MAP_SHARED | MAP_FIXED, file, 0), EACCES, "a file that is not to be written to");
    Refused(mremap(at, part, part, MREMAP_MAYMOVE | MREMAP_FIXED, at + PAGE), EINVAL, "mremap onto itself");
    Check(mlock(at, part) == -1 && errno == ENOMEM, "mlock of what does not fit");
    Check(madvise(at, part, MADV_RANDOM) == 0, "MADV_RANDOM");
  }
  struct rlimit limit;
  Check(getrlimit(RLIMIT_DATA, &limit) == 0, "getrlimit");
  const struct rlimit less = {MIB, limit.rlim_max};  // 0 would be none, for Valgrind
  Check(setrlimit(RLIMIT_DATA, &less) == 0, "setrlimit");
  Refused(mmap(NULL, part, both, anonymous, -1, 0), ENOMEM, "more than the limit");
  Check(setrlimit(RLIMIT_DATA, &limit) == 0, "setrlimit back");
  char* const more = mmap(NULL, part, both, anonymous, -1, 0);
  Check(more != MAP_FAILED && munmap(more, part) == 0, "within the limit");
  Verify((uint64_t*)words, bytes / 8, 6);
  Check(mmap(words, part, PROT_READ, MAP_PRIVATE | MAP_FIXED, file, 0) == words, "a file in its place");
  Check(memcmp(words, "\177ELF", 4) == 0, "the file");
  Check(mmap(words, part, both, anonymous | MAP_FIXED, -1, 0) == words, "memory in the file's place");
  Fill((uint64_t*)words, part / 8, 6);
  Verify((uint64_t*)words, bytes / 8, 6);
}

static void DoBrk(size_t bytes) {
  for (int round = 0; round < 3; ++round) {
    uint64_t* const words = sbrk((intptr_t)bytes);
    Check(words != (void*)-1, "sbrk");
    for (size_t i = 0; i < bytes / 8; i += 512) Check(words[i] == 0, "new heap");
    DoFill(words, bytes);
    Check(sbrk(-(intptr_t)bytes) != (void*)-1, "sbrk down");
  }
}

static void DoSpawn(size_t bytes) {
  uint64_t* const words = Allocate(bytes);
  Fill(words, bytes / 8, 3);
  for (int i = 0; i < 20; ++i) {
    char* const arguments[] = {(char*)"true", NULL};
    pid_t child;
    int status = 0;
    Check(posix_spawnp(&child, "true", NULL, NULL, arguments, environ) == 0, "posix_spawn");
    Check(waitpid(child, &status, 0) == child && status == 0, "the spawned program");
  }
  Verify(words, bytes / 8, 3);
}

// A process that shares the memory ends by a signal when its faults are no longer served; words are right until then.
static void DoSharer(size_t bytes, const char* which) {
  static const char kShared[] = "shared\n";
  static const char kWrong[] = "wrong: a word that is shared\n";
  static const char kGoesOn[] = "wrong: it goes on\n";
  uint64_t* const words = Allocate(bytes);
  Fill(words, bytes / 8, 3);
  const volatile pid_t program = getpid();
  const pid_t victim = which[0] == 'o' ? getppid() : program;
  if (vfork() == 0) {
    struct timespec begun, now;
    clock_gettime(CLOCK_MONOTONIC, &begun);
    if (strcmp(which, "shared") == 0)
      (void)!write(1, kShared, sizeof(kShared) - 1);
    else
      kill(victim, SIGKILL);
    do {
      for (size_t i = 0; i < bytes / 8; i += 64) {
        if (words[i] == Mix(i + 3)) continue;
        (void)!write(1, kWrong, sizeof(kWrong) - 1);
        _exit(1);
      }
      clock_gettime(CLOCK_MONOTONIC, &now);
    } while (now.tv_sec - begun.tv_sec < 20);
    (void)!write(1, kGoesOn, sizeof(kGoesOn) - 1);
    _exit(1);
  }
}

#ifndef STATIC_MIB
#define STATIC_MIB 1
#endif
static char static_data[STATIC_MIB * MIB];

static void DoTouchAll(size_t bytes) {
  DoFill(Allocate(bytes), bytes);
  FILE* const maps = fopen("/proc/self/maps", "r");
  Check(maps != NULL, "/proc/self/maps");
  char line[512];
  unsigned long begin, end, sum = 0;
  char rights[5];
  while (fgets(line, sizeof(line), maps) != NULL) {
    if (sscanf(line, "%lx-%lx %4s", &begin, &end, rights) != 3 || strcmp(rights, "rw-p") != 0) continue;
    for (; begin < end; begin += PAGE) sum += *(volatile const char*)begin;
  }
  Check(sum != 1, "a sum");
}

int main(int argc, char** argv) {
  if (argc < 2) return 2;
  const char* const what = argv[1];
  const size_t number = argc > 2 ? strtoul(argv[2], NULL, 10) : 0;
  const size_t bytes = number * MIB;
  if (strcmp(what, "fill") == 0)
    DoFill(Allocate(bytes), bytes);
  else if (strcmp(what, "bss") == 0)
    DoFill((uint64_t*)static_data, sizeof(static_data));
  else if (strcmp(what, "threads") == 0)
    DoThreads(bytes);
  else if (strcmp(what, "calls") == 0)
    DoCalls(bytes / 2);
  else if (strcmp(what, "exits") == 0)
    DoExits(number);
  else if (strcmp(what, "realloc") == 0)
    DoRealloc(bytes);
  else if (strcmp(what, "maps") == 0)
    DoMaps(bytes);
  else if (strcmp(what, "refused") == 0)
    DoRefused(bytes);
  else if (strcmp(what, "mapthreads") == 0)
    DoMapThreads(bytes);
  else if (strcmp(what, "brk") == 0)
    DoBrk(bytes);
  else if (strcmp(what, "fork") == 0)
    DoFork(bytes);
  else if (strcmp(what, "forks") == 0)
    DoForks(bytes);
  else if (strcmp(what, "forkexec") == 0)
    DoForkExec(bytes);
  else if (strcmp(what, "forkgrow") == 0)
    DoForkGrow(bytes);
  else if (strcmp(what, "touchall") == 0)
    DoTouchAll(bytes);
  else if (strcmp(what, "orphans") == 0)
    DoOrphans(bytes);
  else if (strcmp(what, "foreign") == 0)
    DoForeign(bytes);
  else if (strcmp(what, "advised") == 0)
    DoAdvised(bytes);
  else if (strcmp(what, "vfork") == 0)
    DoSpawn(bytes);
  else if (strcmp(what, "sharer") == 0 || strcmp(what, "orphan") == 0 || strcmp(what, "shared") == 0)
    DoSharer(bytes, what);
  else if (strcmp(what, "hidden") == 0) {
    printf(prctl(PR_SET_DUMPABLE, 0) == 0 ? "hidden " : errno == EPERM ? "refused " : "wrong ");
    DoFill(Allocate(bytes), bytes);
  } else if (strcmp(what, "exec") == 0) {
    DoFill(Allocate(bytes), bytes);
    execlp(argv[0], argv[0], "fill", argv[2], NULL);
    return 1;
  } else if (strcmp(what, "before") == 0) {
    DoFill(Allocate(bytes), bytes);
    execvp(argv[3], argv + 3);
    return 1;
  } else if (strcmp(what, "signal") == 0) {
    raise((int)number);
  } else if (strcmp(what, "exit") == 0) {
    return (int)number;
  } else {
    return 2;
  }
  printf("ok\n");
  return 0;
}
