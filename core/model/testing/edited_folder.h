// A model folder for a test that differs in config.json.
#pragma once

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

namespace quartet {

// A copy of `folder` for this test, with `fields` in its config.json.
inline std::string EditedFolder(const std::string& folder, const nlohmann::json& fields) {
  const auto* test = testing::UnitTest::GetInstance()->current_test_info();
  const std::filesystem::path copy = testing::TempDir() + "/edited_" + test->name();
  std::filesystem::remove_all(copy);
  std::filesystem::create_directories(copy);
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    if (entry.is_regular_file()) std::filesystem::copy_file(entry.path(), copy / entry.path().filename());
  }
  const std::filesystem::path path = copy / "config.json";
  std::ifstream in(path);
  nlohmann::json config = nlohmann::json::parse(in);
  config.update(fields);
  std::filesystem::remove(path);  // copies of read-only files are read-only
  std::ofstream(path) << config;
  return copy;
}

}  // namespace quartet
