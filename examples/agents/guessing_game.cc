// An agent that plays a guessing game with the policy: it thinks of a number, the policy guesses, the agent says "<"
// (less than that) or ">" (more), until the number is found or the guesses are used up.
//
// The template of an agent in C++: it reads episodes from its standard input, one JSON object a line, asks the policy
// over OpenAI's interface, and answers each line with what the episode is worth (docs/agents.md).
#include <curl/curl.h>

#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>

namespace {

using nlohmann::json;

constexpr int kNumbers = 7;
constexpr int kGuesses = 4;  // one more than halving takes
constexpr double kForANumber = 0.1;

size_t Append(char* bytes, size_t size, size_t count, void* text) {
  static_cast<std::string*>(text)->append(bytes, size * count);
  return size * count;
}

// The policy's next message in the conversation. "" where it could not be asked: the run knows why.
std::string Ask(const json& episode, const json& messages) {
  const std::unique_ptr<CURL, decltype(&curl_easy_cleanup)> curl(curl_easy_init(), curl_easy_cleanup);
  const std::string url = episode.at("base_url").get<std::string>() + "/chat/completions";
  const std::string key = "Authorization: Bearer " + episode.at("api_key").get<std::string>();
  const std::string body = json{{"model", "policy"}, {"messages", messages}}.dump();
  const std::unique_ptr<curl_slist, decltype(&curl_slist_free_all)> headers(
      curl_slist_append(curl_slist_append(nullptr, "Content-Type: application/json"), key.c_str()),
      curl_slist_free_all);
  std::string reply;
  curl_easy_setopt(curl.get(), CURLOPT_URL, url.c_str());
  curl_easy_setopt(curl.get(), CURLOPT_HTTPHEADER, headers.get());
  curl_easy_setopt(curl.get(), CURLOPT_POSTFIELDS, body.c_str());
  curl_easy_setopt(curl.get(), CURLOPT_NOPROXY, "*");
  curl_easy_setopt(curl.get(), CURLOPT_FAILONERROR, 1L);
  curl_easy_setopt(curl.get(), CURLOPT_WRITEFUNCTION, Append);
  curl_easy_setopt(curl.get(), CURLOPT_WRITEDATA, &reply);
  if (curl_easy_perform(curl.get()) != CURLE_OK) return "";
  const json choice = json::parse(reply).at("choices").at(0);
  const json& content = choice.at("message").at("content");
  // Of one that was cut off before its end token nothing is a guess.
  return choice.at("finish_reason") == "stop" && content.is_string() ? content.get<std::string>() : "";
}

// Of a game that ends after so many numbers: to play by the rules is worth a little.
json Worth(bool found, int numbers) {
  return {
      {"reward", found ? 1 : kForANumber * numbers}, {"score", found ? 1 : 0}, {"extra_logs", {{"numbers", numbers}}}};
}

json Play(const json& episode) {
  const int secret = std::stoi(episode.at("label").get<std::string>());
  json messages = json::array({{{"role", "user"}, {"content", "?"}}});
  for (int guesses = 1; guesses <= kGuesses; ++guesses) {
    const std::string answer = Ask(episode, messages);
    const bool is_number = answer.size() == 1 && answer[0] >= '1' && answer[0] < '1' + kNumbers;
    if (!is_number) return Worth(false, guesses - 1);
    const int guess = answer[0] - '0';
    if (guess == secret) return Worth(true, guesses);
    messages.push_back({{"role", "assistant"}, {"content", answer}});
    messages.push_back({{"role", "user"}, {"content", secret < guess ? "<" : ">"}});
  }
  return Worth(false, kGuesses);
}

}  // namespace

int main() {
  curl_global_init(CURL_GLOBAL_DEFAULT);
  for (std::string line; std::getline(std::cin, line);) {
    const json episode = json::parse(line);
    json answer = Play(episode);
    answer["id"] = episode.at("id");
    std::cout << answer.dump() << '\n' << std::flush;
  }
}
