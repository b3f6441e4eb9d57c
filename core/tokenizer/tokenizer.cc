#include "core/tokenizer/tokenizer.h"

#include <algorithm>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <unordered_map>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "core/base/status_macros.h"
#include "core/base/utf8.h"
#include "core/data/json.h"
#include "core/errors/shown.h"
#include "core/tokenizer/added_tokens.h"
#include "core/tokenizer/clean_up_spaces.h"
#include "core/tokenizer/jinja/jinja_template.h"
#include "core/tokenizer/model.h"
#include "core/tokenizer/pipeline/pipeline.h"
#include "core/tokenizer/tokenizer_class.h"

namespace quartet {
namespace {

using nlohmann::json;

// Special tokens that tokenizer_config.json names by their part.
constexpr const char* kSpecialNames[] = {"bos_token", "eos_token", "unk_token", "sep_token",
                                         "pad_token", "cls_token", "mask_token"};

// What every chat template is given, or has of itself.
constexpr std::string_view kTemplatesOwn[] = {"messages",
                                              "add_generation_prompt",
                                              "documents",
                                              "bos_token",
                                              "eos_token",
                                              "unk_token",
                                              "sep_token",
                                              "pad_token",
                                              "cls_token",
                                              "mask_token",
                                              "additional_special_tokens",
                                              "strftime_now",
                                              "raise_exception"};

bool IsWordByte(char c) { return absl::ascii_isalnum(c) || c == '_'; }

std::set<std::string, std::less<>> WordsOf(std::string_view text) {
  std::set<std::string, std::less<>> words;
  for (size_t begin = 0, end = 0; begin < text.size(); begin = end + 1) {
    for (end = begin; end < text.size() && IsWordByte(text[end]);) ++end;
    if (end > begin) words.emplace(text.substr(begin, end - begin));
  }
  return words;
}

nlohmann::ordered_json WithoutInvalidUtf8(const nlohmann::ordered_json& value) {
  if (value.is_string()) return ReplaceInvalidUtf8(value.get_ref<const std::string&>());
  if (!value.is_structured()) return value;
  nlohmann::ordered_json valid = value.is_array() ? nlohmann::ordered_json::array() : nlohmann::ordered_json::object();
  for (const auto& [name, item] : value.items()) {
    if (value.is_array()) {
      valid.push_back(WithoutInvalidUtf8(item));
    } else {
      using Object = nlohmann::ordered_json::object_t;
      std::string valid_name = ReplaceInvalidUtf8(name);
      // Names of an object are different already: past the look-up, which goes through all.
      if (valid_name == name) {
        static_cast<Object::Container&>(valid.get_ref<Object&>()).emplace_back(name, WithoutInvalidUtf8(item));
      } else {
        valid.emplace(std::move(valid_name), WithoutInvalidUtf8(item));
      }
    }
  }
  return valid;
}

const json& Field(const json& object, const char* name) {
  static const auto* null = new json;
  const auto found = object.find(name);
  return found == object.end() ? *null : *found;
}

absl::StatusOr<bool> Flag(const json& object, const char* name, bool fallback) {
  const json& value = Field(object, name);
  if (value.is_null()) return object.contains(name) ? false : fallback;
  if (!value.is_boolean()) {
    return absl::InvalidArgumentError(absl::StrCat(name, " is ", value.dump(), "; it must be true or false"));
  }
  return value.get<bool>();
}

// "content" of an added token written as an object, or the string itself; nothing for null.
absl::StatusOr<std::optional<std::string>> TokenText(const json& value, const std::string& place) {
  if (value.is_null()) return std::optional<std::string>();
  if (value.is_string()) return std::optional<std::string>(value.get<std::string>());
  if (value.is_object() && Field(value, "content").is_string()) {
    return std::optional<std::string>(value["content"].get<std::string>());
  }
  return absl::InvalidArgumentError(absl::StrCat(place, " is neither a token nor null"));
}

absl::StatusOr<AddedToken> ReadAddedToken(const json& entry, const std::string& place) {
  const auto error = [&](const std::string& what) {
    return absl::InvalidArgumentError(absl::StrCat(place, ": ", what));
  };
  if (!entry.is_object()) return error("is not an object");
  AddedToken token;
  const json& content = Field(entry, "content");
  if (!content.is_string() || content == "") return error("\"content\" is not a token");
  token.content = content.get<std::string>();
  token.normalized = true;
  const std::pair<const char*, bool*> kFlags[] = {{"special", &token.special},
                                                  {"single_word", &token.single_word},
                                                  {"lstrip", &token.lstrip},
                                                  {"rstrip", &token.rstrip},
                                                  {"normalized", &token.normalized}};
  for (const auto& [name, flag] : kFlags) {
    const json& value = Field(entry, name);
    if (value.is_null()) continue;
    if (!value.is_boolean()) return error(absl::StrCat("\"", name, "\" is not true or false"));
    *flag = value.get<bool>();
  }
  return token;
}

absl::StatusOr<int32_t> ReadId(const json& value, const std::string& place) {
  if (!value.is_number_unsigned() || value.get<uint64_t>() > std::numeric_limits<int32_t>::max() / 2) {
    return absl::InvalidArgumentError(absl::StrCat(place, ": ", value.dump(), " is not a token id"));
  }
  return value.get<int32_t>();
}

class HuggingFaceTokenizer : public Tokenizer {
 public:
  explicit HuggingFaceTokenizer(const ChatTemplateOptions& chat) : chat_(chat) {}

