#include "core/data/parquet.h"

#include <arrow/array.h>
#include <arrow/extension_type.h>
#include <arrow/io/file.h>
#include <arrow/record_batch.h>
#include <arrow/scalar.h>
#include <arrow/type.h>
#include <parquet/arrow/reader.h>
#include <parquet/arrow/schema.h>
#include <parquet/exception.h>
#include <parquet/metadata.h>
#include <parquet/properties.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <new>
#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/files/input_file.h"
#include "core/base/status_macros.h"
#include "core/errors/shown.h"

namespace quartet {
namespace {

// Rows that are decoded at once, and bytes of a column that are read at once.
constexpr int64_t kBatchRows = 256;
constexpr int64_t kBufferBytes = int64_t{1} << 20;

void AppendText(std::string_view text, std::string* out) {
  constexpr char kHex[] = "0123456789abcdef";
  out->push_back('"');
  for (const char c : text) {
    if (c == '"' || c == '\\') {
      out->push_back('\\');
      out->push_back(c);
    } else if (c == '\n') {
      out->append("\\n");
    } else if (static_cast<unsigned char>(c) < 0x20) {
      out->append("\\u00");
      out->push_back(kHex[c >> 4]);
      out->push_back(kHex[c & 15]);
    } else {
      out->push_back(c);
    }
  }
  out->push_back('"');
}

// The fewest digits that read back as the value, a float's being fewer than a double's, and as Python writes it: with a
// point, so that a label of a column of reals reads the same from JSONL.
template <typename RealArray>
arrow::Status AppendReal(const arrow::Array& array, int64_t i, std::string* out) {
  const auto value = static_cast<const RealArray&>(array).Value(i);
  if (!std::isfinite(value)) {
    out->append("null");
    return arrow::Status::OK();
  }
  char text[32];
  const auto end = std::to_chars(text, text + sizeof(text), value);
  const std::string_view written(text, end.ptr - text);
  out->append(written);
  if (written.find_first_of(".e") == std::string_view::npos) out->append(".0");
  return arrow::Status::OK();
}

arrow::Status Append(const arrow::Array& array, int64_t i, std::string* out);

arrow::Status AppendItems(const arrow::Array& items, int64_t begin, int64_t end, std::string* out) {
  out->push_back('[');
  for (int64_t i = begin; i < end; ++i) {
    if (i > begin) out->push_back(',');
    ARROW_RETURN_NOT_OK(Append(items, i, out));
  }
  out->push_back(']');
  return arrow::Status::OK();
}

template <typename ListArray>
arrow::Status AppendList(const arrow::Array& array, int64_t i, std::string* out) {
  const auto& list = static_cast<const ListArray&>(array);
  return AppendItems(*list.values(), list.value_offset(i), list.value_offset(i) + list.value_length(i), out);
}

arrow::Status AppendStruct(const arrow::StructArray& array, int64_t i, std::string* out) {
  out->push_back('{');
  for (int f = 0; f < array.num_fields(); ++f) {
    if (f > 0) out->push_back(',');
    AppendText(array.struct_type()->field(f)->name(), out);
    out->push_back(':');
    ARROW_RETURN_NOT_OK(Append(*array.field(f), i, out));
  }
  out->push_back('}');
  return arrow::Status::OK();
}

arrow::Status AppendMap(const arrow::MapArray& map, int64_t i, std::string* out) {
  const int64_t begin = map.value_offset(i), end = begin + map.value_length(i);
  const bool texts = map.keys()->type_id() == arrow::Type::STRING;
  out->push_back(texts ? '{' : '[');
  for (int64_t at = begin; at < end; ++at) {
    if (at > begin) out->push_back(',');
    if (!texts) out->append("{\"key\":");
    ARROW_RETURN_NOT_OK(Append(*map.keys(), at, out));
    out->append(texts ? ":" : ",\"value\":");
    ARROW_RETURN_NOT_OK(Append(*map.items(), at, out));
    if (!texts) out->push_back('}');
  }
  out->push_back(texts ? '}' : ']');
  return arrow::Status::OK();
}

template <typename NumberArray>
arrow::Status AppendNumber(const arrow::Array& array, int64_t i, std::string* out) {
  absl::StrAppend(out, static_cast<const NumberArray&>(array).Value(i));
  return arrow::Status::OK();
}

template <typename TextArray>
arrow::Status AppendString(const arrow::Array& array, int64_t i, std::string* out) {
  AppendText(static_cast<const TextArray&>(array).GetView(i), out);
  return arrow::Status::OK();
}

// The value number `i` of the array.
arrow::Status Append(const arrow::Array& array, int64_t i, std::string* out) {
  if (array.IsNull(i)) {
    out->append("null");
    return arrow::Status::OK();
  }
  switch (array.type_id()) {
    case arrow::Type::BOOL:
      out->append(static_cast<const arrow::BooleanArray&>(array).Value(i) ? "true" : "false");
      return arrow::Status::OK();
    case arrow::Type::INT8:
      absl::StrAppend(out, int{static_cast<const arrow::Int8Array&>(array).Value(i)});
      return arrow::Status::OK();
    case arrow::Type::UINT8:
      absl::StrAppend(out, int{static_cast<const arrow::UInt8Array&>(array).Value(i)});
      return arrow::Status::OK();
    case arrow::Type::INT16:
      return AppendNumber<arrow::Int16Array>(array, i, out);
    case arrow::Type::UINT16:
      return AppendNumber<arrow::UInt16Array>(array, i, out);
    case arrow::Type::INT32:
      return AppendNumber<arrow::Int32Array>(array, i, out);
    case arrow::Type::UINT32:
      return AppendNumber<arrow::UInt32Array>(array, i, out);
    case arrow::Type::INT64:
      return AppendNumber<arrow::Int64Array>(array, i, out);
    case arrow::Type::UINT64:
      return AppendNumber<arrow::UInt64Array>(array, i, out);
    case arrow::Type::FLOAT:
      return AppendReal<arrow::FloatArray>(array, i, out);
    case arrow::Type::DOUBLE:
      return AppendReal<arrow::DoubleArray>(array, i, out);
    case arrow::Type::STRING:
      return AppendString<arrow::StringArray>(array, i, out);
    case arrow::Type::LARGE_STRING:
      return AppendString<arrow::LargeStringArray>(array, i, out);
    case arrow::Type::STRING_VIEW:
      return AppendString<arrow::StringViewArray>(array, i, out);
    // Writers that know no texts; what is none is found where the row is read.
    case arrow::Type::BINARY:
      return AppendString<arrow::BinaryArray>(array, i, out);
    case arrow::Type::LARGE_BINARY:
      return AppendString<arrow::LargeBinaryArray>(array, i, out);
    case arrow::Type::LIST:
      return AppendList<arrow::ListArray>(array, i, out);
    case arrow::Type::LARGE_LIST:
      return AppendList<arrow::LargeListArray>(array, i, out);
    case arrow::Type::FIXED_SIZE_LIST:
      return AppendList<arrow::FixedSizeListArray>(array, i, out);
    case arrow::Type::STRUCT:
      return AppendStruct(static_cast<const arrow::StructArray&>(array), i, out);
    case arrow::Type::MAP:
      return AppendMap(static_cast<const arrow::MapArray&>(array), i, out);
    case arrow::Type::DICTIONARY: {
      const auto& coded = static_cast<const arrow::DictionaryArray&>(array);
      return Append(*coded.dictionary(), coded.GetValueIndex(i), out);
    }
    case arrow::Type::EXTENSION:
      return Append(*static_cast<const arrow::ExtensionArray&>(array).storage(), i, out);
    case arrow::Type::DATE32:
    case arrow::Type::DATE64:
    case arrow::Type::TIME32:
    case arrow::Type::TIME64:
    case arrow::Type::TIMESTAMP:
    case arrow::Type::DURATION:
    case arrow::Type::DECIMAL32:
    case arrow::Type::DECIMAL64:
    case arrow::Type::DECIMAL128:
    case arrow::Type::DECIMAL256: {
      ARROW_ASSIGN_OR_RAISE(const std::shared_ptr<arrow::Scalar> scalar, array.GetScalar(i));
      AppendText(scalar->ToString(), out);
      return arrow::Status::OK();
    }
    default:
      return arrow::Status::Invalid("values of type ", array.type()->ToString(), " are not read");
  }
}

// What Arrow says of a file that it cannot read.
std::string Damaged(std::string_view reason) { return absl::StrCat("is damaged (", ShownOnOneLine(reason), ")"); }
std::string Damaged(const std::exception& error) {
  // Sizes that are read from the file are what memory is asked for.
  if (dynamic_cast<const std::bad_alloc*>(&error) != nullptr) return "is damaged, or its rows do not fit into memory";
  return Damaged(error.what());
}

// The rows of all row groups, or that the footer does not add up.
absl::Status CheckRows(const parquet::FileMetaData& footer) {
  int64_t rows = 0;
  for (int g = 0; g < footer.num_row_groups(); ++g) {
    const int64_t own = footer.RowGroup(g)->num_rows();
    if (own < 0 || __builtin_add_overflow(rows, own, &rows)) {
      return absl::InvalidArgumentError(absl::StrCat("row group ", g, " has ", own, " rows by its footer"));
    }
  }
  if (rows == footer.num_rows()) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("its footer tells of ", footer.num_rows(), " rows, and of ", rows, " in its row groups"));
}

class ArrowReader : public ParquetReader {
 public:
  ArrowReader(std::string path, std::unique_ptr<parquet::arrow::FileReader> file)
      : path_(std::move(path)), file_(std::move(file)) {
    const auto& schema = *file_->parquet_reader()->metadata()->schema()->group_node();
    for (int i = 0; i < schema.field_count(); ++i) columns_.push_back(schema.field(i)->name());
  }

