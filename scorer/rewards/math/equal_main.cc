// {"label": text, "response": text} lines in, {"equal": bool} lines out: the rule "math", for comparisons with others.
#include <iostream>
#include <nlohmann/json.hpp>
#include <string>

#include "scorer/rewards/math/answer.h"
#include "scorer/rewards/math/equality.h"

int main() {
  for (std::string line; std::getline(std::cin, line);) {
    const nlohmann::json item = nlohmann::json::parse(line);
    const bool equal = quartet::math::Equal(quartet::math::AnswerOfLabel(item.at("label").get<std::string>()),
                                            quartet::math::AnswerIn(item.at("response").get<std::string>()));
    std::cout << nlohmann::json{{"equal", equal}}.dump() << std::endl;
  }
}