  absl::Status Read(const std::string& folder) {
    const std::string path = path_ = folder + "/tokenizer.json";
    const std::string config_path = folder + "/tokenizer_config.json";
    const absl::StatusOr<json> tokenizer_file = ReadJsonFile(path, kMaxTokenizerBytes);
    if (absl::IsNotFound(tokenizer_file.status())) {
      return absl::NotFoundError(
          absl::StrCat(path, " does not exist; transformers writes it: ", "AutoTokenizer.from_pretrained(\"", folder,
                       "\").save_pretrained(\"", folder, "\")"));
    }
    QUARTET_RETURN_IF_ERROR(tokenizer_file.status());
    const json& file = *tokenizer_file;
    if (!file.is_object()) return absl::InvalidArgumentError(absl::StrCat(path, ": is not an object"));
    json config = json::object();
    auto config_file = ReadJsonFile(config_path, kMaxConfigBytes);
    if (config_file.ok()) {
      config = *std::move(config_file);
    } else if (!absl::IsNotFound(config_file.status())) {
      return config_file.status();
    }
    if (!config.is_object()) return absl::InvalidArgumentError(absl::StrCat(config_path, ": is not an object"));

    QUARTET_RETURN_IF_ERROR(Prefixed(path, ReadTokenizer(file, config)));
    QUARTET_ASSIGN_OR_RETURN(const TokenizerClass its_class, FindTokenizerClass(folder, config));
    QUARTET_RETURN_IF_ERROR(Prefixed(config_path, ReadConfig(config, its_class)));
    constexpr int32_t kText = -1;  // no token
    before_text_ = post_processor_({kText});
    before_text_.erase(std::find(before_text_.begin(), before_text_.end(), kText), before_text_.end());
    for (const auto& [content, token] : added_) {
      std::string pattern = content;
      if (token.normalized) {
        QUARTET_ASSIGN_OR_RETURN(pattern, Normalized(content));
      }
      (token.normalized ? in_normalized_ : in_raw_).Add(pattern, token);
      vocab_size_ = std::max(vocab_size_, token.id + 1);
      added_by_id_.emplace(token.id, &token);
    }
    for (const int32_t id : post_processor_({})) {
      if (id < vocab_size_) continue;
      return absl::InvalidArgumentError(absl::StrCat(path, ": post_processor: it puts the token id ", id,
                                                     " around a text; allowed: 0 to ", vocab_size_ - 1));
    }
    return ReadChatTemplate(folder, config, config_path);
  }

