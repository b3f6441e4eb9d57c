// {"rule": name, "response": text, "label": text, "choices": "ABCD"?} lines in, {"value": number} or {"error": text}
// lines out: for comparisons with others (tools/compare/rules.py).
#include <iostream>
#include <map>
#include <nlohmann/json.hpp>
#include <string>

#include "core/errors/shown.h"
#include "core/rewards/rules/rules.h"

int main() {
  using nlohmann::json;
  std::map<std::string, std::unique_ptr<quartet::RewardFunction>> rules;
  for (std::string line; std::getline(std::cin, line);) {
    const json item = json::parse(line);
    const std::string name = item.at("rule");
    quartet::RewardSource source;
    source.set_rule(name);
    source.set_choices(item.value("choices", "ABCD"));
    auto& rule = rules[name + source.choices()];
    if (rule == nullptr) rule = quartet::NewRule(source).value();
    quartet::Answer answer;
    answer.response = item.at("response");
    answer.label = item.at("label");
    const quartet::Answer* const one[] = {&answer};
    const absl::StatusOr<quartet::Reward> reward = rule->Score(one, {}).at(0);
    const json said =
        reward.ok() ? json{{"value", reward->value}} : json{{"error", std::string(reward.status().message())}};
    std::cout << quartet::OneLineJson(said) << "\n";
  }
}