  int64_t rows() const override { return file_->parquet_reader()->metadata()->num_rows(); }
  const std::vector<std::string>& columns() const override { return columns_; }

  absl::Status Read(const std::vector<std::string>& names, int64_t count,
                    const std::function<absl::Status(std::string_view row)>& take) override {
    try {
      return ReadRows(names, count, take);
    } catch (const std::exception& e) {
      return Error(Damaged(e));
    }
  }

 private:
  absl::Status Error(std::string_view what) const {
    return absl::InvalidArgumentError(absl::StrCat(path_, ": ", std::string(what)));
  }
  absl::Status Converted(const arrow::Status& status) const {
    return status.ok() ? absl::OkStatus() : Error(Damaged(status.message()));
  }

  absl::Status ReadRows(const std::vector<std::string>& names, int64_t count,
                        const std::function<absl::Status(std::string_view row)>& take) {
    // The file's leaves that lie in the asked-for columns.
    const parquet::SchemaDescriptor& schema = *file_->parquet_reader()->metadata()->schema();
    std::vector<int> leaves;
    for (int leaf = 0; leaf < schema.num_columns(); ++leaf) {
      const std::string& column = schema.GetColumnRoot(leaf)->name();
      if (std::find(names.begin(), names.end(), column) != names.end()) leaves.push_back(leaf);
    }
    std::vector<int> groups(file_->num_row_groups());
    std::iota(groups.begin(), groups.end(), 0);
    auto batches = file_->GetRecordBatchReader(groups, leaves);
    QUARTET_RETURN_IF_ERROR(Converted(batches.status()));
    std::string row;
    const int64_t asked = std::min(count, rows());
    count = asked;
    while (count > 0) {
      std::shared_ptr<arrow::RecordBatch> batch;
      QUARTET_RETURN_IF_ERROR(Converted((*batches)->ReadNext(&batch)));
      if (batch == nullptr) {
        return Error(absl::StrCat("is damaged: its columns end after ", asked - count, " of ", rows(), " rows"));
      }
      // Lengths and offsets of a damaged file are not to be trusted.
      QUARTET_RETURN_IF_ERROR(Converted(batch->Validate()));
      for (int64_t i = 0; i < batch->num_rows() && count > 0; ++i, --count) {
        row.assign(1, '{');
        for (int c = 0; c < batch->num_columns(); ++c) {
          if (c > 0) row.push_back(',');
          AppendText(batch->column_name(c), &row);
          row.push_back(':');
          if (const arrow::Status status = Append(*batch->column(c), i, &row); !status.ok()) {
            return Error(
                absl::StrCat("column ", Quoted(batch->column_name(c)), ": ", ShownOnOneLine(status.message())));
          }
        }
        row.push_back('}');
        QUARTET_RETURN_IF_ERROR(take(row));
      }
    }
    return absl::OkStatus();
  }

