// tokenize --model=DIR: JSONL of texts on standard input, JSONL of token ids on standard output, and back.
#include <cstdint>
#include <iostream>
#include <limits>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "core/base/status_macros.h"
#include "core/command_line/command_line.h"
#include "core/data/json.h"
#include "core/model/lora.h"
#include "core/tokenizer/tokenizer.h"

namespace quartet {
namespace {

struct Options {
  std::string model;
  bool chat = false;
  bool decode = false;
  bool no_special_tokens = false;
  bool skip_special_tokens = false;
};

CommandLine TokenizeCommandLine(Options* options) {
  return {
      .program = "tokenize",
      .before = R"(tokenize: text to token ids and back, as a model's tokenizer does.

  tokenize --model=DIR [--chat] [--no_special_tokens] < texts.jsonl > ids.jsonl
  tokenize --model=DIR --decode [--skip_special_tokens] < ids.jsonl > texts.jsonl

Each line of standard input is one JSON value: a string, or, with --decode, a list of token ids. The line of standard
output beside it is the other.

)",
      .flags = {{"model", "DIR", "folder with tokenizer.json, and tokenizer_config.json where there is one",
                 UserPath(&options->model)},
                {"chat", "",
                 "puts each text through the chat template, as a user's message, with the opening of the\n"
                 "assistant's turn after it; adds no special tokens beyond the template's",
                 Switch(&options->chat)},
                {"no_special_tokens", "", "leaves out what the tokenizer adds around a text (BOS)",
                 Switch(&options->no_special_tokens)},
                {"decode", "", "ids to text", Switch(&options->decode)},
                {"skip_special_tokens", "", "leaves special tokens out of decoded text",
                 Switch(&options->skip_special_tokens)}},
      .after =
          "\nExit codes: 0 all lines done, 2 a flag, line or model is wrong (the message says which), 1 all else.\n",
      .check = [options]() -> absl::Status {
        if (options->model.empty()) return absl::InvalidArgumentError("--model=DIR is missing");
        if (options->decode && (options->chat || options->no_special_tokens)) {
          return absl::InvalidArgumentError("--decode goes with neither --chat nor --no_special_tokens");
        }
        if (!options->decode && options->skip_special_tokens) {
          return absl::InvalidArgumentError("--skip_special_tokens needs --decode");
        }
        return absl::OkStatus();
      },
      .column = 26};
}

absl::StatusOr<nlohmann::json> Decode(const Tokenizer& tokenizer, const Options& options, const nlohmann::json& value) {
  if (!value.is_array()) return absl::InvalidArgumentError("is not a list of token ids");
  std::vector<int32_t> ids;
  for (const nlohmann::json& id : value) {
    if (!id.is_number_unsigned() || id.get<uint64_t>() >= static_cast<uint64_t>(tokenizer.vocab_size())) {
      return absl::InvalidArgumentError(
          absl::StrCat(id.dump(), " is not a token id; they go from 0 to ", tokenizer.vocab_size() - 1));
    }
    ids.push_back(id.get<int32_t>());
  }
  return tokenizer.Decode(ids, options.skip_special_tokens);
}

absl::StatusOr<nlohmann::json> Encode(const Tokenizer& tokenizer, const Options& options, const nlohmann::json& value) {
  if (!value.is_string()) return absl::InvalidArgumentError("is not a string");
  const auto& text = value.get_ref<const std::string&>();
  std::string prompt = text;
  if (options.chat) {
    QUARTET_ASSIGN_OR_RETURN(prompt, tokenizer.ApplyChatTemplate({MakeChatMessage("user", text)}, true));
  }
  return tokenizer.Encode(prompt, !options.chat && !options.no_special_tokens);
}

absl::Status Run(const Options& options) {
  QUARTET_ASSIGN_OR_RETURN(const std::string folder, TokenizerFolder(options.model));
  QUARTET_ASSIGN_OR_RETURN(const std::unique_ptr<Tokenizer> tokenizer, Tokenizer::Load(folder));
  std::string text;
  for (int64_t line = 1; std::getline(std::cin, text); ++line) {
    const std::string place = absl::StrCat("standard input, line ", line);
    QUARTET_ASSIGN_OR_RETURN(const nlohmann::json value, ParseJson(text, place));
    QUARTET_ASSIGN_OR_RETURN(const auto result, Prefixed(place, options.decode ? Decode(*tokenizer, options, value)
                                                                               : Encode(*tokenizer, options, value)));
    std::cout << result.dump() << '\n';
  }
  std::cout.flush();
  if (!std::cout) return absl::ResourceExhaustedError("standard output cannot be written; is the disk full?");
  return absl::OkStatus();
}

}  // namespace
}  // namespace quartet

int main(int argc, char** argv) {
  std::ios::sync_with_stdio(false);
  quartet::Options options;
  if (const auto code = quartet::ReadCommandLine(argc, argv, quartet::TokenizeCommandLine(&options))) return *code;
  const absl::Status status = quartet::Run(options);
  std::cout.flush();
  return quartet::Finish("tokenize", status);
}
