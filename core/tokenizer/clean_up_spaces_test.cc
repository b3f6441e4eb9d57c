#include "core/tokenizer/clean_up_spaces.h"

#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

namespace quartet {
namespace {

// What transformers makes of texts, written by tools/golden/make_tokenizer.py.
TEST(CleanUpSpaces, DoesAsTransformersDoes) {
  std::ifstream file("core/tokenizer/testdata/clean_up_spaces.json");
  const auto golden = nlohmann::json::parse(file);
  ASSERT_GE(golden.size(), 200);
  for (const auto& row : golden) EXPECT_EQ(CleanUpSpaces(row[0]), row[1]) << row[0];
}

}  // namespace
}  // namespace quartet
