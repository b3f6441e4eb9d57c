// A WeightChunk (proto/weights.proto) as gRPC's buffers hold it: elements are sent from where they lie, and read where
// they have arrived. gRPC's own messages of bytes are copied twice on their way out and once on their way in.
#pragma once

#include <google/protobuf/io/coded_stream.h>
#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/proto_buffer_reader.h>
#include <grpcpp/support/slice.h>

#include <cstdint>
#include <vector>

#include "proto/weights.pb.h"

namespace quartet {

// The chunk of `range` whose data is `data`, end to end.
grpc::ByteBuffer MakeChunkMessage(const TensorRange& range, const std::vector<grpc::Slice>& data);

// Reads one, once. `message` outlives it.
class ChunkReader {
 public:
  explicit ChunkReader(grpc::ByteBuffer* message) : buffers_(message), coded_(&buffers_) {}

  // False where the message is no chunk. `bytes` is what it says that its data has.
  bool ReadHead(TensorRange* range, int64_t* bytes);
  // After that: the next elements, of so many bytes each (at most 8), where they lie until the next call. False at the
  // end of the data, or of a message that is cut short.
  bool Next(int64_t element_bytes, const char** elements, int64_t* count);

 private:
  grpc::ProtoBufferReader buffers_;
  google::protobuf::io::CodedInputStream coded_;
  int64_t left_ = 0;             // bytes of data, behind the present piece of the message
  const char* piece_ = nullptr;  // what is not read yet of it
  int64_t piece_bytes_ = 0;
  char divided_[8] = {};  // the first bytes of an element that two pieces have
  int64_t divided_bytes_ = 0;
};

}  // namespace quartet
