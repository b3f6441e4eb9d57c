#include "core/openai/openai_request.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "core/base/status_macros.h"
#include "core/data/json.h"
#include "core/errors/shown.h"
#include "core/generation/sampling_params.h"
#include "core/openai/api_error.h"
#include "core/openai/chat_parameters.h"
#include "core/openai/parameters.h"

namespace quartet {
namespace {

using Json = nlohmann::ordered_json;  // what templates write keeps its order

constexpr int64_t kDefaultCompletionTokens = 16;  // OpenAI's; a chat's answer may fill the context

bool IsIdList(const Json& value) { return value.is_array() && !value.empty() && value[0].is_number(); }

// The values of a list, or one that stands for a list of itself; without copies, which may be large.
std::vector<const Json*> ListOf(const Json& value, bool alone) {
  if (alone) return {&value};
  std::vector<const Json*> list;
  if (!value.is_array()) return list;
  for (const Json& one : value) list.push_back(&one);
  return list;
}

struct AskedLength {
  std::optional<int32_t> max_tokens;
  const char* name = "max_tokens";
  bool echo = false;
};

// What follows from the prompts of `request`, which are there.
absl::Status SetLengths(const AskedLength& asked, const ServedModel& model, OpenAiRequest* request) {
  SamplingParams& sampling = *request->header.mutable_sampling();
  request->header.set_num_items(request->prompts.size());
  int64_t longest = 0;
  for (const Prompt& prompt : request->prompts) longest = std::max<int64_t>(longest, prompt.ids_size());
  const char* prompt_name = request->chat ? "messages" : "prompt";
  if (longest == 0) return ParameterError(prompt_name, "has no tokens; at least 1 is needed");
  const int64_t most = MostNewTokens(sampling, longest, model.vocab_size);
  const int64_t left = std::min(model.max_model_len - longest, most);
  // An echo may be all that is wanted.
  const int64_t least = asked.echo && asked.max_tokens == 0 ? 0 : 1;
  if (left < least) {
    return ContextLengthError(
        prompt_name,
        absl::StrCat("has ", longest, " tokens; allowed: at most ", model.max_model_len - least,
                     ", since max_model_len is ", model.max_model_len,
                     most < least ? ", and fewer with log-probabilities, for which there is no room" : ""));
  }
  const int64_t unasked = request->chat ? left : std::min(left, kDefaultCompletionTokens);
  const int64_t wanted = asked.max_tokens.has_value() ? *asked.max_tokens : unasked;
  if (wanted < least || wanted > left) {
    return ParameterError(
        asked.name, absl::StrCat("is ", wanted, "; allowed: ", asked.echo ? 0 : 1, " to ", left, ", since ",
                                 prompt_name, " has ", longest, " tokens and max_model_len is ", model.max_model_len,
                                 left == most ? ", and log-probabilities take room" : ""));
  }
  // What generates nothing computes the prompt.
  if (wanted == 0) sampling.set_prompt_logprobs(sampling.prompt_logprobs());
  sampling.set_max_new_tokens(static_cast<int32_t>(wanted));
  return InRequestWords(
      CheckSamplingParams(sampling, model.vocab_size, /*reads_text=*/true),
      {{"max_new_tokens", asked.name}, {"n_samples", "n"}, {"logprobs", request->chat ? "top_logprobs" : "logprobs"}});
}

absl::StatusOr<std::vector<int32_t>> EncodePrompt(const Tokenizer& tokenizer, const std::string& text,
                                                  bool add_special_tokens) {
  return add_special_tokens ? tokenizer.EncodePrompt(text) : tokenizer.Encode(text, false);
}

void AddPrompt(const std::vector<int32_t>& ids, OpenAiRequest* request) {
  Prompt& prompt = request->prompts.emplace_back();
  prompt.set_index(request->prompts.size() - 1);
  prompt.mutable_ids()->Add(ids.begin(), ids.end());
}

class Reader {
 public:
  Reader(bool chat, const Json& body, const ServedModel& model, uint64_t seed)
      : parameters_(body), model_(model), seed_(seed) {
    request_.chat = chat;
  }

  absl::StatusOr<OpenAiRequest> ReadCompletion() {
    QUARTET_RETURN_IF_ERROR(ReadWhatBothHave());
    QUARTET_RETURN_IF_ERROR(ReadPrompts());
    QUARTET_RETURN_IF_ERROR(parameters_.CheckAllKnown());
    QUARTET_RETURN_IF_ERROR(SetLengths({.max_tokens = max_tokens_, .echo = echo_}, model_, &request_));
    return std::move(request_);
  }

