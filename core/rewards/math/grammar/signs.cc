#include "core/rewards/math/grammar/signs.h"

#include <cstdint>
#include <unordered_map>

#include "absl/strings/ascii.h"

namespace quartet::math {
namespace {

constexpr char32_t kRoot = 0x221A;

const std::unordered_map<char32_t, std::string_view>& Signs() {
  static const auto* signs = new std::unordered_map<char32_t, std::string_view>{
      // Operators and relations.
      {0x2212, "-"},
      {0x2013, "-"},
      {0x2010, "-"},
      {0x2011, "-"},
      {0x2012, "-"},
      {0xFE63, "-"},
      {0xD7, "\\times "},
      {0xB7, "\\cdot "},
      {0x22C5, "\\cdot "},
      {0x2219, "\\times "},
      {0xF7, "\\div "},
      {0x2215, "/"},
      {0x2044, "/"},
      {0xB1, "\\pm "},
      {0x2213, "\\mp "},
      {kRoot, "\\sqrt "},
      {0x221B, "\\sqrt[3] "},
      {0x221E, "\\infty "},
      {0x2264, "\\leq "},
      {0x2265, "\\geq "},
      {0x2A7D, "\\leq "},
      {0x2A7E, "\\geq "},
      {0x2260, "\\neq "},
      {0x2248, "\\approx "},
      {0x2261, "\\equiv "},
      {0x2208, "\\in "},
      {0x222A, "\\cup "},
      {0x2229, "\\cap "},
      {0x2227, "\\land "},
      {0x2228, "\\lor "},
      {0x2216, "\\setminus "},
      {0x2205, "\\emptyset "},
      {0x2223, "|"},
      {0x2220, "\\angle "},
      {0x25B3, "\\triangle "},
      {0x2032, "'"},
      // Brackets.
      {0x27E8, "\\langle "},
      {0x27E9, "\\rangle "},
      {0x230A, "\\lfloor "},
      {0x230B, "\\rfloor "},
      {0x2308, "\\lceil "},
      {0x2309, "\\rceil "},
      // Units.
      {0xB0, "^\\circ "},
      {0xBA, "^\\circ "},
      {0x20AC, "\\euro "},
      {0xA3, "\\pounds "},
      {0xA5, "\\yen "},
      {0xFFE5, "\\yen "},
      {0x20B9, "\\rupee "},
      {0x2126, "\\Omega "},
      {0xB5, "\\mu "},
      {0x2103, "^\\circ \\text{C}"},
      {0x2109, "^\\circ \\text{F}"},
      // Sets.
      {0x211D, "\\mathbb{R}"},
      {0x2115, "\\mathbb{N}"},
      {0x2124, "\\mathbb{Z}"},
      {0x211A, "\\mathbb{Q}"},
      {0x2102, "\\mathbb{C}"},
      // Fractions.
      {0xBC, "\\frac{1}{4}"},
      {0xBD, "\\frac{1}{2}"},
      {0xBE, "\\frac{3}{4}"},
      {0x2150, "\\frac{1}{7}"},
      {0x2151, "\\frac{1}{9}"},
      {0x2152, "\\frac{1}{10}"},
      {0x2153, "\\frac{1}{3}"},
      {0x2154, "\\frac{2}{3}"},
      {0x2155, "\\frac{1}{5}"},
      {0x2156, "\\frac{2}{5}"},
      {0x2157, "\\frac{3}{5}"},
      {0x2158, "\\frac{4}{5}"},
      {0x2159, "\\frac{1}{6}"},
      {0x215A, "\\frac{5}{6}"},
      {0x215B, "\\frac{1}{8}"},
      {0x215C, "\\frac{3}{8}"},
      {0x215D, "\\frac{5}{8}"},
      {0x215E, "\\frac{7}{8}"},
      // Spaces and punctuation.
      {0xA0, " "},
      {0x202F, " "},
      {0x205F, " "},
      {0x3000, " "},
      {0x1680, " "},
      {0x85, "\n"},
      {0x2028, "\n"},
      {0x2029, "\n"},
      {0x200B, ""},
      {0x200C, ""},
      {0x200D, ""},
      {0x2060, ""},
      {0x2061, ""},
      {0x2062, ""},
      {0xFE0F, ""},
      {0xFEFF, ""},
      {0x3001, ", "},
      {0x3002, ". "},
      {0x2018, "'"},
      {0x2019, "'"},
      {0x201C, "\""},
      {0x201D, "\""},
      {0x201E, "\""},
      {0x201F, "\""},
      {0xAB, "\""},
      {0xBB, "\""},
  };
  return *signs;
}

// From alpha, U+03B1, and Alpha, U+0391; "" where Greek has the letter of another alphabet, or none.
constexpr std::string_view kGreek[] = {
    "alpha", "beta", "gamma", "delta", "epsilon", "zeta",  "eta", "theta",   "iota", "kappa", "lambda", "mu",   "nu",
    "xi",    "",     "pi",    "rho",   "",        "sigma", "tau", "upsilon", "phi",  "chi",   "psi",    "omega"};
constexpr std::string_view kCapitalGreek[] = {"",      "",       "Gamma", "Delta", "",   "",    "",     "Theta", "",
                                              "",      "Lambda", "",      "",      "Xi", "",    "Pi",   "",      "",
                                              "Sigma", "",       "",      "Phi",   "",   "Psi", "Omega"};

std::string_view GreekName(char32_t c) {
  if (c >= 0x3B1 && c < 0x3B1 + std::size(kGreek)) return kGreek[c - 0x3B1];
  if (c >= 0x391 && c < 0x391 + std::size(kCapitalGreek)) return kCapitalGreek[c - 0x391];
  if (c == 0x3D5) return "phi";
  if (c == 0x3F5) return "epsilon";
  return "";
}

// The letter or digit that `c` is in another style or width; 0: none.
char Styled(char32_t c) {
  if (c >= 0xFF01 && c <= 0xFF5E) return static_cast<char>(c - 0xFF01 + '!');
  if (c >= 0x1D7CE && c <= 0x1D7FF) return static_cast<char>('0' + (c - 0x1D7CE) % 10);
  if (c >= 0x1D400 && c <= 0x1D6A3) {
    const int letter = static_cast<int>((c - 0x1D400) % 52);
    return static_cast<char>(letter < 26 ? 'A' + letter : 'a' + letter - 26);
  }
  if (c == 0x210E) return 'h';
  for (const char32_t zero : {U'\u0660', U'\u06f0', U'\u0966', U'\u09e6'}) {  // Arabic, Persian, Hindi, Bengali
    if (c >= zero && c < zero + 10) return static_cast<char>('0' + (c - zero));
  }
  return 0;
}

char Raised(char32_t c) {
  switch (c) {
    case 0x2070:
      return '0';
    case 0xB9:
      return '1';
    case 0xB2:
      return '2';
    case 0xB3:
      return '3';
    case 0x207A:
      return '+';
    case 0x207B:
      return '-';
    case 0x207D:
      return '(';
    case 0x207E:
      return ')';
    case 0x207F:
      return 'n';
    case 0x02E3:
      return 'x';
    default:
      return c >= 0x2074 && c <= 0x2079 ? static_cast<char>('4' + (c - 0x2074)) : 0;
  }
}

char Lowered(char32_t c) {
  switch (c) {
    case 0x208A:
      return '+';
    case 0x208B:
      return '-';
    case 0x2099:
      return 'n';
    case 0x1D62:
      return 'i';
    case 0x2093:
      return 'x';
    default:
      return c >= 0x2080 && c <= 0x2089 ? static_cast<char>('0' + (c - 0x2080)) : 0;
  }
}

// The character at the front, and how many bytes it has; what is no UTF-8 is bytes.
std::pair<char32_t, size_t> Front(std::string_view text) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(text[i]); };
  const size_t length = byte(0) < 0x80 ? 1 : byte(0) >= 0xF0 ? 4 : byte(0) >= 0xE0 ? 3 : byte(0) >= 0xC0 ? 2 : 1;
  if (length == 1 || length > text.size()) return {byte(0), 1};
  char32_t c = byte(0) & (0xFF >> (length + 1));
  for (size_t i = 1; i < length; ++i) {
    if ((byte(i) & 0xC0) != 0x80) return {byte(0), 1};
    c = c << 6 | (byte(i) & 0x3F);
  }
  return {c, length};
}

}  // namespace

