"""Writes the tables by which utf8proc and PCRE2 know the characters that Hugging Face's tokenizers know, and the tests'
expected values.

Usage: python3 tools/golden/make_unicode_tables.py core/tokenizer/unicode

Held against each other, character by character: tokenizers 0.22.2, which normalizes by Unicode 9, matches expressions by
Oniguruma's Unicode 16 and takes the rest from Rust's libraries; and Debian 12's libraries, utf8proc 2.8 (Unicode 15) and
PCRE2 10.42 (Unicode 14). Writes unicode_tables.inc, regex_properties.inc and testdata/unicode.json.
"""

import ctypes
import json
import pathlib
import random
import sys

import tokenizers
from tokenizers import AddedToken, Regex, Tokenizer, models, normalizers, pre_tokenizers

CHARACTERS = [c for c in range(0x110000) if not 0xD800 <= c < 0xE000]
TEXT = "".join(map(chr, CHARACTERS))
FORMS = ["NFC", "NFD", "NFKC", "NFKD"]
CATEGORIES = ("L Lu Ll Lt Lm Lo M Mn Mc Me N Nd Nl No P Pc Pd Ps Pe Pi Pf Po S Sm Sc Sk So Z Zs Zl Zp C Cc Cf Co Cn "
              "Alphabetic Uppercase Lowercase White_Space").split()
SCRIPTS = """Adlam Ahom Anatolian_Hieroglyphs Arabic Armenian Avestan Balinese Bamum Bassa_Vah Batak Bengali Bhaiksuki Bopomofo
Brahmi Braille Buginese Buhid Canadian_Aboriginal Carian Caucasian_Albanian Chakma Cham Cherokee Chorasmian Common Coptic
Cuneiform Cypriot Cypro_Minoan Cyrillic Deseret Devanagari Dives_Akuru Dogra Duployan Egyptian_Hieroglyphs Elbasan Elymaic
Ethiopic Georgian Glagolitic Gothic Grantha Greek Gujarati Gunjala_Gondi Gurmukhi Han Hangul Hanifi_Rohingya Hanunoo Hatran
Hebrew Hiragana Imperial_Aramaic Inherited Inscriptional_Pahlavi Inscriptional_Parthian Javanese Kaithi Kannada Katakana
Kayah_Li Kharoshthi Khitan_Small_Script Khmer Khojki Khudawadi Lao Latin Lepcha Limbu Linear_A Linear_B Lisu Lycian Lydian
Mahajani Makasar Malayalam Mandaic Manichaean Marchen Masaram_Gondi Medefaidrin Meetei_Mayek Mende_Kikakui
Meroitic_Cursive Meroitic_Hieroglyphs Miao Modi Mongolian Mro Multani Myanmar Nabataean Nandinagari New_Tai_Lue Newa Nko
Nushu Nyiakeng_Puachue_Hmong Ogham Ol_Chiki Old_Hungarian Old_Italic Old_North_Arabian Old_Permic Old_Persian Old_Sogdian
Old_South_Arabian Old_Turkic Old_Uyghur Oriya Osage Osmanya Pahawh_Hmong Palmyrene Pau_Cin_Hau Phags_Pa Phoenician
Psalter_Pahlavi Rejang Runic Samaritan Saurashtra Sharada Shavian Siddham SignWriting Sinhala Sogdian Sora_Sompeng Soyombo
Sundanese Syloti_Nagri Syriac Tagalog Tagbanwa Tai_Le Tai_Tham Tai_Viet Takri Tamil Tangsa Tangut Telugu Thaana Thai
Tibetan Tifinagh Tirhuta Toto Ugaritic Vai Vithkuqi Wancho Warang_Citi Yezidi Yi Zanabazar_Square""".split()
# As core/tokenizer/unicode/regex.cc writes \w.
WORD = r"\p{Alphabetic}\p{M}\p{Nd}\p{Pc}"

utf8proc = ctypes.CDLL("libutf8proc.so.2")
pcre2 = ctypes.CDLL("libpcre2-8.so.0")