  absl::StatusOr<OpenAiChat> ReadChat() {
    QUARTET_RETURN_IF_ERROR(ReadWhatBothHave());
    QUARTET_RETURN_IF_ERROR(CheckSequences(1));
    OpenAiChat chat{.request = std::move(request_),
                    .max_tokens = max_tokens_,
                    .max_tokens_name = max_tokens_name_,
                    .named = parameters_.Names()};
    QUARTET_RETURN_IF_ERROR(ReadChatParameters(model_.tokenizer->chat_template(), &parameters_, &chat));
    QUARTET_RETURN_IF_ERROR(parameters_.CheckAllKnown());
    return chat;
  }

 private:
  absl::Status ReadWhatBothHave() {
    QUARTET_RETURN_IF_ERROR(CheckModel());
    QUARTET_RETURN_IF_ERROR(ReadSampling());
    QUARTET_RETURN_IF_ERROR(request_.chat ? ReadChatLogprobs() : ReadCompletionLogprobs());
    QUARTET_RETURN_IF_ERROR(ReadStream());
    QUARTET_RETURN_IF_ERROR(ReadPromptLogprobs());
    QUARTET_RETURN_IF_ERROR(ReadMaxTokens());
    QUARTET_RETURN_IF_ERROR(CheckUnsupported());
    sampling().set_raw_logprobs(request_.logprobs || request_.prompt_logprobs.has_value());
    request_.header.set_stream_tokens(request_.stream);
    return absl::OkStatus();
  }

  SamplingParams& sampling() { return *request_.header.mutable_sampling(); }

  absl::Status CheckModel() {
    const Json* model = parameters_.Find("model");
    if (model == nullptr || *model == model_.name) return absl::OkStatus();
    if (!model->is_string()) return Refused("model", *model, "a string");
    return absl::NotFoundError(absl::StrCat("model is ", CutJson(*model), "; here is only \"", model_.name, "\""));
  }

  absl::Status ReadSampling() {
    sampling().set_temperature(1);
    sampling().set_top_p(1);
    sampling().set_n_samples(1);
    const auto read = [this]<typename Value>(const char* name, void (SamplingParams::*set)(Value)) {
      std::optional<Value> value;
      QUARTET_RETURN_IF_ERROR(parameters_.Read(name, &value));
      if (value.has_value()) (sampling().*set)(*value);
      return absl::OkStatus();
    };
    QUARTET_RETURN_IF_ERROR(read("temperature", &SamplingParams::set_temperature));
    QUARTET_RETURN_IF_ERROR(read("top_p", &SamplingParams::set_top_p));
    QUARTET_RETURN_IF_ERROR(read("min_p", &SamplingParams::set_min_p));
    QUARTET_RETURN_IF_ERROR(read("presence_penalty", &SamplingParams::set_presence_penalty));
    QUARTET_RETURN_IF_ERROR(read("frequency_penalty", &SamplingParams::set_frequency_penalty));
    QUARTET_RETURN_IF_ERROR(read("repetition_penalty", &SamplingParams::set_repetition_penalty));
    QUARTET_RETURN_IF_ERROR(read("top_k", &SamplingParams::set_top_k));
    QUARTET_RETURN_IF_ERROR(read("n", &SamplingParams::set_n_samples));
    QUARTET_RETURN_IF_ERROR(read("min_tokens", &SamplingParams::set_min_tokens));
    bool ignore_eos = false;
    QUARTET_RETURN_IF_ERROR(parameters_.Read("ignore_eos", &ignore_eos));
    sampling().set_ignore_eos(ignore_eos);
    QUARTET_RETURN_IF_ERROR(ReadSeed());
    QUARTET_RETURN_IF_ERROR(ReadStops());
    QUARTET_RETURN_IF_ERROR(parameters_.Read("include_stop_str_in_output", &request_.includes_stop));
    return ReadLogitBias();
  }

  absl::Status ReadSeed() {
    sampling().set_seed(seed_);
    const Json* seed = parameters_.Find("seed");
    if (seed == nullptr) return absl::OkStatus();
    if (!seed->is_number_integer()) return Refused("seed", *seed, "a whole number of 64 bits");
    sampling().set_seed(seed->is_number_unsigned() ? seed->get<uint64_t>()
                                                   : static_cast<uint64_t>(seed->get<int64_t>()));
    return absl::OkStatus();
  }

