#include "orchestrator/evaluation/evaluation_scores.h"

#include <algorithm>
#include <cstddef>
#include <map>

#include "absl/strings/ascii.h"
#include "core/rewards/boxed.h"

namespace quartet {
namespace {

struct Votes {
  int count = 0;
  int right = 0;
};

}  // namespace

double PassAtK(int n, int right, int k) {
  if (n - right < k) return 1;
  double none = 1;  // of k
  for (int i = n - right + 1; i <= n; ++i) none *= 1 - static_cast<double>(k) / i;
  return 1 - none;
}

std::string VoteOf(std::string_view response) {
  constexpr std::string_view kMarker = "####";
  std::string_view answer;
  if (const std::vector<std::string_view> boxes = BoxedContents(response); !boxes.empty()) {
    answer = boxes.back();
  } else {
    const size_t marker = response.rfind(kMarker);
    if (marker != std::string_view::npos) {
      answer = response.substr(marker + kMarker.size());
    } else {
      const size_t end = response.find_last_not_of(" \t\r\n");
      if (end == std::string_view::npos) return "";
      const size_t line = response.rfind('\n', end);
      answer = response.substr(line == std::string_view::npos ? 0 : line + 1, end + 1);
    }
  }
  std::string vote;
  for (size_t i = 0; i < answer.size(); ++i) {
    const bool in_number = answer[i] == ',' && i > 0 && i + 1 < answer.size() && absl::ascii_isdigit(answer[i - 1]) &&
                           absl::ascii_isdigit(answer[i + 1]);
    if (!in_number && !absl::ascii_isspace(answer[i])) vote.push_back(answer[i]);
  }
  if (!vote.empty() && vote.back() == '.') vote.pop_back();
  while (vote.size() >= 2 && vote.front() == '$' && vote.back() == '$') vote = vote.substr(1, vote.size() - 2);
  return vote;
}

double MajorityAtK(const std::vector<std::string>& votes, const std::vector<bool>& right, int k) {
  const size_t groups = votes.size() / static_cast<size_t>(k);
  double sum = 0;
  for (size_t g = 0; g < groups; ++g) {
    std::map<std::string, Votes> by_vote;
    int most = 0;
    for (size_t i = g * k; i < (g + 1) * k; ++i) {
      if (votes[i].empty()) continue;
      Votes& v = by_vote[votes[i]];
      v.right += right[i];
      most = std::max(most, ++v.count);
    }
    double share = 0;
    int winners = 0;
    for (const auto& [vote, v] : by_vote) {
      if (v.count < most) continue;
      ++winners;
      share += static_cast<double>(v.right) / v.count;
    }
    if (winners > 0) sum += share / winners;
  }
  return sum / static_cast<double>(groups);
}

}  // namespace quartet
