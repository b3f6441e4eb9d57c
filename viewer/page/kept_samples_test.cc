#include "viewer/page/kept_samples.h"

#include <gtest/gtest.h>

#include <set>
#include <string>

namespace quartet {
namespace {

using Json = nlohmann::json;

Json JsonOf(const KeptSamples& samples) {
  std::string text;
  samples.AppendJson(&text);
  const Json json = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  EXPECT_TRUE(json.is_object()) << text;
  return json;
}

TEST(KeptSamples, HaveWhatTheRecordsSay) {
  KeptSamples samples;
  samples.Add({{"step", 3},
               {"prompt", "1 + 1 ="},
               {"response", "2"},
               {"label", "2"},
               {"reward", 1},
               {"parts", {{"math", 1}, {"length", -0.5}}},
               {"kl", nullptr},
               {"finish_reason", "stop"}});
  samples.Add({{"step", 4}, {"prompt", Json::array({{{"role", "user"}, {"content", "hi"}}})}, {"reward", "none"}});
  samples.Add(Json::array());
  samples.Add({{"prompt", "of no step"}});
  const Json json = JsonOf(samples);
  EXPECT_EQ(json["total"], 2);
  EXPECT_EQ(json["step"], Json({4, 5})) << "counted from 1";
  EXPECT_EQ(json["prompt"][0], "1 + 1 =");
  EXPECT_EQ(json["prompt"][1], R"([{"content":"hi","role":"user"}])");
  EXPECT_EQ(json["reward"], Json({1, nullptr}));
  EXPECT_EQ(json["kl"], Json({nullptr, nullptr}));
  EXPECT_EQ(json["parts"]["length"], Json({-0.5, nullptr}));
  EXPECT_EQ(json["finish"], Json({"stop", ""}));
}

TEST(KeptSamples, HaveTheTextUpToEachTokenThatHasAReward) {
  KeptSamples samples;
  const auto add = [&samples](const Json& texts, const Json& rewards) {
    samples.Add({{"step", 0}, {"token_texts", texts}, {"token_rewards", rewards}});
  };
  add({"1", "+1", "\n", "So", " 2", "<end>"}, {0, 0, 0.5, 0, -1, 0});
  add({"a", "b"}, {1, 2});
  add({"a", "b"}, {0, 0});
  add({"a"}, {1, 2});
  add("text", 1);
  samples.Add({{"step", 0}, {"response", "no rewards of tokens"}});
  add(std::vector<std::string>(100'000, "x"), std::vector<double>(100'000, 1));
  const Json tokens = JsonOf(samples)["tokens"];
  EXPECT_EQ(tokens[0], Json::parse(R"([["1+1\n", 0.5], ["So 2", -1], ["<end>", 0]])"));
  EXPECT_EQ(tokens[1], Json::parse(R"([["a", 1], ["b", 2]])"));
  EXPECT_EQ(tokens[2], Json::parse(R"([["ab", 0]])"));
  for (const int none : {3, 4, 5}) EXPECT_TRUE(tokens[none].is_null()) << none;
  EXPECT_LT(tokens[6].dump().size(), 2 * KeptSamples::kText);
  EXPECT_NE(tokens[6].back()[0].get<std::string>().find("tokens left out"), std::string::npos);
}

TEST(KeptSamples, HaveTheSpansOfEachSequence) {
  KeptSamples samples;
  const auto add = [&samples](const Json& sequences) { samples.Add({{"step", 0}, {"sequences", sequences}}); };
  add(Json::parse(R"([[{"text": "<user>1+1?", "trained": false}, {"text": "2", "trained": true}],
                      [{"text": "and 2+2?"}, 7, {"text": null, "trained": "yes"}], "spans"])"));
  add("sequences");
  samples.Add({{"step", 0}, {"response", "one answer"}});
  add(Json::array({Json(400, {{"text", "a turn"}, {"trained", true}})}));
  add(Json::array({Json(40, {{"text", std::string(4000, 'x')}, {"trained", true}})}));
  const Json sequences = JsonOf(samples)["sequences"];
  EXPECT_EQ(sequences[0], Json::parse(R"([[["<user>1+1?", 0], ["2", 1]], [["and 2+2?", 0], ["", 0]], []])"));
  for (const int none : {1, 2}) EXPECT_TRUE(sequences[none].is_null()) << none;
  for (const int longer : {3, 4}) {
    EXPECT_LT(sequences[longer].dump().size(), 2 * KeptSamples::kSequences);
    EXPECT_NE(sequences[longer].dump().find("left out"), std::string::npos);
  }
}

TEST(KeptSamples, CutLongTextsBetweenCharacters) {
  KeptSamples samples;
  std::string text;
  for (int i = 0; i < 3000; ++i) text += "é";
  samples.Add({{"step", 0}, {"prompt", text}});
  const std::string kept = JsonOf(samples)["prompt"][0];
  EXPECT_LT(kept.size(), 2 * KeptSamples::kText);
  EXPECT_NE(kept.find("bytes left out"), std::string::npos);
  EXPECT_EQ(kept.find("\xEF\xBF\xBD"), std::string::npos) << "a character was cut";
}

TEST(KeptSamples, OfALongRunAreOfStepsEvenlyOverItAndOfTheLatest) {
  KeptSamples samples;
  constexpr int64_t kSteps = 4'000;
  for (int64_t step = 0; step < kSteps; ++step) {
    for (int i = 0; i < 4; ++i) samples.Add({{"step", step}, {"prompt", std::string(200, 'p')}, {"response", "r"}});
  }
  const Json json = JsonOf(samples);
  EXPECT_EQ(json["total"], 4 * kSteps);
  EXPECT_EQ(json["steps"], kSteps);
  std::set<int64_t> steps;
  for (const Json& step : json["step"]) steps.insert(step.get<int64_t>());
  EXPECT_EQ(*steps.rbegin(), kSteps);
  EXPECT_EQ(*steps.begin(), 1);
  EXPECT_EQ(json["step"].size(), 4 * steps.size()) << "whole steps";
  int64_t widest = 0, before = 0;
  for (const int64_t step : steps) {
    widest = std::max(widest, step - before);
    before = step;
  }
  EXPECT_LE(widest, 3 * kSteps / static_cast<int64_t>(steps.size()));
  EXPECT_GT(json.dump().size(), KeptSamples::kBytes / 4);
  EXPECT_LT(json.dump().size(), 2 * KeptSamples::kBytes);
}

}  // namespace
}  // namespace quartet
