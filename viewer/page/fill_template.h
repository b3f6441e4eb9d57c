// The last two places of a page that make_template.py has put together.
#pragma once

#include <string>
#include <string_view>

namespace quartet {

// `title` as text, `data` as JSON (viewer/page/json_text.h).
std::string FillTemplate(std::string_view page, std::string_view title, std::string_view data);

}  // namespace quartet
