/*
 * A parallel program whose ranks have their memory in the pool. Each has an array beyond its budget, gives it to its
 * neighbour, and reads the first rank's published array. See mpi_test.sh.
 *
 * usage: mpi_ranks MIB NODE_BUDGET_MIB
 */

#include <mpi.h>
#include <nram.h>
#include <stdio.h>
#include <stdlib.h>

static int rank, ranks;
static nram_t* memory;

static void fail(const char* what) {
  fprintf(stderr, "FAILED: rank %d: %s: %s\n", rank, what, memory == NULL ? "" : nram_error());
  MPI_Abort(MPI_COMM_WORLD, 1);
  exit(1);
}

/* The value of word i of a rank's array. */
static uint64_t word(int owner, uint64_t i) { return (i + 1) * 0x9e3779b97f4a7c15u ^ (uint64_t)owner << 56; }

static void verify(const uint64_t* array, uint64_t words, int owner, const char* what) {
  for (uint64_t i = 0; i < words; ++i) {
    if (array[i] != word(owner, i)) fail(what);
  }
}

/* The sum over all ranks; here they all run on one machine. */
static uint64_t sum(uint64_t mine) {
  uint64_t all = 0;
  MPI_Allreduce(&mine, &all, 1, MPI_UINT64_T, MPI_SUM, MPI_COMM_WORLD);
  return all;
}

static uint64_t* map(size_t bytes, const char* name, int flags) {
  uint64_t* array = nram_mmap(memory, bytes, name, flags);
  if (array == NULL) fail("nram_mmap");
  return array;
}

static void check_budgets(uint64_t node_bytes, size_t bytes) {
  struct nram_stats stats = {.size = sizeof stats};
  if (nram_get_stats(memory, &stats) != 0) fail("nram_get_stats");
  if (stats.budget_bytes * 2 > bytes) fail("the array fits into the budget, so nothing is tested");
  if (sum(stats.budget_bytes) > node_bytes) fail("together the ranks have a larger budget than the node");
  if (sum(stats.budget_bytes) < node_bytes - node_bytes / 8) fail("the ranks do not have all of the node's budget");
  if (sum(stats.resident_bytes) > node_bytes) fail("together the ranks hold more than the node's budget");
  if (sum(stats.fetched_bytes) < bytes) fail("hardly anything was fetched");
}

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  if (argc != 3) fail("usage: mpi_ranks MIB NODE_BUDGET_MIB");
  const size_t bytes = strtoull(argv[1], NULL, 10) << 20;
  const uint64_t words = bytes / sizeof(uint64_t);
  memory = nram_open(NULL, NULL);
  if (memory == NULL) {
    fprintf(stderr, "FAILED: rank %d: nram_open: %s\n", rank, nram_error());
    MPI_Abort(MPI_COMM_WORLD, 1);
  }

  uint64_t *own = map(bytes, NULL, 0), *got = map(bytes, NULL, 0);
  for (uint64_t i = 0; i < words; ++i) own[i] = word(rank, i);
  verify(own, words, rank, "its own array");
  MPI_Barrier(MPI_COMM_WORLD);

  /* From nram memory to nram memory: in one piece, so that the transport copies from the other process's memory. */
  const int to = (rank + 1) % ranks, from = (rank + ranks - 1) % ranks;
  MPI_Sendrecv(own, (int)words, MPI_UINT64_T, to, 0, got, (int)words, MPI_UINT64_T, from, 0, MPI_COMM_WORLD,
               MPI_STATUS_IGNORE);
  verify(got, words, from, "its neighbour's array");
  verify(own, words, rank, "its own array, after it was sent");

  /* One writes, then all read. */
  const char* const name = "tests/memory/mpi_ranks";
  uint64_t* shared = NULL;
  if (rank == 0) {
    shared = map(bytes, name, 0);
    for (uint64_t i = 0; i < words; ++i) shared[i] = word(77, i);
    if (nram_flush(memory, shared, bytes) != 0) fail("nram_flush");
  }
  MPI_Barrier(MPI_COMM_WORLD);
  if (rank != 0) shared = map(bytes, name, NRAM_MAP_READ_ONLY);
  verify(shared, words, 77, "what the first rank has published");
  check_budgets(strtoull(argv[2], NULL, 10) << 20, bytes);
  if (rank != 0 && nram_munmap(memory, shared) != 0) fail("nram_munmap");
  MPI_Barrier(MPI_COMM_WORLD);
  if (nram_close(memory) != 0) fail("nram_close");
  MPI_Finalize();
  if (rank == 0) printf("%d ranks\n", ranks);
  return 0;
}
