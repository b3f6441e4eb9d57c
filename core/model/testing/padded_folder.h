// A model folder for a test whose vocabulary has rows that stand for no token.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "core/model/model_config.h"
#include "core/model/testing/edited_folder.h"
#include "core/safetensors/reader.h"
#include "core/safetensors/writer.h"

namespace quartet {

// A copy of `folder` whose embedding and vocabulary head have `more` rows behind those of there, each a copy of row
// `row`: as likely as that token, if they could be drawn.
inline std::string PaddedFolder(const std::string& folder, int64_t more, int64_t row) {
  const int64_t rows = ReadModelConfig(folder)->vocab_size;
  const std::string padded = EditedFolder(folder, {{"vocab_size", rows + more}});
  const auto reader = *CheckpointReader::Open(folder);
  std::vector<SafetensorsWriter::Entry> entries;
  std::vector<std::vector<char>> values;
  for (const auto& [name, info] : reader->tensors()) {
    std::vector<int64_t> shape = info.shape;
    std::vector<char>& bytes = values.emplace_back(info.bytes);
    EXPECT_TRUE(reader->ReadRange(name, 0, info.numel(), bytes.data()).ok());
    if (name == "model.embed_tokens.weight" || name == "lm_head.weight") {
      const std::vector<char> copied(bytes.begin() + row * info.bytes / rows,
                                     bytes.begin() + (row + 1) * info.bytes / rows);
      for (int64_t i = 0; i < more; ++i) bytes.insert(bytes.end(), copied.begin(), copied.end());
      shape[0] += more;
    }
    entries.push_back({name, info.dtype, std::move(shape)});
  }
  const std::string path = padded + "/model.safetensors";
  std::filesystem::remove(path);
  const auto writer = *SafetensorsWriter::Create(path, std::move(entries));
  for (size_t i = 0; i < values.size(); ++i) {
    EXPECT_TRUE(writer->Write(static_cast<int>(i), 0, values[i].data(), values[i].size()).ok());
  }
  EXPECT_TRUE(writer->Close().ok());
  return padded;
}

}  // namespace quartet
