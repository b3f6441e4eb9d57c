#include "core/gguf/reader.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <bit>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <limits>
#include <string_view>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "core/base/status_macros.h"
#include "core/hardware/bf16.h"

namespace quartet {
namespace {

static_assert(std::endian::native == std::endian::little);

constexpr uint64_t kMostDimensions = 4;

struct TypeShape {
  int64_t block = 0;  // elements
  int64_t bytes = 0;  // of a block
};

// Nothing for a type that cannot be read.
TypeShape ShapeOf(GgufType type) {
  switch (type) {
    case GgufType::kF32:
      return {1, 4};
    case GgufType::kF16:
    case GgufType::kBF16:
      return {1, 2};
    case GgufType::kQ4_1:
      return {32, 20};
    case GgufType::kQ8_0:
      return {32, 34};
  }
  return {};
}

template <typename Number>
Number Load(const char* from) {
  Number number;
  std::memcpy(&number, from, sizeof(number));
  return number;
}

// All of fp16 is exact in fp32.
float FromF16(const char* from) {
  const auto bits = Load<uint16_t>(from);
  const float sign = (bits & 0x8000) != 0 ? -1.0f : 1.0f;
  const int exponent = (bits >> 10) & 31, fraction = bits & 0x3FF;
  if (exponent == 31) {
    return fraction == 0 ? sign * std::numeric_limits<float>::infinity() : std::numeric_limits<float>::quiet_NaN();
  }
  if (exponent == 0) return sign * std::ldexp(static_cast<float>(fraction), -24);
  return sign * std::ldexp(static_cast<float>(fraction + 1024), exponent - 25);
}

}  // namespace

int64_t GgufTensor::numel() const {
  int64_t numel = 1;
  for (const int64_t size : shape) numel *= size;
  return numel;
}

// Reads from the front of the file, to its end at most.
class GgufFile::Cursor {
 public:
  Cursor(const char* data, size_t size) : data_(data), size_(size) {}
  size_t at() const { return at_; }
  size_t left() const { return size_ - at_; }

  template <typename Number>
  bool Read(Number* number) {
    if (left() < sizeof(Number)) return false;
    *number = Load<Number>(data_ + at_);
    at_ += sizeof(Number);
    return true;
  }
  bool Read(std::string* text) {
    uint64_t size = 0;
    if (!Read(&size) || size > left()) return false;
    text->assign(data_ + at_, size);
    at_ += size;
    return true;
  }
  // A number of the format's `type` (0 to 12 but for texts and arrays: widths of 1 to 8), as int64_t or double.
  template <typename Wide>
  bool ReadAs(uint32_t type, Wide* wide) {
    switch (type) {
      case 0:
      case 7:  // bool
        return Narrow<uint8_t>(wide);
      case 1:
        return Narrow<int8_t>(wide);
      case 2:
        return Narrow<uint16_t>(wide);
      case 3:
        return Narrow<int16_t>(wide);
      case 4:
        return Narrow<uint32_t>(wide);
      case 5:
        return Narrow<int32_t>(wide);
      case 6:
        return Narrow<float>(wide);
      case 10:
        return Narrow<uint64_t>(wide);
      case 11:
        return Narrow<int64_t>(wide);
      case 12:
        return Narrow<double>(wide);
      default:
        return false;
    }
  }

 private:
  template <typename Number, typename Wide>
  bool Narrow(Wide* wide) {
    Number number = 0;
    if (!Read(&number)) return false;
    *wide = static_cast<Wide>(+number);  // a signed char is a number here
    return true;
  }