def check_versions():
    utf8proc.utf8proc_unicode_version.restype = ctypes.c_char_p
    version = ctypes.create_string_buffer(64)
    pcre2.pcre2_config_8(10, version)  # PCRE2_CONFIG_UNICODE_VERSION
    found = (tokenizers.__version__, utf8proc.utf8proc_unicode_version(), version.value)
    if found != ("0.22.2", b"15.0.0", b"14.0.0"):
        sys.exit(f"tokenizers, utf8proc's and PCRE2's Unicode are {found}: not those that the tables are pinned to")


def ranges(characters):
    found = []
    for c in sorted(characters):
        if found and found[-1][1] == c - 1:
            found[-1][1] = c
        else:
            found.append([c, c])
    return found


# ---- utf8proc ----


class Property(ctypes.Structure):
    _fields_ = [("category", ctypes.c_int16), ("combining_class", ctypes.c_int16)]


utf8proc.utf8proc_get_property.restype = ctypes.POINTER(Property)
utf8proc.utf8proc_category_string.restype = ctypes.c_char_p
utf8proc.utf8proc_map.restype = ctypes.c_ssize_t
ctypes.pythonapi.free = ctypes.CDLL(None).free
ctypes.pythonapi.free.argtypes = [ctypes.c_void_p]
STABLE, COMPAT, COMPOSE, DECOMPOSE = 2, 4, 8, 16
OPTIONS = {"NFC": COMPOSE, "NFD": DECOMPOSE, "NFKC": COMPOSE | COMPAT, "NFKD": DECOMPOSE | COMPAT}
HF_FORMS = {form: getattr(normalizers, form)() for form in FORMS}


def utf8proc_form(text, form):
    out, data = ctypes.c_void_p(), text.encode()
    size = utf8proc.utf8proc_map(data, ctypes.c_ssize_t(len(data)), ctypes.byref(out), STABLE | OPTIONS[form])
    result = ctypes.string_at(out, size).decode()
    ctypes.pythonapi.free(out)
    return result


def new_to_the_normalizer():
    """Characters that utf8proc maps, orders or composes and the normalizer of tokenizers does not."""
    found = set()
    for c in CHARACTERS:
        text = chr(c)
        for form in FORMS:
            if HF_FORMS[form].normalize_str(text) != (mapped := utf8proc_form(text, form)):
                found.add(c)
                if form == "NFD":
                    found.update(map(ord, mapped))  # nor does it compose them
        if HF_FORMS["NFD"].normalize_str(text) != text:
            continue
        # A class other than 0 moves the character before one of a higher class, or after one of a lower one.
        samples = ("a\u0345" + text, "a" + text + "\u0334")
        moves = any(HF_FORMS["NFD"].normalize_str(sample) != sample for sample in samples)
        if moves != (utf8proc.utf8proc_get_property(c).contents.combining_class != 0):
            found.add(c)
    return found


def normalize(text, form, itself):
    """As core/tokenizer/unicode/unicode.cc does it: characters of `itself` stand between parts that are normalized alone."""
    parts = [""]
    for character in text:
        if ord(character) in itself:
            parts += [character, ""]
        else:
            parts[-1] += character
    return "".join(part if i % 2 else utf8proc_form(part, form) for i, part in enumerate(parts))


def isolated(pre_tokenizer):
    """Characters that `pre_tokenizer` cuts off."""
    found = set()
    for at in range(0, len(CHARACTERS), 5000):
        text = "".join("a" + chr(c) for c in CHARACTERS[at : at + 5000]) + "a"
        found |= {ord(piece) for piece, _ in pre_tokenizer.pre_tokenize_str(text) if len(piece) == 1 and piece != "a"}
    return found


def word_characters():
    """Characters beside which an added token with single_word is not found."""
    tokenizer = Tokenizer(models.WordLevel({"<unk>": 0}, unk_token="<unk>"))
    tokenizer.add_tokens([AddedToken("\x01", single_word=True)])
    found = set()
    for at in range(0, len(CHARACTERS), 5000):
        part = [c for c in CHARACTERS[at : at + 5000] if c != 1]
        encoding = tokenizer.encode("".join("\x01" + chr(c) + " " for c in part), add_special_tokens=False)
        alone = {begin for token, (begin, _) in zip(encoding.ids, encoding.offsets) if token == 1}
        found |= {c for i, c in enumerate(part) if 3 * i not in alone}
    return found


