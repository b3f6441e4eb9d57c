// Tokenizers with the chat templates of tests.
#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "absl/time/civil_time.h"
#include "core/base/testing/scratch_folder.h"
#include "core/tokenizer/tokenizer.h"

namespace quartet {

// The tokenizer core/tokenizer/testdata/byte_level, whose token 2 is "<|end|>", with this chat template, and the day
// that it writes.
inline std::unique_ptr<Tokenizer> TemplateTokenizer(const std::string& source,
                                                    absl::CivilDay date = absl::CivilDay(2026, 1, 2)) {
  const ScratchFolder folder;
  for (const char* name : {"tokenizer.json", "tokenizer_config.json"}) {
    std::filesystem::copy_file(std::string("core/tokenizer/testdata/byte_level/") + name, folder.path() + "/" + name);
  }
  return Tokenizer::Load(folder.path(), {.file = folder.Write("chat.jinja", source), .date = date}).value();
}

inline const std::vector<int32_t> kTemplateEnds = {2};

}  // namespace quartet