  const char* const data_;
  const size_t size_;
  size_t at_ = 0;
};

absl::Status GgufFile::Error(const std::string& what) const {
  return absl::InvalidArgumentError(absl::StrCat(path_, ": ", what));
}

absl::StatusOr<std::unique_ptr<GgufFile>> GgufFile::Open(const std::string& path) {
  std::unique_ptr<GgufFile> file(new GgufFile(path));
  QUARTET_RETURN_IF_ERROR(file->Map());
  QUARTET_RETURN_IF_ERROR(file->Parse());
  return file;
}

GgufFile::~GgufFile() {
  if (data_ != nullptr) munmap(const_cast<char*>(data_), size_);
}

absl::Status GgufFile::Map() {
  const int fd = open(path_.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return absl::ErrnoToStatus(errno, absl::StrCat("cannot open ", path_));
  const absl::Cleanup close_file = [fd] { close(fd); };
  struct stat info = {};
  if (fstat(fd, &info) != 0) return absl::ErrnoToStatus(errno, absl::StrCat("cannot read ", path_));
  if (info.st_size == 0) return Error("is empty");
  void* data = mmap(nullptr, info.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
  if (data == MAP_FAILED) return absl::ErrnoToStatus(errno, absl::StrCat("cannot map ", path_));
  data_ = static_cast<const char*>(data);
  size_ = static_cast<size_t>(info.st_size);
  return absl::OkStatus();
}

absl::Status GgufFile::Parse() {
  Cursor cursor(data_, size_);
  uint32_t magic = 0, version = 0;
  uint64_t tensors = 0, values = 0;
  if (!cursor.Read(&magic) || magic != Load<uint32_t>("GGUF")) return Error("is no GGUF file");
  if (!cursor.Read(&version) || version < 2 || version > 3) {
    return Error(absl::StrCat("is of GGUF version ", version, "; 2 and 3 can be read"));
  }
  if (!cursor.Read(&tensors) || !cursor.Read(&values)) return Error("ends within its head");
  for (uint64_t i = 0; i < values; ++i) {
    std::string key;
    if (!cursor.Read(&key)) return Error(absl::StrCat("ends within its metadata, at key ", i, " of ", values));
    QUARTET_RETURN_IF_ERROR(ReadValue(cursor, key));
  }
  std::vector<std::pair<std::string, uint64_t>> offsets;
  for (uint64_t i = 0; i < tensors; ++i) {
    std::string name;
    if (!cursor.Read(&name)) return Error(absl::StrCat("ends within its list of tensors, at ", i, " of ", tensors));
    const auto [place, is_new] = tensors_.try_emplace(name);
    if (!is_new) return Error(absl::StrCat("tensor ", absl::CEscape(name), " is listed twice"));
    QUARTET_RETURN_IF_ERROR(ReadTensor(cursor, name, &place->second, &offsets.emplace_back(name, 0).second));
  }
  uint64_t alignment = 32;
  if (Has("general.alignment")) {
    QUARTET_ASSIGN_OR_RETURN(const int64_t said, Integer("general.alignment"));
    if (said < 1 || said > (1 << 20)) return Error(absl::StrCat("general.alignment is ", said));
    alignment = static_cast<uint64_t>(said);
  }
  const uint64_t begin = (cursor.at() + alignment - 1) / alignment * alignment;
  for (const auto& [name, offset] : offsets) {
    GgufTensor& tensor = tensors_.at(name);
    const TypeShape shape = ShapeOf(tensor.type);
    const auto bytes = static_cast<uint64_t>(tensor.numel() / shape.block * shape.bytes);
    if (begin > size_ || offset > size_ - begin || bytes > size_ - begin - offset) {
      return Error(absl::StrCat("ends before the last byte of tensor ", name));
    }
    tensor.data = data_ + begin + offset;
  }
  return absl::OkStatus();
}

absl::Status GgufFile::ReadValue(Cursor& cursor, const std::string& key) {
  constexpr uint32_t kText = 8, kArray = 9;
  const std::string where = absl::StrCat("metadata ", absl::CEscape(key));
  const auto is_real = [](uint32_t type) { return type == 6 || type == 12; };
  uint32_t type = 0;
  if (!cursor.Read(&type)) return Error(absl::StrCat("ends within ", where));
  bool ok = true;
  Value value;
  if (type == kText) {
    ok = cursor.Read(&value.emplace<std::string>());
  } else if (type != kArray) {
    ok = is_real(type) ? cursor.ReadAs(type, &value.emplace<double>()) : cursor.ReadAs(type, &value.emplace<int64_t>());
  } else {
    uint32_t of = 0;
    uint64_t count = 0;
    // Each element takes a byte at least: no list is longer than the rest of the file.
    if (!cursor.Read(&of) || !cursor.Read(&count) || count > cursor.left()) {
      return Error(absl::StrCat("ends within ", where));
    }
    const auto read = [&](auto* list, const auto& one) {
      for (uint64_t i = 0; ok && i < count; ++i) ok = one(&list->emplace_back());
    };
    if (of == kText) {
      read(&value.emplace<std::vector<std::string>>(), [&](std::string* text) { return cursor.Read(text); });
    } else if (is_real(of)) {
      read(&value.emplace<std::vector<double>>(), [&](double* number) { return cursor.ReadAs(of, number); });
    } else {
      read(&value.emplace<std::vector<int64_t>>(), [&](int64_t* number) { return cursor.ReadAs(of, number); });
    }
  }
  if (!ok) return Error(absl::StrCat("ends within ", where, ", or it is of a type that cannot be read"));
  if (!values_.emplace(key, std::move(value)).second) return Error(absl::StrCat(where, " is there twice"));
  return absl::OkStatus();
}

absl::Status GgufFile::ReadTensor(Cursor& cursor, const std::string& name, GgufTensor* tensor, uint64_t* offset) {
  const std::string where = absl::StrCat("tensor ", absl::CEscape(name));
  uint32_t dimensions = 0, type = 0;
  if (!cursor.Read(&dimensions) || dimensions < 1 || dimensions > kMostDimensions) {
    return Error(absl::StrCat(where, " has ", dimensions, " dimensions; 1 to ", kMostDimensions, " can be read"));
  }
  tensor->shape.resize(dimensions);
  uint64_t numel = 1;
  for (uint32_t d = 0; d < dimensions; ++d) {
    uint64_t size = 0;
    if (!cursor.Read(&size)) return Error(absl::StrCat("ends within ", where));
    // No element takes less than half a byte.
    if (size < 1 || size > 2 * size_ / numel) return Error(absl::StrCat(where, " is larger than the file"));
    numel *= size;
    tensor->shape[dimensions - 1 - d] = static_cast<int64_t>(size);
  }
  if (!cursor.Read(&type) || !cursor.Read(offset)) return Error(absl::StrCat("ends within ", where));
  tensor->type = static_cast<GgufType>(type);
  const TypeShape shape = ShapeOf(tensor->type);
  if (shape.block == 0) {
    return Error(absl::StrCat(where, " is of type ", type,
                              "; F32 (0), F16 (1), Q4_1 (3), Q8_0 (8) and BF16 (30) can be ", "read"));
  }
  if (tensor->shape.back() % shape.block != 0) {
    return Error(absl::StrCat(where, " has rows of ", tensor->shape.back(),
                              " elements, which its type has in blocks of ", shape.block));
  }
  return absl::OkStatus();
}

template <typename Wanted>
absl::StatusOr<Wanted> GgufFile::Get(const std::string& key, const char* wanted) const {
  const auto found = values_.find(key);
  if (found == values_.end()) return Error(absl::StrCat("has no metadata ", key));
  if (const auto* value = std::get_if<Wanted>(&found->second)) return *value;
  return Error(absl::StrCat("metadata ", key, " is not ", wanted));
}

absl::StatusOr<int64_t> GgufFile::Integer(const std::string& key) const { return Get<int64_t>(key, "a whole number"); }
absl::StatusOr<double> GgufFile::Real(const std::string& key) const { return Get<double>(key, "a real number"); }
absl::StatusOr<std::string> GgufFile::Text(const std::string& key) const { return Get<std::string>(key, "a text"); }
absl::StatusOr<std::vector<std::string>> GgufFile::Texts(const std::string& key) const {
  return Get<std::vector<std::string>>(key, "a list of texts");
}
absl::StatusOr<std::vector<int64_t>> GgufFile::Integers(const std::string& key) const {
  return Get<std::vector<int64_t>>(key, "a list of whole numbers");
}

std::vector<float> Dequantise(const GgufTensor& tensor) {
  const TypeShape shape = ShapeOf(tensor.type);
  std::vector<float> out(tensor.numel());
  float* to = out.data();
  const char* from = tensor.data;
  for (float* const end = to + out.size(); to != end; to += shape.block, from += shape.bytes) {
    switch (tensor.type) {
      case GgufType::kF32:
        *to = Load<float>(from);
        break;
      case GgufType::kF16:
        *to = FromF16(from);
        break;
      case GgufType::kBF16:
        *to = FromBf16(Load<uint16_t>(from));
        break;
      case GgufType::kQ8_0: {
        const float scale = FromF16(from);
        for (int i = 0; i < 32; ++i) to[i] = scale * static_cast<float>(static_cast<int8_t>(from[2 + i]));
        break;
      }
      case GgufType::kQ4_1: {
        const float scale = FromF16(from), least = FromF16(from + 2);
        for (int i = 0; i < 16; ++i) {
          const auto both = static_cast<unsigned char>(from[4 + i]);
          // Rounded twice, as numpy does it: -ffp-contract=off.
          to[i] = scale * static_cast<float>(both & 15) + least;
          to[i + 16] = scale * static_cast<float>(both >> 4) + least;
        }
        break;
      }
    }
  }
  return out;
}

}  // namespace quartet