  const std::string path_;
  const std::unique_ptr<parquet::arrow::FileReader> file_;
  std::vector<std::string> columns_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<ParquetReader>> ParquetReader::Open(const std::string& path) {
  QUARTET_ASSIGN_OR_RETURN(InputFile opened, InputFile::Open(path));
  try {
    auto input = arrow::io::ReadableFile::Open(opened.Release());  // closes it
    if (!input.ok()) return absl::UnavailableError(absl::StrCat(path, ": ", ShownOnOneLine(input.status().message())));
    // Column chunks are read a buffer at a time, not whole.
    parquet::ReaderProperties properties;
    properties.enable_buffered_stream();
    properties.set_buffer_size(kBufferBytes);
    parquet::ArrowReaderProperties arrow_properties;
    arrow_properties.set_batch_size(kBatchRows);
    arrow_properties.set_pre_buffer(false);
    arrow_properties.set_use_threads(false);
    parquet::arrow::FileReaderBuilder builder;
    std::unique_ptr<parquet::arrow::FileReader> file;
    arrow::Status status = builder.Open(*std::move(input), properties);
    if (status.ok()) status = builder.properties(arrow_properties)->Build(&file);
    if (!status.ok()) {
      return absl::InvalidArgumentError(absl::StrCat(path, ": is no Parquet file, or ", Damaged(status.message())));
    }
    if (absl::Status wrong = CheckRows(*file->parquet_reader()->metadata()); !wrong.ok()) {
      return Prefixed(absl::StrCat(path, ": is damaged"), wrong);
    }
    return std::make_unique<ArrowReader>(path, std::move(file));
  } catch (const std::exception& e) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": is no Parquet file, or ", Damaged(e)));
  }
}

}  // namespace quartet
