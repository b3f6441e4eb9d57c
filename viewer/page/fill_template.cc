#include "viewer/page/fill_template.h"

namespace quartet {
namespace {

void ReplaceOnce(std::string_view place, std::string_view with, std::string* text) {
  const size_t at = text->find(place);
  if (at != std::string::npos) text->replace(at, place.size(), with);
}

std::string Escaped(std::string_view text) {
  std::string out;
  for (const char c : text) {
    if (c == '&')
      out += "&amp;";
    else if (c == '<')
      out += "&lt;";
    else if (c == '>')
      out += "&gt;";
    else if (c == '"')
      out += "&quot;";
    else
      out += c;
  }
  return out;
}

}  // namespace

std::string FillTemplate(std::string_view page, std::string_view title, std::string_view data) {
  std::string filled(page);
  // What is filled in is not looked at: the data's place is the last one while the title is not there, and the title's
  // comes before the data.
  ReplaceOnce("{{DATA}}", data, &filled);
  ReplaceOnce("{{TITLE}}", Escaped(title), &filled);
  return filled;
}

}  // namespace quartet
