#include "core/generation/stop_strings.h"

#include <algorithm>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "gtest/gtest.h"

namespace quartet {
namespace {

std::string RandomText(std::mt19937& random, size_t most, int letters) {
  std::string text(1 + random() % most, ' ');
  for (char& c : text) c = static_cast<char>('a' + random() % letters);
  return text;
}

// By looking at every string behind every byte.
const std::string* EndingByHand(const std::vector<std::string>& strings, std::string_view text) {
  const auto found = std::find_if(strings.begin(), strings.end(), [&](const auto& s) { return text.ends_with(s); });
  return found == strings.end() ? nullptr : &*found;
}

int64_t BegunByHand(const std::vector<std::string>& strings, std::string_view text) {
  int64_t most = 0;
  for (const std::string& s : strings) {
    for (size_t length = 1; length <= s.size(); ++length) {
      if (text.ends_with(std::string_view(s).substr(0, length))) most = std::max<int64_t>(most, length);
    }
  }
  return most;
}

TEST(StopStrings, AreFoundWhereverAComparisonByHandFindsThem) {
  std::mt19937 random(3);
  int64_t found = 0;
  for (int trial = 0; trial < 500; ++trial) {
    SCOPED_TRACE(trial);
    const int letters = 1 + static_cast<int>(random() % 3);
    std::vector<std::string> strings(1 + random() % 6);
    for (std::string& s : strings) s = RandomText(random, 6, letters);
    const StopStrings stop(strings);
    const std::string text = RandomText(random, 60, letters);
    StopStrings::State state = StopStrings::kStart;
    for (size_t end = 1; end <= text.size(); ++end) {
      state = stop.Next(state, text[end - 1]);
      const std::string_view read = std::string_view(text).substr(0, end);
      const std::string* expected = EndingByHand(strings, read);
      const std::string* actual = stop.EndingAt(state);
      ASSERT_EQ(actual == nullptr, expected == nullptr) << read;
      if (actual != nullptr) {
        ASSERT_EQ(*actual, *expected) << read;
      }
      ASSERT_EQ(stop.Begun(state), BegunByHand(strings, read)) << read;
      found += actual != nullptr;
    }
  }
  EXPECT_GT(found, 1000);
}

TEST(StopStrings, OfThoseThatEndAtOnePlaceTheFirstOfTheListIsFound) {
  const auto found = [](const std::vector<std::string>& strings, std::string_view text) {
    const StopStrings stop(strings);
    StopStrings::State state = StopStrings::kStart;
    for (const char byte : text) state = stop.Next(state, byte);
    return stop.EndingAt(state) == nullptr ? "" : *stop.EndingAt(state);
  };
  EXPECT_EQ(found({"d", "abcd", "cd"}, "abcd"), "d");
  EXPECT_EQ(found({"abcd", "d", "cd"}, "abcd"), "abcd");
  EXPECT_EQ(found({"abcd", "cd", "d"}, "xbcd"), "cd");
  EXPECT_EQ(found({"cd", "cd"}, "cd"), "cd");
  EXPECT_EQ(found({"\xFF\x80", "abcd"}, "abc"), "");
}

}  // namespace
}  // namespace quartet
