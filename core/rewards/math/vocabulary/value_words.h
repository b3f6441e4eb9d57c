// What words beside a number do to its value: the one table that boxes, plain sentences and the rule "number" go by.
// Functions of words in any case. Thread safe.
#pragma once

#include <gmpxx.h>

#include <optional>
#include <string>
#include <string_view>

namespace quartet::math {

// What a word behind a number multiplies it by: "million", "dozen", "lakh", "tens", "sixths"; plurals too.
std::optional<mpq_class> FactorOf(std::string_view word);

// Whether a word says another thing of a number beside it than of what it is one: that it is denied ("not", "isn't"),
// one of several ("or", "maybe"), bounded ("least", "than") or computed with ("minus", "factorial"), or an abbreviation
// of a factor ("bil", "K").
bool ChangesValue(std::string_view word);
// Of these, whether it denies or doubts what the clause that it stands in says.
bool Denies(std::string_view word);

// The number that words say from the first on: "five", "twenty-one", "two hundred and five"; `*size`: how much of
// `words` says so. Nothing where they begin with no such word.
std::optional<mpz_class> CardinalAt(std::string_view words, size_t* size);

// Numbers in words, and "negative" or "minus" before a number, are written in digits where `leads_in` says of what
// stands before them that a value follows.
std::string WithDigits(std::string_view text, bool (*leads_in)(std::string_view before));

// Words behind a number that leave its value as it is, told one after the other: what it is a number of ("cm", "red
// apples", "people"), then words that change no value; or "of them", "left", "in total", "is the answer" at once. A
// word that is neither a unit nor a plural is no noun, since it may be a factor in a language or trade of its own.
class WordsBehind {
 public:
  // `after_unit`: the unit is already there. `one`: the number is 1, of which words in the singular say what it is.
  explicit WordsBehind(bool after_unit = false, bool one = false)
      : state_(after_unit ? State::kNoun : State::kNumber), one_(one), has_noun_(after_unit) {}

  // False: with this word the value is another one, or not understood.
  bool Take(std::string_view word);
  // A sign of a unit.
  void TakeUnit() {
    state_ = State::kNoun;
    has_noun_ = true;
  }
  // A further number, in digits: "in 2 days".
  bool TakeNumber();
  // Whether the words that were taken say something as they are.
  bool MayEnd() const {
    return (state_ != State::kAdjective || one_ || last_ == "more") && state_ != State::kVerb && state_ != State::kThan;
  }
  // Whether it is said of what it is a number.
  bool HasNoun() const { return has_noun_; }
  // Whether no word was taken yet.
  bool AtNumber() const { return state_ == State::kNumber && !factor_; }

 private:
  enum class State { kNumber, kAdjective, kTimes, kNoun, kThan, kVerb, kPredicate, kFree };
  bool TakeNoun(std::string_view word, const std::string& lower);
  State state_;
  bool one_;
  bool factor_ = false;
  bool and_ = false;
  bool has_noun_, more_ = false, compared_ = false;
  int adjectives_ = 0, words_after_noun_ = 0;
  std::string last_;
};

}  // namespace quartet::math
