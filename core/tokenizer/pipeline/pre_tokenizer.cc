#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/base/status_macros.h"
#include "core/tokenizer/pipeline/byte_alphabet.h"
#include "core/tokenizer/pipeline/metaspace.h"
#include "core/tokenizer/pipeline/pattern.h"
#include "core/tokenizer/pipeline/pipeline.h"
#include "core/tokenizer/pipeline/split.h"
#include "core/tokenizer/pipeline/step.h"
#include "core/tokenizer/unicode/regex.h"
#include "core/tokenizer/unicode/unicode.h"

namespace quartet {
namespace {

using nlohmann::json;

constexpr std::string_view kGpt2Pattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

// \w+|[^\w\s]+ where the joiners are word characters too.
constexpr std::string_view kWordPattern = R"([\w\x{200c}\x{200d}]+|[^\w\s\x{200c}\x{200d}]+)";

// Each character for which `is` holds, as a match of its own.
template <class Predicate>
MatchFinder EachChar(Predicate is) {
  return [is](const std::string& text, RegexBudget*) {
    std::vector<TextRange> matches;
    for (size_t at = 0, size; at < text.size(); at += size) {
      size = CharBytes(text, at);
      if (is(CharAt(text, at))) matches.emplace_back(at, at + size);
    }
    return matches;
  };
}

absl::StatusOr<PreTokenizer> MakeByteLevel(const json& step) {
  QUARTET_ASSIGN_OR_RETURN(const bool add_prefix_space, StepFlag(step, "add_prefix_space", true));
  QUARTET_ASSIGN_OR_RETURN(const bool use_regex, StepFlag(step, "use_regex", true));
  QUARTET_ASSIGN_OR_RETURN(Regex compiled, Regex::Compile(kGpt2Pattern));
  return PreTokenizer(
      [=, find = FindAll(std::move(compiled))](std::vector<Piece> pieces) -> absl::StatusOr<std::vector<Piece>> {
        if (add_prefix_space) {
          for (Piece& piece : pieces) {
            if (piece.text[0] != ' ') piece.text.insert(0, " ");
          }
        }
        if (use_regex) {
          QUARTET_ASSIGN_OR_RETURN(pieces, SplitPieces(pieces, "ByteLevel", find, SplitBehavior::kIsolated, false));
        }
        for (Piece& piece : pieces) piece.text = ToByteChars(piece.text);
        return pieces;
      });
}

absl::StatusOr<PreTokenizer> MakeMetaspace(const json& step) {
  QUARTET_ASSIGN_OR_RETURN(const std::string replacement, StepChar(step, "replacement"));
  QUARTET_ASSIGN_OR_RETURN(const MetaspacePrepend prepend, ReadMetaspacePrepend(step));
  QUARTET_ASSIGN_OR_RETURN(const bool split, StepFlag(step, "split", true));
  const MatchFinder mark = [replacement](const std::string& text, RegexBudget*) {
    return FindLiteral(text, replacement);
  };
  return PreTokenizer([=](std::vector<Piece> pieces) -> absl::StatusOr<std::vector<Piece>> {
    for (Piece& piece : pieces) {
      piece.text = ReplaceLiteral(piece.text, " ", replacement);
      const bool wants =
          prepend == MetaspacePrepend::kAlways || (prepend == MetaspacePrepend::kFirst && piece.at_start);
      if (wants && piece.text.compare(0, replacement.size(), replacement) != 0) piece.text.insert(0, replacement);
    }
    if (!split) return pieces;
    return SplitPieces(pieces, "Metaspace", mark, SplitBehavior::kMergedWithNext, false);
  });
}

absl::StatusOr<PreTokenizer> MakeSplit(const json& step) {
  QUARTET_ASSIGN_OR_RETURN(const MatchFinder find, FindPattern(step));
  QUARTET_ASSIGN_OR_RETURN(const SplitBehavior behavior, ReadSplitBehavior(step));
  QUARTET_ASSIGN_OR_RETURN(const bool invert, StepFlag(step, "invert", false));
  return PreTokenizer(
      [=](const std::vector<Piece>& pieces) { return SplitPieces(pieces, "Split", find, behavior, invert); });
}

}  // namespace

absl::StatusOr<PreTokenizer> MakePreTokenizer(const json& step) {
  if (step.is_null()) return PreTokenizer([](std::vector<Piece> pieces) { return pieces; });
  QUARTET_ASSIGN_OR_RETURN(const std::string type, StepType(step));
  if (type == "Sequence") return Chain<PreTokenizer>(step, "pretokenizers", &MakePreTokenizer);
  if (type == "ByteLevel") return MakeByteLevel(step);
  if (type == "Split") return MakeSplit(step);
  if (type == "Metaspace") return MakeMetaspace(step);
  if (type == "Digits") {
    QUARTET_ASSIGN_OR_RETURN(const bool individual, StepFlag(step, "individual_digits", false));
    return PreTokenizer([individual](const std::vector<Piece>& pieces) {
      return SplitPieces(pieces, "Digits", EachChar(IsNumeric),
                         individual ? SplitBehavior::kIsolated : SplitBehavior::kContiguous, false);
    });
  }
  if (type == "Punctuation") {
    SplitBehavior behavior = SplitBehavior::kIsolated;
    if (step.contains("behavior")) {
      QUARTET_ASSIGN_OR_RETURN(behavior, ReadSplitBehavior(step));
    }
    return PreTokenizer([behavior](const std::vector<Piece>& pieces) {
      return SplitPieces(pieces, "Punctuation", EachChar(IsPunctuation), behavior, false);
    });
  }
  if (type == "WhitespaceSplit") {
    return PreTokenizer([](const std::vector<Piece>& pieces) {
      return SplitPieces(pieces, "WhitespaceSplit", EachChar(IsWhiteSpace), SplitBehavior::kRemoved, false);
    });
  }
  if (type == "Whitespace") {
    QUARTET_ASSIGN_OR_RETURN(Regex compiled, Regex::Compile(kWordPattern));
    return PreTokenizer([find = FindAll(std::move(compiled))](const std::vector<Piece>& pieces) {
      return SplitPieces(pieces, "Whitespace", find, SplitBehavior::kRemoved, true);
    });
  }
  return StepNotSupported(type);
}

}  // namespace quartet
