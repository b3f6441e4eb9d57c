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
  // After that: the next bytes of data, where they lie until the message goes; elements may be divided between two
  // pieces. False at the end of the data, or of a message that is cut short.
  bool Next(const char** data, int64_t* bytes);

 private:
  grpc::ProtoBufferReader buffers_;
  google::protobuf::io::CodedInputStream coded_;
  int64_t left_ = 0;
};

}  // namespace quartet
