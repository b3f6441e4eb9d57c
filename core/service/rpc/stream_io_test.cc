#include "core/service/rpc/stream_io.h"

#include <gtest/gtest.h>

#include "core/service/rpc/status_conversion.h"
#include "proto/scorer.pb.h"

namespace quartet {
namespace {

// A client's stream, as a list.
class Messages {
 public:
  Messages& Header(uint64_t num_items) {
    ScoreRequest request;
    request.mutable_header()->set_num_items(num_items);
    requests_.push_back(request);
    return *this;
  }
  Messages& Item(const std::string& label) {
    ScoreRequest request;
    request.mutable_item()->set_label(label);
    requests_.push_back(request);
    return *this;
  }
  Messages& Empty() {
    requests_.emplace_back();
    return *this;
  }
  bool Read(ScoreRequest* request) {
    if (next_ == requests_.size()) return false;
    *request = requests_[next_++];
    return true;
  }

 private:
  std::vector<ScoreRequest> requests_;
  size_t next_ = 0;
};

absl::Status Read(Messages messages) {
  BatchLimits limits("services.scorer");
  return ReadBatch<ScoreRequest>(&messages, &limits).status();
}

TEST(StreamIo, ReadsAHeaderAndItsItems) {
  Messages messages = Messages().Header(2).Item("a").Item("b");
  BatchLimits limits("services.scorer");
  const auto batch = ReadBatch<ScoreRequest>(&messages, &limits);
  ASSERT_TRUE(batch.ok()) << batch.status();
  EXPECT_EQ(batch->header.num_items(), 2);
  ASSERT_EQ(batch->items.size(), 2);
  EXPECT_EQ(batch->items[0].label(), "a");
  EXPECT_EQ(batch->items[1].label(), "b");
  EXPECT_TRUE(Read(Messages().Header(0)).ok());
}

TEST(StreamIo, RefusesStreamsOfAnotherShape) {
  for (const Messages& bad : {Messages(), Messages().Item("a"), Messages().Header(1), Messages().Header(1).Header(1),
                              Messages().Header(1).Item("a").Item("b"), Messages().Header(1).Empty(),
                              Messages().Empty(), Messages().Header(uint64_t{1} << 60).Item("a")}) {
    EXPECT_EQ(Read(bad).code(), absl::StatusCode::kInvalidArgument);
  }
}

// So many items come as are asked for.
class Endless {
 public:
  explicit Endless(uint64_t num_items) : num_items_(num_items) {}
  bool Read(ScoreRequest* request) {
    if (read_++ == 0) {
      request->mutable_header()->set_num_items(num_items_);
    } else {
      request->mutable_item()->set_label(std::string(1000, 'x'));
    }
    return true;
  }
  int64_t read() const { return read_; }

 private:
  const uint64_t num_items_;
  int64_t read_ = 0;
};

TEST(StreamIo, RefusesMoreItemsThanACallMayHaveBeforeTheyCome) {
  BatchLimits limits("services.scorer", 10, 1 << 20, 1 << 20);
  Endless stream(11);
  const absl::Status status = ReadBatch<ScoreRequest>(&stream, &limits).status();
  EXPECT_EQ(status,
            absl::InvalidArgumentError("header.num_items is 11; allowed: at most services.scorer.max_call_items = 10"));
  EXPECT_EQ(stream.read(), 1);
  Messages messages = Messages().Header(10);
  for (int i = 0; i < 10; ++i) messages.Item("a");
  EXPECT_TRUE(ReadBatch<ScoreRequest>(&messages, &limits).ok());
}

TEST(StreamIo, EndsACallThatTakesTooMuchMemoryAsItComes) {
  BatchLimits limits("services.scorer", int64_t{1} << 40, 100'000, 100'000);
  Endless stream(uint64_t{1} << 40);
  const absl::Status status = ReadBatch<ScoreRequest>(&stream, &limits).status();
  EXPECT_EQ(status, absl::InvalidArgumentError(
                        "the call's items take more than services.scorer.max_call_bytes = 100000 bytes of memory"));
  EXPECT_LE(stream.read(), 101);
  EXPECT_GT(stream.read(), 50);
  Messages next = Messages().Header(1).Item(std::string(60'000, 'x'));
  EXPECT_TRUE(ReadBatch<ScoreRequest>(&next, &limits).ok()) << "what it took is free again";
}

TEST(StreamIo, RefusesForTheMomentWhatAllCallsTogetherMayNotTake) {
  BatchLimits limits("services.scorer", 1000, 100'000, 100'000);
  Messages messages = Messages().Header(1).Item(std::string(60'000, 'x'));
  Messages again = messages;
  Messages small = Messages().Header(1).Item("a");
  {
    const auto first = ReadBatch<ScoreRequest>(&messages, &limits);
    ASSERT_TRUE(first.ok()) << first.status();
    Messages second = again;
    EXPECT_EQ(ReadBatch<ScoreRequest>(&second, &limits).status(),
              absl::ResourceExhaustedError("the items of all calls take services.scorer.max_calls_bytes = 100000 bytes "
                                           "of memory; try again later"));
    EXPECT_TRUE(ReadBatch<ScoreRequest>(&small, &limits).ok());
  }
  EXPECT_TRUE(ReadBatch<ScoreRequest>(&again, &limits).ok());
}

TEST(StatusConversion, KeepsCodesAndMessages) {
  for (int code = 0; code <= 16; ++code) {
    const absl::Status status(static_cast<absl::StatusCode>(code), code == 0 ? "" : "why");
    EXPECT_EQ(FromGrpc(ToGrpc(status)), status);
  }
  EXPECT_EQ(ToGrpc(absl::NotFoundError("x")).error_code(), grpc::StatusCode::NOT_FOUND);
}

}  // namespace
}  // namespace quartet