  absl::StatusOr<std::vector<int32_t>> Encode(std::string_view text, bool add_special_tokens) const override {
    const std::string valid = ReplaceInvalidUtf8(text);
    std::vector<int32_t> ids;
    for (const TextPart& raw : in_raw_.Split(valid)) {
      if (raw.id) {
        ids.push_back(*raw.id);
        continue;
      }
      QUARTET_ASSIGN_OR_RETURN(const std::string normalized, Normalized(std::string(raw.text)));
      for (const TextPart& part : in_normalized_.Split(normalized)) {
        if (part.id) {
          ids.push_back(*part.id);
          continue;
        }
        const bool at_start = raw.text.data() == valid.data() && part.text.data() == normalized.data();
        const absl::StatusOr<std::vector<Piece>> pieces = pre_tokenizer_({{std::string(part.text), at_start}});
        if (!pieces.ok()) return Prefixed(absl::StrCat(path_, ": pre_tokenizer"), pieces.status());
        for (const Piece& piece : *pieces) model_->Tokenize(piece.text, &ids);
      }
    }
    return add_special_tokens ? post_processor_(std::move(ids)) : ids;
  }

  std::vector<int32_t> ids_before_text() const override { return before_text_; }

  std::optional<int32_t> bos_id() const override {
    if (!before_text_.empty()) return before_text_.front();
    const auto token = template_variables_.find("bos_token");
    const bool is_text = token != template_variables_.end() && token->is_string();
    return is_text ? TokenToId(token->get_ref<const std::string&>()) : std::nullopt;
  }

  std::string DecodeUncleaned(const std::vector<int32_t>& ids, bool skip_special_tokens) const override {
    std::vector<std::string> tokens;
    for (const int32_t id : ids) {
      const auto added = added_by_id_.find(id);
      if (added != added_by_id_.end()) {
        if (!skip_special_tokens || !added->second->special) tokens.push_back(added->second->content);
      } else if (const std::string* token = model_->IdToToken(id)) {
        tokens.push_back(*token);
      }
    }
    std::string text;
    for (const std::string& part : decoder_(std::move(tokens))) text += part;
    return text;
  }

  std::string Decode(const std::vector<int32_t>& ids, bool skip_special_tokens) const override {
    std::string text = DecodeUncleaned(ids, skip_special_tokens);
    return cleans_up_spaces_ ? CleanUpSpaces(std::move(text)) : text;
  }

  int32_t vocab_size() const override { return vocab_size_; }

  std::optional<int32_t> TokenToId(std::string_view token) const override {
    const auto added = added_.find(token);
    if (added != added_.end()) return added->second.id;
    return model_->TokenToId(token);
  }

  std::string_view chat_template() const override { return template_source_; }
  bool writes_date() const override { return chat_template_ != nullptr && chat_template_->Reads("strftime_now"); }

  absl::StatusOr<std::string> ApplyChatTemplate(const std::vector<ChatMessage>& messages, bool add_generation_prompt,
                                                const nlohmann::ordered_json& kwargs) const override {
    if (!chat_template_) {
      return absl::FailedPreconditionError(absl::StrCat("the tokenizer has no chat template: neither ",
                                                        chat_template_place_,
                                                        "; give one, or use prompts that need none"));
    }
    QUARTET_RETURN_IF_ERROR(CheckReads(kwargs));
    nlohmann::ordered_json variables = template_variables_;
    variables["add_generation_prompt"] = add_generation_prompt;
    variables["messages"] = nlohmann::ordered_json::array();
    for (size_t i = 0; i < messages.size(); ++i) {
      for (const char* part : {"reasoning_content", "tool_calls"}) {
        if (!messages[i].contains(part) || Mentions(part)) continue;
        return absl::InvalidArgumentError(
            absl::StrCat(chat_template_place_, " does not write the \"", part, "\" that message ", i,
                         " (counted from 0) has; leave it out, or give a template that does"));
      }
      variables["messages"].push_back(WithoutInvalidUtf8(messages[i]));
    }
    variables.update(kwargs);
    return Prefixed(chat_template_place_, chat_template_->Render(variables, chat_.date));
  }

 private:
  absl::StatusOr<std::string> Normalized(std::string text) const {
    return Prefixed(absl::StrCat(path_, ": normalizer"), normalizer_(std::move(text)));
  }

