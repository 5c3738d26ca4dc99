// The client against a memory server whose lists do not end, are out of order or too long. The client returns an error
// that says so, and takes no more memory than a list may have.

#include <functional>
#include <string>

#include "base/clock.h"
#include "base/host/host_memory.h"
#include "client/pool/pool.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/util/lying_server.h"

namespace nram {
namespace {

using ::testing::HasSubstr;

class LyingListsTest : public ::testing::Test {
 protected:
  LyingServer server_;
};

TEST_F(LyingListsTest, ListsWithoutEndOrOrder) {
  const auto regions = [&](std::function<void(const v1::ListRegionsRequest&, v1::ListRegionsReply*)> lie) {
    server_.Set({.list_regions = [lie](const v1::ListRegionsRequest& request, v1::ListRegionsReply* reply) {
      lie(request, reply);
      return grpc::Status::OK;
    }});
    return ControlClient::Create(server_.endpoint())->ListRegions(false, false, DeadlineAfterMs(60'000)).status();
  };
  EXPECT_TRUE(regions([](const auto& request, auto* reply) {
                reply->add_regions()->set_region_id(request.from_id() + 1);
                if (request.from_id() < 5) reply->set_next_id(request.from_id() + 2);
              }).ok());
  EXPECT_THAT(regions([](const auto&, auto* reply) { reply->set_next_id(5); }).message(), HasSubstr("an endless list"));
  EXPECT_THAT(regions([](const auto&, auto* reply) {
                reply->add_regions()->set_region_id(5);
                reply->set_next_id(5);
              }).message(),
              HasSubstr("an endless list"));
  EXPECT_THAT(regions([](const auto&, auto* reply) {
                reply->add_regions()->set_region_id(5);
                reply->add_regions()->set_region_id(5);
              }).message(),
              HasSubstr("an unordered list"));
  EXPECT_THAT(regions([](const auto& request, auto* reply) {
                auto* const region = reply->add_regions();
                region->set_region_id(request.from_id() + 1);
                region->set_owner_name(std::string(3 << 20, 'x'));
                reply->set_next_id(request.from_id() + 2);
              }).code(),
              absl::StatusCode::kResourceExhausted);
  EXPECT_FALSE(regions([](const auto&, auto* reply) {
                 auto* const region = reply->add_regions();
                 region->set_region_id(1);
                 region->set_name(std::string(8 << 20, 'x'));
               }).ok());
}

TEST_F(LyingListsTest, SpansWithoutEndOrderOrBounds) {
  const auto spans = [&](std::function<void(const v1::ListSpansRequest&, v1::ListSpansReply*)> lie) {
    PoolOptions options;
    server_.Set({.list_spans = [lie](const v1::ListSpansRequest& request, v1::ListSpansReply* reply) {
      lie(request, reply);
      return grpc::Status::OK;
    }});
    options.servers = {server_.endpoint()};
    options.io_timeout_ms = 60'000;
    const auto pool = Pool::Open(options);
    EXPECT_TRUE(pool.ok());
    return (*pool)->AttachRegion("any", AttachMode::kReadOnly).status();
  };
  EXPECT_TRUE(spans([](const auto& request, auto* reply) {
                for (uint64_t i = 0; i < 1000; ++i) reply->add_spans(request.from_span() + i);
                if (request.from_span() < 5000) reply->set_next_span(request.from_span() + 1000);
              }).ok());
  EXPECT_THAT(spans([](const auto&, auto* reply) { reply->add_spans(uint64_t{1} << 42); }).message(),
              HasSubstr("beyond 2^62"));
  EXPECT_THAT(spans([](const auto&, auto* reply) { reply->set_next_span(1); }).message(), HasSubstr("an endless list"));
  EXPECT_THAT(spans([](const auto&, auto* reply) {
                reply->add_spans(2);
                reply->add_spans(1);
              }).message(),
              HasSubstr("an unordered list"));
  const uint64_t before = ReadProcessMemory().resident_bytes;
  const absl::Status far = spans([](const auto& request, auto* reply) {
    for (uint64_t i = 0; i < 10'000; ++i) reply->add_spans(request.from_span() + i * 64);
    reply->set_next_span(request.from_span() + 10'000 * 64);
  });
  EXPECT_THAT(std::string(far.message()), HasSubstr("more spans than this client can track"));
  EXPECT_LT(ReadProcessMemory().resident_bytes, before + kGiB);
}

}  // namespace
}  // namespace nram
