#include "core/tokenizer/model.h"

#include <algorithm>
#include <array>
#include <limits>
#include <mutex>
#include <nlohmann/json.hpp>
#include <queue>
#include <unordered_map>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "core/base/status_macros.h"
#include "core/tokenizer/unicode/unicode.h"

namespace quartet {
namespace {

using nlohmann::json;

struct StringHash {
  using is_transparent = void;
  size_t operator()(std::string_view text) const { return std::hash<std::string_view>()(text); }
};
template <class T>
using StringMap = std::unordered_map<std::string, T, StringHash, std::equal_to<>>;

absl::Status ModelError(const std::string& what) { return absl::InvalidArgumentError(absl::StrCat("model: ", what)); }

// Tokens and their ids, both ways.
class Vocabulary {
 public:
  static absl::StatusOr<Vocabulary> Read(const json& model) {
    const auto vocab = model.find("vocab");
    if (vocab == model.end() || !vocab->is_object()) return ModelError("\"vocab\" is not an object");
    Vocabulary vocabulary;
    vocabulary.ids_.reserve(vocab->size());
    for (const auto& [token, id] : vocab->items()) {
      if (!id.is_number_unsigned() || id.get<uint64_t>() > std::numeric_limits<int32_t>::max() / 2) {
        return ModelError(absl::StrCat("vocab: the id ", id.dump(), " of \"", token, "\" is not a token id"));
      }
      const auto value = id.get<int32_t>();
      if (!vocabulary.tokens_.emplace(value, token).second) {
        return ModelError(
            absl::StrCat("vocab: \"", token, "\" and \"", vocabulary.tokens_[value], "\" share the id ", value));
      }
      vocabulary.ids_.emplace(token, value);
      vocabulary.max_id_ = std::max(vocabulary.max_id_, value);
    }
    return vocabulary;
  }
  std::optional<int32_t> Id(std::string_view token) const {
    const auto found = ids_.find(token);
    if (found == ids_.end()) return std::nullopt;
    return found->second;
  }
  const std::string* Token(int32_t id) const {
    const auto found = tokens_.find(id);
    return found == tokens_.end() ? nullptr : &found->second;
  }
  int32_t max_id() const { return max_id_; }

 private:
  StringMap<int32_t> ids_;
  std::unordered_map<int32_t, std::string> tokens_;
  int32_t max_id_ = -1;
};

absl::StatusOr<bool> ReadFlag(const json& model, const char* name, bool fallback) {
  const auto value = model.find(name);
  if (value == model.end() || value->is_null()) return fallback;
  if (!value->is_boolean()) return ModelError(absl::StrCat(name, ": ", value->dump(), " is not true or false"));
  return value->get<bool>();
}

// The id of unk_token, if there is one.
absl::StatusOr<std::optional<int32_t>> ReadUnknown(const json& model, const Vocabulary& vocabulary) {
  const auto value = model.find("unk_token");
  if (value == model.end() || value->is_null()) return std::optional<int32_t>();
  if (!value->is_string()) return ModelError("unk_token: is not a string");
  const std::optional<int32_t> id = vocabulary.Id(value->get_ref<const std::string&>());
  if (!id) return ModelError(absl::StrCat("unk_token: ", value->dump(), " is not in the vocabulary"));
  return id;
}

class VocabularyModel : public TokenModel {
 public:
  explicit VocabularyModel(Vocabulary vocabulary) : vocabulary_(std::move(vocabulary)) {}
  std::optional<int32_t> TokenToId(std::string_view token) const override { return vocabulary_.Id(token); }
  const std::string* IdToToken(int32_t id) const override { return vocabulary_.Token(id); }
  int32_t max_id() const override { return vocabulary_.max_id(); }

 protected:
  const Vocabulary vocabulary_;
};

class WordLevelModel : public VocabularyModel {
 public:
  WordLevelModel(Vocabulary vocabulary, int32_t unknown) : VocabularyModel(std::move(vocabulary)), unknown_(unknown) {}
  void Tokenize(std::string_view word, std::vector<int32_t>* ids) const override {
    ids->push_back(vocabulary_.Id(word).value_or(unknown_));
  }

 private:
  const int32_t unknown_;
};

// Words met before and their ids.
class WordCache {
 public:
  bool Find(std::string_view word, std::vector<int32_t>* ids) const {
    const Shard& shard = shards_[StringHash()(word) % shards_.size()];
    std::lock_guard lock(shard.mutex);
    const auto found = shard.words.find(word);
    if (found == shard.words.end()) return false;
    ids->insert(ids->end(), found->second.begin(), found->second.end());
    return true;
  }
  void Insert(std::string_view word, const int32_t* begin, const int32_t* end) {
    if (word.size() > kMaxWordBytes) return;
    Shard& shard = shards_[StringHash()(word) % shards_.size()];
    std::lock_guard lock(shard.mutex);
    if (shard.words.size() < kMaxWords) shard.words.try_emplace(std::string(word), begin, end);
  }