  absl::Status ReadTokenizer(const json& file, const json& config) {
    QUARTET_ASSIGN_OR_RETURN(model_, MakeTokenModel(Field(file, "model")));
    vocab_size_ = model_->max_id() + 1;

    QUARTET_ASSIGN_OR_RETURN(normalizer_, Prefixed("normalizer", MakeNormalizer(Field(file, "normalizer"))));
    // transformers lets tokenizer_config.json (or its default, false) have the last word on a pre-tokenizer that is not
    // a sequence.
    json pre_tokenizer_step = Field(file, "pre_tokenizer");
    if (pre_tokenizer_step.is_object() && pre_tokenizer_step.contains("add_prefix_space")) {
      const json& add = Field(config, "add_prefix_space");
      pre_tokenizer_step["add_prefix_space"] = add.is_boolean() && add.get<bool>();
    }
    QUARTET_ASSIGN_OR_RETURN(pre_tokenizer_, Prefixed("pre_tokenizer", MakePreTokenizer(pre_tokenizer_step)));
    QUARTET_ASSIGN_OR_RETURN(post_processor_,
                             Prefixed("post_processor", MakePostProcessor(Field(file, "post_processor"))));
    QUARTET_ASSIGN_OR_RETURN(decoder_, Prefixed("decoder", MakeTokenDecoder(Field(file, "decoder"))));
    // "truncation" and "padding" are the caller's business, in transformers too.

    const json& added = Field(file, "added_tokens");
    if (!added.is_null() && !added.is_array()) return absl::InvalidArgumentError("added_tokens: is not a list");
    for (size_t i = 0; i < added.size(); ++i) {
      const std::string place = absl::StrCat("added_tokens[", i, "]");
      QUARTET_ASSIGN_OR_RETURN(AddedToken token, ReadAddedToken(added[i], place));
      QUARTET_ASSIGN_OR_RETURN(token.id, ReadId(Field(added[i], "id"), absl::StrCat(place, ": id")));
      QUARTET_RETURN_IF_ERROR(Add(token, place));
    }
    return absl::OkStatus();
  }

  absl::Status Add(const AddedToken& token, const std::string& place) {
    const auto error = [&](const std::string& what) {
      return absl::InvalidArgumentError(absl::StrCat(place, ": \"", token.content, "\" has the id ", token.id, what));
    };
    const std::optional<int32_t> in_model = model_->TokenToId(token.content);
    if (in_model && *in_model != token.id) return error(absl::StrCat(", but ", *in_model, " in the vocabulary"));
    const std::string* other = model_->IdToToken(token.id);
    if (other != nullptr && *other != token.content) {
      return error(absl::StrCat(", which is \"", *other, "\" in the vocabulary"));
    }
    if (!added_.emplace(token.content, token).second) return error(", but was added before");
    if (!ids_taken_.emplace(token.id, token.content).second) {
      return error(absl::StrCat(", which is \"", ids_taken_[token.id], "\" too"));
    }
    return absl::OkStatus();
  }

  // A token that tokenizer.json does not add: the vocabulary's id, or the next one that is free.
  absl::Status AddFromConfig(AddedToken token, const std::string& place) {
    if (added_.contains(token.content)) return absl::OkStatus();
    int32_t next = model_->max_id() + 1;
    if (!ids_taken_.empty()) next = std::max(next, ids_taken_.rbegin()->first + 1);
    token.id = model_->TokenToId(token.content).value_or(next);
    return Add(token, place);
  }

