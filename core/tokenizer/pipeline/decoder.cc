#include <cctype>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/base/status_macros.h"
#include "core/base/utf8.h"
#include "core/tokenizer/pipeline/byte_alphabet.h"
#include "core/tokenizer/pipeline/metaspace.h"
#include "core/tokenizer/pipeline/pattern.h"
#include "core/tokenizer/pipeline/pipeline.h"
#include "core/tokenizer/pipeline/step.h"

namespace quartet {
namespace {

using nlohmann::json;

// Runs of <0xNN> become the text that their bytes spell, or one U+FFFD a byte.
std::vector<std::string> JoinFallbackBytes(std::vector<std::string> tokens) {
  std::vector<std::string> joined;
  std::string bytes;
  const auto flush = [&] {
    if (bytes.empty()) return;
    if (IsValidUtf8(bytes)) {
      joined.push_back(bytes);
    } else {
      joined.insert(joined.end(), bytes.size(), "\xef\xbf\xbd");
    }
    bytes.clear();
  };
  for (std::string& token : tokens) {
    if (token.size() == 6 && token.compare(0, 3, "<0x") == 0 && token[5] == '>' &&
        std::isxdigit(static_cast<unsigned char>(token[3])) && std::isxdigit(static_cast<unsigned char>(token[4]))) {
      bytes += static_cast<char>(std::strtol(token.substr(3, 2).c_str(), nullptr, 16));
    } else {
      flush();
      joined.push_back(std::move(token));
    }
  }
  flush();
  return joined;
}

absl::StatusOr<TokenDecoder> MakeStrip(const json& step) {
  QUARTET_ASSIGN_OR_RETURN(const std::string content, StepChar(step, "content"));
  size_t limits[2];
  const char* names[2] = {"start", "stop"};
  for (int i = 0; i < 2; ++i) {
    const auto value = step.find(names[i]);
    if (value == step.end() || !value->is_number_unsigned()) {
      return StepError(step, absl::StrCat("\"", names[i], "\" is not a count"));
    }
    limits[i] = value->get<size_t>();
  }
  return TokenDecoder([content, start = limits[0], stop = limits[1]](std::vector<std::string> tokens) {
    const size_t size = content.size();
    for (std::string& token : tokens) {
      size_t begin = 0, end = token.size();
      for (size_t i = 0; i < start && token.compare(begin, size, content) == 0; ++i) begin += size;
      for (size_t i = 0; i < stop && end >= begin + size && token.compare(end - size, size, content) == 0; ++i) {
        end -= size;
      }
      token = token.substr(begin, end - begin);
    }
    return tokens;
  });
}

absl::StatusOr<TokenDecoder> MakeMetaspaceDecoder(const json& step) {
  QUARTET_ASSIGN_OR_RETURN(const std::string replacement, StepChar(step, "replacement"));
  QUARTET_ASSIGN_OR_RETURN(const MetaspacePrepend prepend, ReadMetaspacePrepend(step));
  return TokenDecoder([=](std::vector<std::string> tokens) {
    for (size_t i = 0; i < tokens.size(); ++i) {
      tokens[i] = ReplaceLiteral(tokens[i], replacement, i == 0 && prepend != MetaspacePrepend::kNever ? "" : " ");
    }
    return tokens;
  });
}

absl::StatusOr<TokenDecoder> MakeBpeDecoder(const json& step) {
  QUARTET_ASSIGN_OR_RETURN(const std::string suffix, StepText(step, "suffix"));
  return TokenDecoder([=](std::vector<std::string> tokens) {
    for (size_t i = 0; i < tokens.size(); ++i)
      tokens[i] = ReplaceLiteral(tokens[i], suffix, i + 1 < tokens.size() ? " " : "");
    return tokens;
  });
}

}  // namespace

absl::StatusOr<TokenDecoder> MakeTokenDecoder(const json& step) {
  if (step.is_null()) {
    return TokenDecoder([](std::vector<std::string> tokens) {
      for (size_t i = 1; i < tokens.size(); ++i) tokens[i].insert(0, " ");
      return tokens;
    });
  }
  QUARTET_ASSIGN_OR_RETURN(const std::string type, StepType(step));
  if (type == "Sequence") return Chain<TokenDecoder>(step, "decoders", &MakeTokenDecoder);
  if (type == "ByteLevel") {
    return TokenDecoder([](const std::vector<std::string>& tokens) {
      std::string bytes;
      for (const std::string& token : tokens) bytes += FromByteChars(token);
      return std::vector<std::string>{ReplaceInvalidUtf8(bytes)};
    });
  }
  if (type == "ByteFallback") return TokenDecoder(&JoinFallbackBytes);
  if (type == "Fuse") {
    return TokenDecoder([](const std::vector<std::string>& tokens) {
      std::string joined;
      for (const std::string& token : tokens) joined += token;
      return std::vector<std::string>{joined};
    });
  }
  if (type == "Replace") {
    QUARTET_ASSIGN_OR_RETURN(const Pattern pattern, ReadPattern(step));
    if (!pattern.literal.has_value()) return StepError(step, "a \"Regex\" is not supported in a decoder");
    QUARTET_ASSIGN_OR_RETURN(const std::string content, StepText(step, "content"));
    return TokenDecoder([literal = *pattern.literal, content](std::vector<std::string> tokens) {
      for (std::string& token : tokens) token = ReplaceLiteral(token, literal, content);
      return tokens;
    });
  }
  if (type == "Strip") return MakeStrip(step);
  if (type == "Metaspace") return MakeMetaspaceDecoder(step);
  if (type == "BPEDecoder") return MakeBpeDecoder(step);
  return StepNotSupported(type);
}

}  // namespace quartet