 private:
  static constexpr size_t kMaxWordBytes = 256;
  static constexpr size_t kMaxWords = 4096;  // a shard
  struct Shard {
    mutable std::mutex mutex;
    StringMap<std::vector<int32_t>> words;
  };
  std::array<Shard, 16> shards_;
};

class BpeModel : public VocabularyModel {
 public:
  struct Merge {
    int32_t rank;
    int32_t id;
  };
  struct Options {
    std::optional<int32_t> unknown;
    bool fuse_unknown = false;
    bool byte_fallback = false;
    bool ignore_merges = false;
  };
  static uint64_t Pair(int32_t left, int32_t right) {
    return static_cast<uint64_t>(left) << 32 | static_cast<uint32_t>(right);
  }

  BpeModel(Vocabulary vocabulary, std::unordered_map<uint64_t, Merge> merges, const Options& options)
      : VocabularyModel(std::move(vocabulary)), merges_(std::move(merges)), options_(options) {
    for (int byte = 0; byte < 256; ++byte) {
      byte_ids_[byte] = vocabulary_.Id(absl::StrFormat("<0x%02X>", byte)).value_or(-1);
    }
  }

  void Tokenize(std::string_view word, std::vector<int32_t>* ids) const override {
    if (options_.ignore_merges) {
      if (const auto id = vocabulary_.Id(word)) {
        ids->push_back(*id);
        return;
      }
    }
    if (cache_.Find(word, ids)) return;
    const size_t before = ids->size();
    MergeSymbols(InitialSymbols(word), ids);
    cache_.Insert(word, ids->data() + before, ids->data() + ids->size());
  }

 private:
  // One id a character, or one a byte of a character that has none, or the unknown token.
  std::vector<int32_t> InitialSymbols(std::string_view word) const {
    std::vector<int32_t> symbols;
    bool unknown_waits = false;
    for (size_t at = 0, size; at < word.size(); at += size) {
      size = CharBytes(word, at);
      const std::string_view character = word.substr(at, size);
      if (const auto id = vocabulary_.Id(character)) {
        if (unknown_waits) symbols.push_back(*options_.unknown);
        unknown_waits = false;
        symbols.push_back(*id);
        continue;
      }
      const auto byte_id = [&](char byte) { return byte_ids_[static_cast<unsigned char>(byte)]; };
      if (options_.byte_fallback &&
          std::all_of(character.begin(), character.end(), [&](char byte) { return byte_id(byte) >= 0; })) {
        // A waiting unknown token comes after these, as in the reference implementation.
        for (const char byte : character) symbols.push_back(byte_id(byte));
        continue;
      }
      if (!options_.unknown) continue;  // without an unknown token such a character vanishes
      if (unknown_waits && !options_.fuse_unknown) symbols.push_back(*options_.unknown);
      unknown_waits = true;
    }
    if (unknown_waits) symbols.push_back(*options_.unknown);
    return symbols;
  }

  // Applies the merge of lowest rank, leftmost first, until none is left: O(n log n) by a heap over a linked list.
  void MergeSymbols(std::vector<int32_t> symbols, std::vector<int32_t>* ids) const {
    struct Candidate {
      int32_t rank;
      int32_t position;
      int32_t id;
      bool operator<(const Candidate& other) const {  // the heap's top is its greatest
        return std::pair(rank, position) > std::pair(other.rank, other.position);
      }
    };
    const int32_t count = static_cast<int32_t>(symbols.size());
    constexpr int32_t kGone = -1;
    std::vector<int32_t> next(count), previous(count);
    std::priority_queue<Candidate> candidates;
    const auto consider = [&](int32_t left, int32_t right) {
      const auto merge = merges_.find(Pair(symbols[left], symbols[right]));
      if (merge != merges_.end()) candidates.push({merge->second.rank, left, merge->second.id});
    };
    for (int32_t i = 0; i < count; ++i) {
      next[i] = i + 1 < count ? i + 1 : -1;
      previous[i] = i - 1;
      if (i + 1 < count) consider(i, i + 1);
    }
    while (!candidates.empty()) {
      const Candidate top = candidates.top();
      candidates.pop();
      const int32_t left = top.position;
      if (symbols[left] == kGone || next[left] < 0) continue;
      const int32_t right = next[left];
      const auto merge = merges_.find(Pair(symbols[left], symbols[right]));
      if (merge == merges_.end() || merge->second.id != top.id) continue;  // its neighbours changed since
      symbols[left] = top.id;
      symbols[right] = kGone;
      next[left] = next[right];
      if (next[right] >= 0) previous[next[right]] = left;
      if (previous[left] >= 0) consider(previous[left], left);
      if (next[left] >= 0) consider(left, next[left]);
    }
    for (int32_t i = count > 0 ? 0 : -1; i >= 0; i = next[i]) ids->push_back(symbols[i]);
  }

