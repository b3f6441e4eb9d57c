#include "core/service/stream_io.h"

#include <gtest/gtest.h>

#include "core/service/status_conversion.h"
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
  std::optional<ScoreHeader> header;
  std::vector<ScoreItem> items;
  return ReadBatch<ScoreRequest>(&messages, &header, &items);
}

TEST(StreamIo, ReadsAHeaderAndItsItems) {
  Messages messages = Messages().Header(2).Item("a").Item("b");
  std::optional<ScoreHeader> header;
  std::vector<ScoreItem> items;
  ASSERT_TRUE(ReadBatch<ScoreRequest>(&messages, &header, &items).ok());
  EXPECT_EQ(header->num_items(), 2);
  ASSERT_EQ(items.size(), 2);
  EXPECT_EQ(items[0].label(), "a");
  EXPECT_EQ(items[1].label(), "b");
  EXPECT_TRUE(Read(Messages().Header(0)).ok());
}

TEST(StreamIo, RefusesStreamsOfAnotherShape) {
  for (const Messages& bad : {Messages(), Messages().Item("a"), Messages().Header(1), Messages().Header(1).Header(1),
                              Messages().Header(1).Item("a").Item("b"), Messages().Header(1).Empty(),
                              Messages().Empty(), Messages().Header(uint64_t{1} << 60).Item("a")}) {
    EXPECT_EQ(Read(bad).code(), absl::StatusCode::kInvalidArgument);
  }
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