  absl::Status ReadConfig(const json& config, const TokenizerClass& its_class) {
    QUARTET_ASSIGN_OR_RETURN(cleans_up_spaces_, Flag(config, "clean_up_tokenization_spaces", false));
    const json& decoder = Field(config, "added_tokens_decoder");
    if (!decoder.is_null() && !decoder.is_object()) {
      return absl::InvalidArgumentError("added_tokens_decoder: is not an object");
    }
    if (decoder.is_object()) {
      std::map<int64_t, const json*> by_id;
      for (const auto& [id, entry] : decoder.items()) {
        if (id.empty() || id.size() > 9 || id.find_first_not_of("0123456789") != std::string::npos) {
          return absl::InvalidArgumentError(absl::StrCat("added_tokens_decoder: \"", id, "\" is not a token id"));
        }
        by_id[std::stoll(id)] = &entry;
      }
      for (const auto& [id, entry] : by_id) {
        const std::string place = absl::StrCat("added_tokens_decoder ", id);
        QUARTET_ASSIGN_OR_RETURN(const AddedToken token, ReadAddedToken(*entry, place));
        QUARTET_RETURN_IF_ERROR(AddFromConfig(token, place));
      }
    }
    std::map<std::string, std::string> special;
    const auto add_special = [&](const std::string& content, const std::string& place) {
      AddedToken token{.content = content, .special = true, .normalized = false};
      return AddFromConfig(token, place);
    };
    const std::map<std::string_view, const char*> defaults = {{"bos_token", its_class.bos},
                                                              {"eos_token", its_class.eos},
                                                              {"unk_token", its_class.unk},
                                                              {"pad_token", its_class.pad}};
    for (const char* name : kSpecialNames) {
      QUARTET_ASSIGN_OR_RETURN(std::optional<std::string> content, TokenText(Field(config, name), name));
      const auto fallback = defaults.find(name);
      if (!config.contains(name) && fallback != defaults.end() && fallback->second != nullptr)
        content = fallback->second;
      if (!content || content->empty()) continue;
      QUARTET_RETURN_IF_ERROR(add_special(*content, name));
      special[name] = *content;
      template_variables_[name] = *content;
    }
    const json& more = Field(config, "additional_special_tokens");
    if (!more.is_null() && !more.is_array()) {
      return absl::InvalidArgumentError("additional_special_tokens: is not a list");
    }
    for (const json& entry : more) {
      QUARTET_ASSIGN_OR_RETURN(const auto content, TokenText(entry, "additional_special_tokens"));
      if (!content || content->empty()) continue;
      QUARTET_RETURN_IF_ERROR(add_special(*content, "additional_special_tokens"));
      template_variables_["additional_special_tokens"].push_back(*content);
    }
    return its_class.add_bos_token ? ReplacePostProcessor(config, *its_class.add_bos_token, special) : absl::OkStatus();
  }

  absl::Status ReplacePostProcessor(const json& config, bool adds_bos,
                                    const std::map<std::string, std::string>& special) {
    json step = {{"type", "TemplateProcessing"}, {"single", json::array()}, {"special_tokens", json::object()}};
    const auto add = [&](const char* flag, bool fallback, const char* name) -> absl::Status {
      QUARTET_ASSIGN_OR_RETURN(const bool adds, Flag(config, flag, fallback));
      if (!adds) return absl::OkStatus();
      const auto found = special.find(name);
      if (found == special.end()) {
        return absl::InvalidArgumentError(absl::StrCat(flag, " is true, but there is no ", name));
      }
      const std::string& token = found->second;
      step["single"].push_back({{"SpecialToken", {{"id", token}, {"type_id", 0}}}});
      step["special_tokens"][token] = {{"id", token}, {"ids", json::array({static_cast<uint32_t>(*TokenToId(token))})}};
      return absl::OkStatus();
    };
    QUARTET_RETURN_IF_ERROR(add("add_bos_token", adds_bos, "bos_token"));
    step["single"].push_back({{"Sequence", {{"id", "A"}, {"type_id", 0}}}});
    QUARTET_RETURN_IF_ERROR(add("add_eos_token", false, "eos_token"));
    QUARTET_ASSIGN_OR_RETURN(post_processor_, MakePostProcessor(step));
    return absl::OkStatus();
  }