# ---- PCRE2 ----

for name in ("pcre2_compile_8", "pcre2_match_data_create_8", "pcre2_get_ovector_pointer_8"):
    getattr(pcre2, name).restype = ctypes.c_void_p
UTF, UCP, NO_UTF_CHECK = 0x00080000, 0x00020000, 0x40000000
BYTES = TEXT.encode()


def pcre2_class(members):
    error, offset, pattern = ctypes.c_int(), ctypes.c_size_t(), f"[{members}]+".encode()
    code = pcre2.pcre2_compile_8(pattern, ctypes.c_size_t(len(pattern)), UTF | UCP, ctypes.byref(error),
                                 ctypes.byref(offset), None)
    if not code:
        raise ValueError(f"PCRE2 does not know [{members}]")
    data = ctypes.c_void_p(pcre2.pcre2_match_data_create_8(1, None))
    found, at = set(), 0
    while at < len(BYTES):
        count = pcre2.pcre2_match_8(ctypes.c_void_p(code), BYTES, ctypes.c_size_t(len(BYTES)), ctypes.c_size_t(at),
                                    NO_UTF_CHECK, data, None)
        if count < 0:
            break
        range_ = ctypes.cast(pcre2.pcre2_get_ovector_pointer_8(data), ctypes.POINTER(ctypes.c_size_t))
        found.update(map(ord, BYTES[range_[0] : range_[1]].decode()))
        at = range_[1]
    return found


def oniguruma_class(members):
    return set(map(ord, normalizers.Replace(Regex(f"[^{members}]"), "").normalize_str(TEXT)))


def class_members():
    """By property, in lower case and without "_": the members of a class of PCRE2 that has Oniguruma's characters, and the
    characters that PCRE2's own property differs in. Properties that are the same are left out."""
    found = {}
    names = [(name, rf"\p{{{name}}}", rf"\p{{{name}}}") for name in CATEGORIES]
    names += [(name, rf"\p{{{name}}}", rf"\p{{sc:{name}}}") for name in SCRIPTS]
    names += [("w", r"\w", WORD), ("posix alpha", "[:alpha:]", r"\p{Alphabetic}"), ("posix upper", "[:upper:]", r"\p{Uppercase}"),
              ("posix lower", "[:lower:]", r"\p{Lowercase}"), ("posix alnum", "[:alnum:]", r"\p{Alphabetic}\p{Nd}")]
    for name, theirs, ours in names:
        try:
            their_set, our_set = oniguruma_class(theirs), pcre2_class(ours)
        except Exception as error:
            print(f"left out: {name}: {error}")
            continue
        if name in ("C", "Cn"):  # half of what has no category is a surrogate, which no text holds
            our_set -= set(range(0xD800, 0xE000))
        if their_set == our_set and not name.startswith(("w", "posix")):
            continue
        gone, new = our_set - their_set, their_set - our_set
        members = escaped(their_set) if gone else ours + escaped(new)
        found[name.lower().replace("_", "")] = (members, gone | new)
    return found


def escaped(characters):
    return "".join(f"\\x{{{a:x}}}" + (f"-\\x{{{b:x}}}" if b > a else "") for a, b in ranges(characters))


# ---- Files ----


def range_table(name, characters):
    items = [f"{{0x{first:x}, 0x{last:x}}}" for first, last in ranges(characters)]
    return f"constexpr CharRange {name}[] = {{{', '.join(items)}}};\n"


HEAD = """// Made by tools/golden/make_unicode_tables.py.
// clang-format off
"""


