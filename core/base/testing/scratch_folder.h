// A folder for one test.
#pragma once

#include <map>
#include <string>

namespace quartet {

// A folder of its own, removed at the end.
class ScratchFolder {
 public:
  ScratchFolder();
  ~ScratchFolder();
  const std::string& path() const { return path_; }
  std::string Write(const std::string& name, const std::string& content) const;
  std::string Read(const std::string& name) const;
  // Every file below it by its path, with its text, or for a link where it points.
  std::map<std::string, std::string> Contents() const;

 private:
  std::string path_;
};

}  // namespace quartet