  absl::Status ReadStops() {
    if (const Json* stop = parameters_.Find("stop")) {
      const char* allowed = "a string that is not empty, or a list of them";
      if (!stop->is_string() && !stop->is_array()) return Refused("stop", *stop, allowed);
      for (const Json* one : ListOf(*stop, stop->is_string())) {
        if (!one->is_string()) return Refused("stop", *stop, allowed);
        sampling().add_stop(one->get<std::string>());
      }
    }
    if (const Json* ids = parameters_.Find("stop_token_ids")) {
      if (!ids->is_array()) return Refused("stop_token_ids", *ids, "a list of token ids");
      for (const Json& one : *ids) {
        int32_t id = 0;
        if (!Parameters::ToInt32(one, &id)) return Refused("stop_token_ids", *ids, "a list of token ids");
        sampling().add_stop_token_ids(id);
      }
    }
    return absl::OkStatus();
  }

  absl::Status ReadLogitBias() {
    const Json* biases = parameters_.Find("logit_bias");
    if (biases == nullptr) return absl::OkStatus();
    const char* allowed = "an object with token ids as names (\"15\", not \"015\") and numbers from -100 to 100";
    if (!biases->is_object()) return Refused("logit_bias", *biases, allowed);
    for (const auto& [name, bias] : biases->items()) {
      int32_t id = 0;
      // A token has one name: of two of them one would go over the other.
      const bool is_id = absl::SimpleAtoi(name, &id) && absl::StrCat(id) == name;
      if (!is_id || !bias.is_number()) return Refused("logit_bias", *biases, allowed);
      (*sampling().mutable_logit_bias())[id] = bias.get<float>();
    }
    return absl::OkStatus();
  }

  absl::Status ReadCompletionLogprobs() {
    std::optional<int32_t> alternatives;
    QUARTET_RETURN_IF_ERROR(parameters_.Read("logprobs", &alternatives));
    request_.logprobs = alternatives.has_value();
    sampling().set_logprobs(alternatives.value_or(0));
    QUARTET_RETURN_IF_ERROR(parameters_.Read("echo", &echo_));
    if (echo_ && request_.logprobs) sampling().set_prompt_logprobs(sampling().logprobs());
    return absl::OkStatus();
  }

  absl::Status ReadChatLogprobs() {
    QUARTET_RETURN_IF_ERROR(parameters_.Read("logprobs", &request_.logprobs));
    std::optional<int32_t> alternatives;
    QUARTET_RETURN_IF_ERROR(parameters_.Read("top_logprobs", &alternatives));
    if (alternatives.value_or(0) != 0 && !request_.logprobs) {
      return ParameterError("top_logprobs", absl::StrCat("is ", *alternatives, ", but logprobs is not true"));
    }
    sampling().set_logprobs(alternatives.value_or(0));
    return absl::OkStatus();
  }

  absl::Status ReadMaxTokens() {
    QUARTET_RETURN_IF_ERROR(parameters_.Read("max_tokens", &max_tokens_));
    if (!request_.chat) return absl::OkStatus();
    std::optional<int32_t> newer;
    QUARTET_RETURN_IF_ERROR(parameters_.Read("max_completion_tokens", &newer));
    if (!newer.has_value()) return absl::OkStatus();
    if (max_tokens_.value_or(*newer) != *newer) {
      return ParameterError("max_completion_tokens",
                            absl::StrCat("is ", *newer, ", but max_tokens is ", *max_tokens_, "; they mean the same"));
    }
    max_tokens_ = newer;
    max_tokens_name_ = "max_completion_tokens";
    return absl::OkStatus();
  }

  absl::Status ReadStream() {
    QUARTET_RETURN_IF_ERROR(parameters_.Read("stream", &request_.stream));
    const Json* options = parameters_.Find("stream_options");
    if (options == nullptr) return absl::OkStatus();
    const char* allowed = R"({"include_usage": true or false, "continuous_usage_stats": true or false})";
    if (!options->is_object()) return Refused("stream_options", *options, allowed);
    if (!request_.stream) return ParameterError("stream_options", "is set, but stream is not true");
    for (const auto& [name, value] : options->items()) {
      if (name == "include_usage" && value.is_boolean()) {
        request_.include_usage = value.get<bool>();
      } else if (name == "continuous_usage_stats" && value.is_boolean()) {
        request_.continuous_usage = value.get<bool>();
      } else if (!(name == "include_obfuscation" && value == false) && !value.is_null()) {
        return Refused("stream_options", *options, allowed);
      }
    }
    // As in vLLM.
    request_.continuous_usage = request_.continuous_usage && request_.include_usage;
    return absl::OkStatus();
  }

