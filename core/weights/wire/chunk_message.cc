#include "core/weights/wire/chunk_message.h"

#include <google/protobuf/wire_format_lite.h>

#include <algorithm>
#include <limits>
#include <string>

namespace quartet {
namespace {

using google::protobuf::internal::WireFormatLite;
using google::protobuf::io::CodedOutputStream;

constexpr uint32_t TagOf(int field) {
  return WireFormatLite::MakeTag(field, WireFormatLite::WIRETYPE_LENGTH_DELIMITED);
}

}  // namespace

grpc::ByteBuffer MakeChunkMessage(const TensorRange& range, const std::vector<grpc::Slice>& data) {
  size_t bytes = 0;
  for (const grpc::Slice& slice : data) bytes += slice.size();
  std::string head;
  {
    google::protobuf::io::StringOutputStream stream(&head);
    CodedOutputStream coded(&stream);
    const std::string encoded = range.SerializeAsString();
    coded.WriteTag(TagOf(WeightChunk::kRangeFieldNumber));
    coded.WriteVarint32(static_cast<uint32_t>(encoded.size()));
    coded.WriteString(encoded);
    coded.WriteTag(TagOf(WeightChunk::kDataFieldNumber));
    coded.WriteVarint32(static_cast<uint32_t>(bytes));
  }
  std::vector<grpc::Slice> slices = {grpc::Slice(head)};
  slices.insert(slices.end(), data.begin(), data.end());
  return grpc::ByteBuffer(slices.data(), slices.size());
}

bool ChunkReader::ReadHead(TensorRange* range, int64_t* bytes) {
  uint32_t size = 0;
  if (coded_.ReadTag() != TagOf(WeightChunk::kRangeFieldNumber) || !coded_.ReadVarint32(&size) ||
      size > std::numeric_limits<int>::max()) {
    return false;
  }
  const auto limit = coded_.PushLimit(static_cast<int>(size));
  if (!range->ParseFromCodedStream(&coded_) || !coded_.ConsumedEntireMessage()) return false;
  coded_.PopLimit(limit);
  if (coded_.ReadTag() != TagOf(WeightChunk::kDataFieldNumber) || !coded_.ReadVarint32(&size)) return false;
  *bytes = left_ = size;
  return true;
}

bool ChunkReader::Next(const char** data, int64_t* bytes) {
  const void* piece = nullptr;
  int size = 0;
  if (left_ == 0 || !coded_.GetDirectBufferPointer(&piece, &size)) return false;
  size = static_cast<int>(std::min<int64_t>(size, left_));
  coded_.Skip(size);
  *data = static_cast<const char*>(piece);
  *bytes = size;
  left_ -= size;
  return true;
}

}  // namespace quartet
