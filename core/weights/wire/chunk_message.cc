#include "core/weights/wire/chunk_message.h"

#include <google/protobuf/wire_format_lite.h>

#include <algorithm>
#include <cstring>
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

bool ChunkReader::Next(int64_t element_bytes, const char** elements, int64_t* count) {
  while (true) {
    if (piece_bytes_ == 0) {
      const void* piece = nullptr;
      int size = 0;
      if (left_ == 0 || !coded_.GetDirectBufferPointer(&piece, &size)) return false;
      piece_ = static_cast<const char*>(piece);
      piece_bytes_ = std::min<int64_t>(size, left_);
      coded_.Skip(static_cast<int>(piece_bytes_));
      left_ -= piece_bytes_;
    }
    if (divided_bytes_ == 0 && piece_bytes_ >= element_bytes) {
      *elements = piece_;
      *count = piece_bytes_ / element_bytes;
      piece_ += *count * element_bytes;
      piece_bytes_ -= *count * element_bytes;
      return true;
    }
    const int64_t bytes = std::min(element_bytes - divided_bytes_, piece_bytes_);
    std::memcpy(divided_ + divided_bytes_, piece_, bytes);
    piece_ += bytes;
    piece_bytes_ -= bytes;
    divided_bytes_ += bytes;
    if (divided_bytes_ < element_bytes) continue;
    divided_bytes_ = 0;
    *elements = divided_;
    *count = 1;
    return true;
  }
}

}  // namespace quartet