  absl::Status ReadPromptLogprobs() {
    QUARTET_RETURN_IF_ERROR(parameters_.Read("prompt_logprobs", &request_.prompt_logprobs));
    if (!request_.prompt_logprobs.has_value()) return absl::OkStatus();
    if (request_.stream) {
      return ParameterError("prompt_logprobs", "is set, and stream is true; allowed: one of them");
    }
    sampling().set_prompt_logprobs(std::max(sampling().prompt_logprobs(), *request_.prompt_logprobs));
    if (*request_.prompt_logprobs < 0) sampling().set_prompt_logprobs(*request_.prompt_logprobs);  // is refused
    return absl::OkStatus();
  }

  // Before anything is made of the prompts.
  absl::Status CheckSequences(size_t prompts) {
    if (static_cast<int64_t>(prompts) * sampling().n_samples() <= model_.max_sequences) return absl::OkStatus();
    return ParameterError("n", absl::StrCat("is ", sampling().n_samples(), " for ", prompts,
                                            " prompts; together at most ", model_.max_sequences, " sequences"));
  }

  // What the interface has and this server has not, as long as it asks for nothing.
  absl::Status CheckUnsupported() {
    std::vector<std::pair<std::string, std::vector<Json>>> only = {
        {"use_beam_search", {false}},
        {"length_penalty", {1}},
        {"early_stopping", {false}},
        {"skip_special_tokens", {true}},
        {"spaces_between_special_tokens", {true}},
        {"allowed_token_ids", {}},
        {"bad_words", {Json::array()}},
        {"truncate_prompt_tokens", {}},
        {"priority", {0}},
        {"return_tokens_as_token_ids", {false}},
        {"return_token_ids", {false}},
    };
    if (request_.chat) {
      only.insert(only.end(), {{"echo", {false}},
                               {"functions", {Json::array()}},
                               {"function_call", {"none"}},
                               {"modalities", {Json::array({"text"})}},
                               {"audio", {}},
                               {"prediction", {}},
                               {"reasoning_effort", {"none"}},
                               {"verbosity", {}},
                               {"web_search_options", {}},
                               {"add_generation_prompt", {true}},
                               {"continue_final_message", {false}},
                               {"chat_template", {}},
                               {"documents", {Json::array()}}});
    } else {
      only.insert(only.end(), {{"suffix", {}}, {"best_of", {sampling().n_samples()}}});
    }
    for (const auto& [name, neutral] : only) QUARTET_RETURN_IF_ERROR(parameters_.OnlyNeutral(name, neutral));
    for (const char* name : {"user", "metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key",
                             "prompt_cache_retention", "request_id"}) {
      parameters_.Ignore(name);
    }
    return parameters_.OnlyNeutral("response_format", {Json{{"type", "text"}}}, kDrawnFreely);
  }

  absl::Status AddText(const std::string& text, bool add_special_tokens) {
    const absl::StatusOr<std::vector<int32_t>> ids = EncodePrompt(*model_.tokenizer, text, add_special_tokens);
    if (!ids.ok()) {
      return ParameterError("prompt", absl::StrCat("cannot be read: ", WithoutFolder(ids.status().message())));
    }
    AddPrompt(*ids, &request_);
    return absl::OkStatus();
  }

  absl::Status ReadPrompts() {
    bool add_special_tokens = true;
    QUARTET_RETURN_IF_ERROR(parameters_.Read("add_special_tokens", &add_special_tokens));
    const char* allowed = "a string, a list of strings, a list of token ids, or a list of such lists; not empty";
    const Json* prompt = parameters_.Find("prompt");
    if (prompt == nullptr) return ParameterError("prompt", absl::StrCat("is missing; allowed: ", allowed));
    const bool alone = prompt->is_string() || IsIdList(*prompt);
    if (!alone && (!prompt->is_array() || prompt->empty())) return Refused("prompt", *prompt, allowed);
    QUARTET_RETURN_IF_ERROR(CheckSequences(alone ? 1 : prompt->size()));
    for (const Json* one : ListOf(*prompt, alone)) {
      if (one->is_string()) {
        QUARTET_RETURN_IF_ERROR(AddText(one->get_ref<const std::string&>(), add_special_tokens));
        if (echo_) request_.echoes.push_back(one->get<std::string>());
        continue;
      }
      if (!IsIdList(*one)) return Refused("prompt", *prompt, allowed);
      std::vector<int32_t> ids;
      for (const Json& id : *one) {
        if (!Parameters::ToInt32(id, &ids.emplace_back()) || ids.back() < 0 || ids.back() >= model_.vocab_size) {
          return ParameterError("prompt",
                                absl::StrCat("holds ", CutJson(id), " where a token id is expected; allowed: 0 to ",
                                             model_.vocab_size - 1));
        }
      }
      AddPrompt(ids, &request_);
      if (echo_) request_.echoes.push_back(model_.tokenizer->DecodeUncleaned(ids, /*skip_special_tokens=*/true));
    }
    return absl::OkStatus();
  }