  const std::unordered_map<uint64_t, Merge> merges_;
  const Options options_;
  std::array<int32_t, 256> byte_ids_;
  mutable WordCache cache_;
};

// The two tokens of a merge: "a b", or ["a", "b"].
absl::StatusOr<std::pair<std::string, std::string>> ReadMerge(const json& merge) {
  if (merge.is_array() && merge.size() == 2 && merge[0].is_string() && merge[1].is_string()) {
    return std::pair(merge[0].get<std::string>(), merge[1].get<std::string>());
  }
  if (merge.is_string()) {
    const auto& text = merge.get_ref<const std::string&>();
    const size_t space = text.find(' ');
    if (space != std::string::npos && text.find(' ', space + 1) == std::string::npos) {
      return std::pair(text.substr(0, space), text.substr(space + 1));
    }
  }
  return absl::InvalidArgumentError(absl::StrCat(merge.dump().substr(0, 200), " is not a pair of tokens"));
}

absl::StatusOr<std::unique_ptr<TokenModel>> MakeBpe(const json& model) {
  for (const char* name : {"continuing_subword_prefix", "end_of_word_suffix"}) {
    const auto value = model.find(name);
    if (value != model.end() && !value->is_null() && *value != "") {
      return ModelError(absl::StrCat(name, ": ", value->dump(), " is not supported; only null or \"\" is"));
    }
  }
  const auto dropout = model.find("dropout");
  if (dropout != model.end() && !dropout->is_null() && *dropout != 0.0) {
    return ModelError(absl::StrCat("dropout: ", dropout->dump(), " is not supported; only null or 0 is"));
  }
  QUARTET_ASSIGN_OR_RETURN(Vocabulary vocabulary, Vocabulary::Read(model));
  BpeModel::Options options;
  QUARTET_ASSIGN_OR_RETURN(options.unknown, ReadUnknown(model, vocabulary));
  QUARTET_ASSIGN_OR_RETURN(options.fuse_unknown, ReadFlag(model, "fuse_unk", false));
  QUARTET_ASSIGN_OR_RETURN(options.byte_fallback, ReadFlag(model, "byte_fallback", false));
  QUARTET_ASSIGN_OR_RETURN(options.ignore_merges, ReadFlag(model, "ignore_merges", false));

  const auto merges = model.find("merges");
  if (merges == model.end() || !merges->is_array()) return ModelError("\"merges\" is not a list");
  std::unordered_map<uint64_t, BpeModel::Merge> table;
  table.reserve(merges->size());
  int32_t rank = 0;
  for (size_t i = 0; i < merges->size(); ++i) {
    const json& entry = (*merges)[i];
    if (entry.is_string() && entry.get_ref<const std::string&>().rfind("#version", 0) == 0) continue;
    const auto pair = ReadMerge(entry);
    if (!pair.ok()) return ModelError(absl::StrCat("merges[", i, "]: ", std::string(pair.status().message())));
    const auto& [left, right] = *pair;
    int32_t part_ids[3];
    const std::string parts[3] = {left, right, left + right};
    for (int part = 0; part < 3; ++part) {
      const auto id = vocabulary.Id(parts[part]);
      if (!id) {
        return ModelError(absl::StrCat("merges[", i, "]: the token \"", parts[part], "\" is not in the vocabulary"));
      }
      part_ids[part] = *id;
    }
    table[BpeModel::Pair(part_ids[0], part_ids[1])] = {rank++, part_ids[2]};
  }
  return std::make_unique<BpeModel>(std::move(vocabulary), std::move(table), options);
}

absl::StatusOr<std::unique_ptr<TokenModel>> MakeWordLevel(const json& model) {
  QUARTET_ASSIGN_OR_RETURN(Vocabulary vocabulary, Vocabulary::Read(model));
  QUARTET_ASSIGN_OR_RETURN(const std::optional<int32_t> unknown, ReadUnknown(model, vocabulary));
  if (!unknown) return ModelError("unk_token: a WordLevel model must have one");
  return std::make_unique<WordLevelModel>(std::move(vocabulary), *unknown);
}

}  // namespace

absl::StatusOr<std::unique_ptr<TokenModel>> MakeTokenModel(const json& model) {
  if (!model.is_object()) return ModelError("is not an object");
  const auto type = model.find("type");
  // Files of the first versions name no type; merges tell a BPE.
  if (type == model.end() ? model.contains("merges") : *type == "BPE") return MakeBpe(model);
  if (type != model.end() && *type == "WordLevel") return MakeWordLevel(model);
  return ModelError(absl::StrCat("the type ", type == model.end() ? "(none)" : type->dump(),
                                 " is not supported; BPE and WordLevel are"));
}

}  // namespace quartet
