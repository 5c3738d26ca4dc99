// A real program on the heap: all memory of SQLite is nram_malloc's, with a database of several times the budget.

#include <sqlite3.h>

#include <cstring>
#include <string>

#include "absl/strings/str_cat.h"
#include "client/memory/nram.h"
#include "gtest/gtest.h"
#include "tests/util/test_pool.h"

namespace nram {
namespace {

nram_t* heap = nullptr;

void* Malloc(int size) { return nram_malloc(heap, static_cast<size_t>(size)); }
void Free(void* block) { nram_free(heap, block); }
void* Realloc(void* block, int size) { return nram_realloc(heap, block, static_cast<size_t>(size)); }
int Size(void* block) { return static_cast<int>(nram_usable_size(heap, block)); }
int RoundUp(int size) { return (size + 7) / 8 * 8; }
int Init(void*) { return SQLITE_OK; }
void Shutdown(void*) {}

class Database {
 public:
  Database() { EXPECT_EQ(sqlite3_open(":memory:", &db_), SQLITE_OK); }
  ~Database() { EXPECT_EQ(sqlite3_close(db_), SQLITE_OK); }
  // The first column of the last row.
  std::string Run(const std::string& sql) {
    std::string result;
    char* error = nullptr;
    sqlite3_exec(
        db_, sql.c_str(),
        [](void* to, int, char** values, char**) {
          *static_cast<std::string*>(to) = values[0] == nullptr ? "" : values[0];
          return 0;
        },
        &result, &error);
    EXPECT_EQ(error, nullptr) << sql << ": " << error;
    sqlite3_free(error);
    return result;
  }

 private:
  sqlite3* db_ = nullptr;
};

TEST(SqliteTest, ADatabaseLargerThanTheBudget) {
  TestPool servers(2, 256 * kMiB);
  nram_options options;
  nram_options_init(&options);
  options.budget_bytes = 4 << 20;
  std::string spec;
  for (const Endpoint& server : servers.Options().servers) {
    absl::StrAppend(&spec, spec.empty() ? "" : ",", server.host, ":", server.port);
  }
  heap = nram_open(spec.c_str(), &options);
  ASSERT_NE(heap, nullptr) << nram_error();
  sqlite3_mem_methods methods = {Malloc, Free, Realloc, Size, RoundUp, Init, Shutdown, nullptr};
  ASSERT_EQ(sqlite3_config(SQLITE_CONFIG_MALLOC, &methods), SQLITE_OK);
  {
    Database db;
    db.Run("CREATE TABLE t(a INTEGER PRIMARY KEY, b INTEGER, c TEXT)");
    db.Run(
        "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 100000) "
        "INSERT INTO t SELECT i, (i * 7919) % 100003, printf('%0100d', i * i) FROM n");
    db.Run("CREATE INDEX by_b ON t(b)");
    EXPECT_EQ(db.Run("SELECT count(*) FROM t"), "100000");
    EXPECT_EQ(db.Run("SELECT sum(a) FROM t"), "5000050000");
    EXPECT_EQ(db.Run("SELECT c FROM t WHERE b = (4242 * 7919) % 100003"), db.Run("SELECT printf('%0100d', 4242*4242)"));
    db.Run("UPDATE t SET b = b + 1, c = c || 'x' WHERE a % 3 = 0");
    db.Run("DELETE FROM t WHERE a % 5 = 0");
    EXPECT_EQ(db.Run("SELECT count(*) FROM t WHERE c LIKE '%x'"), "26667");
    EXPECT_EQ(db.Run("SELECT count(*) FROM (SELECT a FROM t ORDER BY c DESC)"), "80000");
    db.Run("VACUUM");
    EXPECT_EQ(db.Run("PRAGMA integrity_check"), "ok");
    EXPECT_EQ(db.Run("SELECT sum(length(c)) FROM t"), "8026667");
  }
  nram_stats stats;
  stats.size = sizeof(stats);
  ASSERT_EQ(nram_get_stats(heap, &stats), 0);
  EXPECT_LE(stats.resident_bytes, stats.budget_bytes);
  EXPECT_GT(stats.written_bytes, stats.budget_bytes) << "it has not been larger than the budget";
  ASSERT_EQ(sqlite3_shutdown(), SQLITE_OK);
  EXPECT_EQ(nram_close(heap), 0) << nram_error();
}

}  // namespace
}  // namespace nram