  Parameters parameters_;
  const ServedModel& model_;
  const uint64_t seed_;
  OpenAiRequest request_;
  bool echo_ = false;
  std::optional<int32_t> max_tokens_;
  const char* max_tokens_name_ = "max_tokens";
};

absl::StatusOr<Json> ParseBody(std::string_view body) {
  QUARTET_ASSIGN_OR_RETURN(Json parsed, ParseOrderedJson(body, "the request's body"));
  if (!parsed.is_object()) return absl::InvalidArgumentError("the request's body is not a JSON object");
  return parsed;
}

}  // namespace

std::string WithoutFolder(absl::string_view message) {
  const size_t path = message.substr(0, message.find(": ")).rfind('/');
  return std::string(path == absl::string_view::npos ? message : message.substr(path + 1));
}

int64_t JsonBytes(std::string_view body) {
  // A value in a list that grows is there twice for a moment, in room for up to twice as many; containers, strings and
  // names have memory of their own.
  constexpr int64_t kValue = 3 * sizeof(Json), kContainer = 64, kMember = 96;
  // Of a byte of text: the tokens that it may become, and what finds them.
  constexpr int64_t kTextByte = 16;
  int64_t bytes = kValue;
  for (size_t i = 0; i < body.size(); ++i) {
    switch (body[i]) {
      case '"': {
        const size_t begin = i;
        for (++i; i < body.size() && body[i] != '"'; ++i) {
          if (body[i] == '\\') ++i;
        }
        bytes += kContainer + kTextByte * static_cast<int64_t>(i - begin);
        break;
      }
      case '[':
      case '{':
        bytes += kContainer + kValue;
        break;
      case ',':
        bytes += kValue;
        break;
      case ':':
        bytes += kMember;
        break;
      default:
        break;
    }
  }
  return bytes;
}

absl::StatusOr<OpenAiChat> ReadOpenAiChat(std::string_view body, const ServedModel& model, uint64_t seed) {
  QUARTET_ASSIGN_OR_RETURN(const Json parsed, ParseBody(body));
  return Reader(/*chat=*/true, parsed, model, seed).ReadChat();
}

absl::StatusOr<OpenAiRequest> WithPrompt(OpenAiChat chat, std::string_view text, const std::vector<int32_t>& ids,
                                         const ServedModel& model) {
  OpenAiRequest& request = chat.request;
  AddPrompt(ids, &request);
  request.form.in_thought = request.form.thoughts && MessageForm::BeginsThought(text);
  QUARTET_RETURN_IF_ERROR(SetLengths({.max_tokens = chat.max_tokens, .name = chat.max_tokens_name}, model, &request));
  return std::move(request);
}

absl::StatusOr<OpenAiRequest> ReadOpenAiRequest(bool chat, std::string_view body, const ServedModel& model,
                                                uint64_t seed) {
  if (!chat) {
    QUARTET_ASSIGN_OR_RETURN(const Json parsed, ParseBody(body));
    return Reader(chat, parsed, model, seed).ReadCompletion();
  }
  QUARTET_ASSIGN_OR_RETURN(OpenAiChat asked, ReadOpenAiChat(body, model, seed));
  const absl::StatusOr<std::string> text =
      model.tokenizer->ApplyChatTemplate(asked.messages, /*add_generation_prompt=*/true, asked.kwargs);
  if (!text.ok()) return ChatError(asked, *model.tokenizer, text.status());
  const absl::StatusOr<std::vector<int32_t>> ids = EncodePrompt(*model.tokenizer, *text, asked.add_special_tokens);
  if (!ids.ok()) return ChatError(asked, *model.tokenizer, ids.status());
  return WithPrompt(std::move(asked), *text, *ids, model);
}

}  // namespace quartet
