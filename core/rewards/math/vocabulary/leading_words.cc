#include "core/rewards/math/vocabulary/leading_words.h"

#include <functional>
#include <set>
#include <string>

namespace quartet::math {
namespace {

using Words = std::set<std::string, std::less<>>;

// Of regular verbs, in any form, that have what is counted behind them.
bool IsStoryVerb(std::string_view lower) {
  static const auto* verbs = new Words{
      "equal",    "get",      "have",   "obtain",  "find",     "give",   "yield",   "make",    "pay",        "earn",
      "need",     "cost",     "spend",  "sell",    "buy",      "take",   "use",     "eat",     "read",       "save",
      "leave",    "receive",  "travel", "run",     "walk",     "drive",  "collect", "contain", "hold",       "weigh",
      "owe",      "win",      "score",  "produce", "become",   "remain", "measure", "last",    "conclude",   "end",
      "start",    "begin",    "mean",   "charge",  "bake",     "see",    "plant",   "lose",    "add",        "raise",
      "drink",    "write",    "catch",  "pick",    "gain",     "say",    "choose",  "require", "count",      "work",
      "exercise", "climb",    "donate", "type",    "deliver",  "bring",  "hire",    "sleep",   "study",      "play",
      "swim",     "watch",    "visit",  "build",   "cook",     "cut",    "order",   "pack",    "print",      "sew",
      "knit",     "paint",    "grow",   "know",    "want",     "share",  "send",    "wash",    "clean",      "borrow",
      "lend",     "invite",   "serve",  "keep",    "throw",    "feed",   "solve",   "own",     "contribute", "complete",
      "finish",   "practice", "rent",   "order",   "purchase", "total",  "cover",   "carry"};
  for (const std::string_view ending : {"", "s", "es", "d", "ed"}) {
    if (lower.ends_with(ending) && verbs->contains(lower.substr(0, lower.size() - ending.size()))) return true;
  }
  return false;
}

}  // namespace

bool SaysValue(std::string_view lower) {
  static const auto* words = new Words{
      "is",        "are",    "was",    "were",    "got",     "has",    "had",    "found",     "gave",  "made",
      "paid",      "spent",  "sold",   "bought",  "took",    "ate",    "left",   "ran",       "drove", "held",
      "won",       "became", "saw",    "lost",    "drank",   "wrote",  "caught", "sum",       "value", "solution",
      "solutions", "roots",  "answer", "result",  "total",   "so",     "thus",   "therefore", "hence", "then",
      "that",      "which",  "it's",   "that's",  "there's", "here's", "there",  "built",     "grew",  "slept",
      "swam",      "went",   "leaves", "carries", "carried"};
  return words->contains(lower) || IsStoryVerb(lower);
}

bool SaysValueWith(std::string_view lower, std::string_view preposition) {
  static const auto* to = new Words{"equal",      "comes",     "amounts", "up",   "sums",   "adds",
                                    "simplifies", "evaluates", "reduces", "come", "amount", "leads"};
  static const auto* of =
      new Words{"total", "answer", "result", "sum",    "average",  "mean",   "area",        "volume",   "cost",
                "price", "profit", "speed",  "length", "distance", "amount", "probability", "perimeter"};
  static const auto* at = new Words{"ends", "starts", "begins", "arrives", "leaves", "arrive",
                                    "end",  "start",  "stands", "arrived", "ended",  "started"};
  // "picked up", "gave away", "worked for"
  if ((preposition == "up" || preposition == "away" || preposition == "back" || preposition == "for") &&
      IsStoryVerb(lower))
    return true;
  if (preposition == "to") return to->contains(lower);
  if (preposition == "of") return of->contains(lower);
  if (preposition == "at") return at->contains(lower);
  return (preposition == "in" || preposition == "with" || preposition == "for") &&
         (lower == "results" || lower == "result" || lower == "up");
}

bool IsFillerWord(std::string_view lower) {
  static const auto* words = new Words{
      "about", "approximately", "approx", "exactly",  "simply",     "just",    "therefore", "thus",    "hence",
      "then",  "now",           "also",   "still",    "finally",    "only",    "indeed",    "clearly", "precisely",
      "us",    "him",           "her",    "them",     "me",         "the",     "a",         "an",      "number",
      "value", "obviously",     "always", "together", "altogether", "already", "so",        "again",   "actually"};
  return words->contains(lower);
}

bool MayBe(std::string_view lower) {
  static const auto* words =
      new Words{"must", "should", "will", "would", "to", "then", "therefore", "thus", "also", "hence", "shall"};
  return words->contains(lower);
}

}  // namespace quartet::math
