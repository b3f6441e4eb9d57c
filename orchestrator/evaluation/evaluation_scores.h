// How often one of k answers is right, and how often the most frequent one of k is. No I/O.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace quartet {

// The probability that at least one of k answers, drawn without replacement from n of which `right` are right, is
// right: the unbiased estimate of pass@k (Chen et al., "Evaluating Large Language Models Trained on Code", 2021). 1 <=
// k <= n, 0 <= right <= n.
double PassAtK(int n, int right, int k);

// What an answer votes for: the text in its last \boxed{...}, else what follows its last "####", else its last line
// that is not blank; without white space, dollar signs around it, a full stop at its end, and commas between digits. ""
// for an answer without any text: it votes for nothing.
std::string VoteOf(std::string_view response);

// The share of groups of k answers (the first k, the next k, ..., as far as they go) whose most frequent vote is right:
// of votes that are equally frequent each counts by its share. Answers with the same vote are as right as they are on
// average. 1 <= k <= votes.size() = right.size().
double MajorityAtK(const std::vector<std::string>& votes, const std::vector<bool>& right, int k);

}  // namespace quartet