std::string WithPlainSigns(std::string_view text) {
  std::string plain;
  char script = 0;  // what is open: '^' or '_'
  while (!text.empty()) {
    if (script == 0 && (text[0] & 0x80) == 0) {
      plain += text[0];
      text.remove_prefix(1);
      continue;
    }
    const auto [c, length] = Front(text);
    const std::string_view bytes = text.substr(0, length);
    text.remove_prefix(length);
    const bool ascii = length == 1;
    const char raised = ascii ? 0 : Raised(c), lowered = ascii ? 0 : Lowered(c);
    const char wanted = raised != 0 ? '^' : lowered != 0 ? '_' : 0;
    if (wanted != script) {
      if (script != 0) plain += '}';
      if (wanted != 0) (plain += wanted) += '{';
      script = wanted;
    }
    if (wanted != 0) {
      plain += raised != 0 ? raised : lowered;
    } else if (const char styled = Styled(c)) {
      plain += styled;
    } else if (const std::string_view greek = GreekName(c); !greek.empty()) {
      ((plain += '\\') += greek) += ' ';
    } else if (c >= 0x2000 && c <= 0x200A) {
      plain += ' ';
    } else if (c >= 0x300A && c <= 0x3011) {  // brackets and quotes of Chinese
      plain += '"';
    } else if (const auto sign = Signs().find(c); sign != Signs().end()) {
      plain += sign->second;
      // The sign reaches over a number, where LaTeX takes its first digit.
      if (c == kRoot && !text.empty() && absl::ascii_isdigit(static_cast<unsigned char>(text[0]))) {
        size_t digits = 0;
        while (digits < text.size() && absl::ascii_isdigit(static_cast<unsigned char>(text[digits]))) ++digits;
        ((plain += '{') += text.substr(0, digits)) += '}';
        text.remove_prefix(digits);
      }
    } else {
      plain += bytes;
    }
  }
  if (script != 0) plain += '}';
  return plain;
}

}  // namespace quartet::math
