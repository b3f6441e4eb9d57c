// What the rule "choice" sees of a text: words that it understands, the letters that stand as choices, and where
// sentences end. Thread safe.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace quartet {

// A word of the text. Those that are understood have one meaning for all their forms and languages: "isn't" is "is" and
// "not", "ruled out" and 排除 are "eliminate" (the table in choice_words.cc has them all).
struct ChoiceWord {
  enum class Kind {
    kKnown,   // `text` is its meaning
    kOther,   // a word, number or formula that is not understood
    kLetter,  // one of the choices, which stands alone: `text` is its capital
    kMark,    // ",", ":", "=" and the like; brackets, quotes and styles are none
    kEnd,     // of a sentence: ".", "!", "?", ";" or a line's end
  };
  Kind kind;
  std::string text;
  // Of letters:
  bool enclosed = false;  // "(B)", "**B**", "\text{B}"
  bool heads = false;     // ")", "." or ":" and words come behind: "B) Paris"
};

// In time linear in the text, which is as Plain gives it. With `any_case` small letters are choices, too; else those in
// brackets and behind "option" or "answer" alone.
std::vector<ChoiceWord> ChoiceWords(std::string_view text, std::string_view choices, bool any_case);

}  // namespace quartet