  // The file that is given, else chat_template.jinja, else "chat_template" of the configuration: a string, or a list of
  // named ones.
  absl::Status ReadChatTemplate(const std::string& folder, const json& config, const std::string& config_path) {
    const std::string& given = chat_.file;
    const std::string path = given.empty() ? folder + "/chat_template.jinja" : given;
    auto source = ReadTextFile(path, kMaxConfigBytes);
    if (source.ok()) {
      chat_template_place_ = path;
    } else if (!given.empty() || !absl::IsNotFound(source.status())) {
      return source.status();
    } else {
      json value = Field(config, "chat_template");
      if (value.is_array()) {
        for (const json& named : value) {
          if (named.is_object() && Field(named, "name") == "default") {
            value = json(Field(named, "template"));
            break;
          }
        }
      }
      if (value.is_null()) {
        chat_template_place_ = absl::StrCat(path, " nor \"chat_template\" in ", config_path);
        return absl::OkStatus();
      }
      chat_template_place_ = absl::StrCat(config_path, ": chat_template");
      if (!value.is_string()) {
        return absl::InvalidArgumentError(
            absl::StrCat(chat_template_place_, " is neither a template nor a list with one named \"default\""));
      }
      source = value.get<std::string>();
    }
    QUARTET_ASSIGN_OR_RETURN(JinjaTemplate parsed, Prefixed(chat_template_place_, JinjaTemplate::Parse(*source)));
    chat_template_ = std::make_unique<JinjaTemplate>(std::move(parsed));
    template_words_ = WordsOf(*source);
    template_source_ = *std::move(source);
    template_variables_["tools"] = nullptr;
    template_variables_["documents"] = nullptr;
    if (chat_.kwargs.empty()) return absl::OkStatus();
    constexpr char kKwargs[] = "chat_template_kwargs";
    QUARTET_ASSIGN_OR_RETURN(const nlohmann::ordered_json kwargs, ParseOrderedJson(chat_.kwargs, kKwargs));
    if (!kwargs.is_object()) {
      return absl::InvalidArgumentError(absl::StrCat(kKwargs, ": ", quartet::Quoted(chat_.kwargs),
                                                     R"( is no JSON object such as {"enable_thinking": false})"));
    }
    QUARTET_RETURN_IF_ERROR(Prefixed(kKwargs, CheckReads(kwargs)));
    template_variables_.update(kwargs);
    return absl::OkStatus();
  }

  // Whether the chat template has this word anywhere, as it could not read a part of messages otherwise.
  bool Mentions(const std::string& word) const { return template_words_.contains(word); }

  absl::Status CheckReads(const nlohmann::ordered_json& kwargs) const {
    for (const auto& [name, value] : kwargs.items()) {
      if (std::ranges::find(kTemplatesOwn, name) != std::end(kTemplatesOwn)) {
        return absl::InvalidArgumentError(
            absl::StrCat("\"", name, "\" is given to every chat template, and is no name of a value of one's own"));
      }
      if (chat_template_ == nullptr || !chat_template_->Reads(name)) {
        return absl::InvalidArgumentError(absl::StrCat(chat_template_place_, " does not read \"", name, "\""));
      }
    }
    return absl::OkStatus();
  }

  std::string path_;  // of tokenizer.json
  std::unique_ptr<TokenModel> model_;
  Normalizer normalizer_;
  PreTokenizer pre_tokenizer_;
  PostProcessor post_processor_;
  std::vector<int32_t> before_text_;  // what it puts there
  TokenDecoder decoder_;
  std::map<std::string, AddedToken, std::less<>> added_;  // by content
  std::map<int32_t, std::string> ids_taken_;              // of added tokens
  std::unordered_map<int32_t, const AddedToken*> added_by_id_;
  TokenFinder in_raw_, in_normalized_;
  int32_t vocab_size_ = 0;
  bool cleans_up_spaces_ = false;
  const ChatTemplateOptions chat_;
  std::string template_source_;
  std::set<std::string, std::less<>> template_words_;
  std::unique_ptr<JinjaTemplate> chat_template_;  // null: none
  std::string chat_template_place_;
  nlohmann::ordered_json template_variables_ = nlohmann::ordered_json::object();
};

}  // namespace

absl::StatusOr<std::unique_ptr<Tokenizer>> Tokenizer::Load(const std::string& folder, const ChatTemplateOptions& chat) {
  auto tokenizer = std::make_unique<HuggingFaceTokenizer>(chat);
  QUARTET_RETURN_IF_ERROR(tokenizer->Read(folder));
  return tokenizer;
}

}  // namespace quartet
