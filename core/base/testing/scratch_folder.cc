#include "core/base/testing/scratch_folder.h"

#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <sstream>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "core/base/logging.h"

namespace quartet {

ScratchFolder::ScratchFolder() {
  const char* root = getenv("TEST_TMPDIR");
  std::string pattern = absl::StrCat(root != nullptr ? root : "/tmp", "/scratch.XXXXXX");
  QUARTET_CHECK(mkdtemp(pattern.data()) != nullptr);
  path_ = pattern;
}
ScratchFolder::~ScratchFolder() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}
std::string ScratchFolder::Write(const std::string& name, const std::string& content) const {
  std::string path = path_ + "/" + name;
  std::filesystem::create_directories(std::filesystem::path(path).parent_path());
  std::ofstream(path, std::ios::binary) << content;
  return path;
}
std::string ScratchFolder::Read(const std::string& name) const {
  std::ifstream file(path_ + "/" + name, std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

std::map<std::string, std::string> ScratchFolder::Contents() const {
  std::map<std::string, std::string> contents;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(path_)) {
    const std::string name = entry.path().lexically_relative(path_);
    if (entry.is_symlink()) {
      contents[name] = std::filesystem::read_symlink(entry.path());
    } else if (entry.is_regular_file()) {
      contents[name] = Read(name);
    }
  }
  return contents;
}

}  // namespace quartet
