#include "core/weights/wire/chunk_message.h"

#include <grpcpp/impl/codegen/proto_utils.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>

namespace quartet {
namespace {

TensorRange SomeRange() {
  TensorRange range;
  range.set_tensor(300);
  range.set_begin(int64_t{1} << 40);
  range.set_count(7);
  return range;
}

std::string DataOf(ChunkReader& reader, int64_t element_bytes = 1) {
  std::string data;
  const char* elements = nullptr;
  int64_t count = 0;
  while (reader.Next(element_bytes, &elements, &count))
    data.append(elements, static_cast<size_t>(count * element_bytes));
  return data;
}

grpc::ByteBuffer Pieces(const std::string& bytes, size_t length) {
  std::vector<grpc::Slice> slices;
  for (size_t at = 0; at < bytes.size(); at += length) slices.emplace_back(bytes.substr(at, length));
  return grpc::ByteBuffer(slices.data(), slices.size());
}

TEST(ChunkMessage, IsTheMessageThatProtobufReads) {
  const std::string first(70'000, 'a'), second = "bc";
  grpc::ByteBuffer message = MakeChunkMessage(SomeRange(), {grpc::Slice(first), grpc::Slice(second)});
  WeightChunk chunk;
  ASSERT_TRUE(grpc::SerializationTraits<WeightChunk>::Deserialize(&message, &chunk).ok());
  EXPECT_EQ(chunk.range().begin(), SomeRange().begin());
  EXPECT_EQ(chunk.range().tensor(), 300);
  EXPECT_EQ(chunk.data(), first + second);
}

TEST(ChunkMessage, IsReadAsProtobufWritesItHoweverItIsCut) {
  WeightChunk chunk;
  *chunk.mutable_range() = SomeRange();
  for (int i = 0; i < 1000; ++i) chunk.mutable_data()->push_back(static_cast<char>(i));
  for (const int64_t element_bytes : {1, 2, 4, 8}) {
    for (const size_t length : {1, 3, 64, 5000}) {
      grpc::ByteBuffer message = Pieces(chunk.SerializeAsString(), length);
      ChunkReader reader(&message);
      TensorRange range;
      int64_t bytes = 0;
      ASSERT_TRUE(reader.ReadHead(&range, &bytes));
      EXPECT_EQ(range.SerializeAsString(), SomeRange().SerializeAsString());
      EXPECT_EQ(bytes, 1000);
      EXPECT_EQ(DataOf(reader, element_bytes), chunk.data()) << element_bytes << " in pieces of " << length;
    }
  }
}

TEST(ChunkMessage, OfAnotherKindOrCutShortIsNotTakenForOne) {
  WeightChunk chunk;
  *chunk.mutable_range() = SomeRange();
  chunk.set_data("data");
  const std::string whole = chunk.SerializeAsString();
  for (size_t size = 0; size < whole.size(); ++size) {
    grpc::ByteBuffer message = Pieces(whole.substr(0, size), 5000);
    ChunkReader reader(&message);
    TensorRange range;
    int64_t bytes = 0;
    EXPECT_TRUE(!reader.ReadHead(&range, &bytes) || DataOf(reader).size() < static_cast<size_t>(bytes)) << size;
  }
  chunk.clear_range();
  grpc::ByteBuffer message = Pieces(chunk.SerializeAsString(), 5000);
  ChunkReader reader(&message);
  TensorRange range;
  int64_t bytes = 0;
  EXPECT_FALSE(reader.ReadHead(&range, &bytes));
}

TEST(ChunkMessage, KeepsItsElementsUntilItGoes) {
  static int freed = 0;
  static char elements[] = "elements";
  {
    const grpc::ByteBuffer message = MakeChunkMessage(SomeRange(), {grpc::Slice(
                                                                       elements, 8, [](void*) { ++freed; }, nullptr)});
    EXPECT_EQ(freed, 0);
  }
  EXPECT_EQ(freed, 1);
}

}  // namespace
}  // namespace quartet