def main(folder):
    check_versions()
    itself = new_to_the_normalizer()
    category = {c: utf8proc.utf8proc_category_string(c).decode() for c in CHARACTERS}
    numeric = isolated(pre_tokenizers.Digits(individual_digits=True))
    our_numeric = {c for c in CHARACTERS if category[c] in ("Nd", "Nl", "No")}
    assert not our_numeric - numeric
    punctuation = {c for c in isolated(pre_tokenizers.Punctuation("isolated")) if c >= 0x80}
    our_punctuation = {c for c in CHARACTERS if c >= 0x80 and category[c][0] == "P"}
    words = word_characters()
    our_words = {c for c in CHARACTERS if category[c] in "Lu Ll Lt Lm Lo Mn Mc Me Nd Nl Pc".split() or c in (0x200C, 0x200D)
                 or 0x24B6 <= c <= 0x24E9 or 0x1F130 <= c <= 0x1F149 or 0x1F150 <= c <= 0x1F169 or 0x1F170 <= c <= 0x1F189}
    assert not our_words - words
    lower = normalizers.Lowercase()
    pairs = [(c, lower.normalize_str(chr(c))) for c in CHARACTERS if c != 0x130]
    lowercase = [(c, ord(text)) for c, text in pairs if text != chr(utf8proc.utf8proc_tolower(c))]
    tables = HEAD + range_table("kNormalizesToItself", itself) + range_table("kMoreNumeric", numeric - our_numeric)
    tables += range_table("kMorePunctuation", punctuation - our_punctuation)
    tables += range_table("kNoPunctuation", our_punctuation - punctuation) + range_table("kMoreWordChars", words - our_words)
    items = [f"{{0x{upper:x}, 0x{low:x}}}" for upper, low in lowercase]
    tables += f"constexpr LowercasePair kMoreLowercase[] = {{{', '.join(items)}}};\n"
    (folder / "unicode_tables.inc").write_text(tables)

    properties = class_members()
    lines = [f'{{"{name}", R"({members})"}},\n' for name, (members, _) in sorted(properties.items())]
    (folder / "regex_properties.inc").write_text(HEAD + "".join(lines))

    draw = random.Random(3)
    marks = sorted(c for c in oniguruma_class(r"\p{M}"))
    edges = sorted({c for pair in ranges(itself) for c in pair})
    def text(pool):
        return "".join(chr(draw.choice(draw.choice(pool))) for _ in range(draw.randrange(2, 12)))
    normal = []
    for _ in range(250):
        sample = text([edges, edges, marks, [0x61, 0xE9, 0x4F60, 0xAC00, 0x1100, 0x1161, 0x41, 0x2126, 0xFB01, 0x11935, 0x11930]])
        forms = [HF_FORMS[form].normalize_str(sample) for form in FORMS]
        assert forms == [normalize(sample, form, itself) for form in FORMS], ascii(sample)
        normal.append([sample] + forms)
    patterns = [r"\p{L}+", r"[^\r\n\p{L}\p{N}]?\p{L}+", r"[^\s\p{L}\p{N}]+", r"\P{L}+", r"\p{N}{1,3}", r"\w+", r"\W+", r"\d", r"\D+",
                r"\p{Han}+", r"\p{C}", r"\P{C}+", r"[[:alpha:]]+", r"[[:upper:][:lower:]]+", r"\b.", r"[\p{P}\p{S}]+", r"\p{M}+", r"[\p{Mn}\p{Mc}]", r"[\P{L}]+", r"[\D]+", r"[\p{C}\p{Z}]"]
    edges = sorted({c for _, characters in properties.values() for pair in ranges(characters) for c in pair})
    edges += [c + 1 for c in edges if c + 1 not in edges]
    matches = []
    for pattern in patterns:
        split = pre_tokenizers.Split(Regex(pattern), "removed", invert=True)
        for _ in range(15):
            sample = text([edges, edges, marks, [0x20, 0x61, 0x31, 0x2E, 0x4E00, 0x301, 0x5F, 0xA, 0xE0001]])
            matches.append([pattern, sample, [piece for piece, _ in split.pre_tokenize_str(sample)]])
    samples = sorted({c for pair in ranges((numeric - our_numeric) | (punctuation ^ our_punctuation) | (words - our_words)) for c in pair})
    facts = [[c, c in numeric, c in punctuation, c in words] for c in samples]
    golden = dict(normalize=normal, matches=matches, numeric_punctuation_word=facts, lowercase=lowercase)
    (folder / "testdata" / "unicode.json").write_text(json.dumps(golden, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]))
