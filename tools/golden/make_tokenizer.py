"""Makes core/tokenizer/testdata: small tokenizers, and what transformers says they do with our texts.

Usage: python3 tools/golden/make_tokenizer.py core/tokenizer/testdata   (tokenizers 0.22.2, transformers 4.57.6)
"""

import json
import pathlib
import random
import sys

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import AutoTokenizer, PreTrainedTokenizerBase

CORPUS = [
    "The quick brown fox jumps over the lazy dog; the dog doesn't mind, and the fox won't tell.",
    "A train leaves at 12:45 and arrives at 17:30. How long does the journey take? It takes 4 hours and 45 minutes.",
    "Zwölf Boxkämpfer jagen Viktor quer über den großen Sylter Deich.",
    "Съешь же ещё этих мягких французских булок, да выпей чаю.",
    "def add(a, b):\n    return a + b\n\n\nprint(add(1, 2))\n",
    "今日は天気がいいから散歩しましょう。",
]

TEXTS = CORPUS + [
    "",
    " ",
    "\n",
    "  two leading spaces",
    "trailing spaces   ",
    "tabs\tand\r\nlines\n\n\n  mixed",
    "I'll we've they're it's don't I'd I'm THEY'RE",
    "1234567890 3.14159 -42 ½ ² Ⅷ ٣٤ १२३",
    "emoji 😀 👨‍👩‍👧 🇩🇪 ✈️ end",
    "e\u0301 e\u0302\u0323 \ufb01 \u212b \u1e9b\u0323",
    "zero\u200bwidth no\u00a0break \u3000wide \u180emongolian \u0085nel \u2028line",
    "\u0000\u0001\u001f\u007f controls",
    "हिन्दी العربية עברית ไทย 한국어",
    "<|start|>user\nhello<|end|>\n<|start|>assistant\n",
    "no <|mask|>   around, word <word> and a<word>b <word>",
    "<|star <|start| <|start|><|start|>",
    "a" * 300,
    "ab" * 100 + "!" * 50,
    "\ufffd\ufffe \U0001f9d1\U0001f3fd\u200d\U0001f680 \U00020000",
    "DdSs \u0130stanbul \u01c5 \u00df",
]

SPECIAL = [AddedToken("<|pad|>", special=True), AddedToken("<|start|>", special=True), AddedToken("<|end|>", special=True)]
ODD = [AddedToken("<|mask|>", lstrip=True, rstrip=True, special=True), AddedToken("<word>", single_word=True, normalized=True)]

CHATML = (
    "{%- for message in messages %}\n"
    "    {%- if loop.first and message['role'] != 'system' %}\n"
    "        {{- '<|start|>system\\nBe brief.<|end|>\\n' }}\n"
    "    {%- endif %}\n"
    "    {{- '<|start|>' + message.role + '\\n' + message.content | trim + '<|end|>\\n' }}\n"
    "{%- endfor %}\n"
    "{%- if add_generation_prompt %}\n"
    "    {{- '<|start|>assistant\\n' }}\n"
    "{%- endif %}\n"
)

LLAMA3 = (
    "{{- bos_token }}{% for message in messages %}{% set content = '[' + message['role'] + ']\\n\\n' + "
    "message['content'] | trim + '<|end|>' %}{{ content }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '[assistant]\\n\\n' }}{% endif %}"
)


def byte_level():
    """Like GPT-2 and SmolLM2."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.train_from_iterator(
        CORPUS,
        trainers.BpeTrainer(vocab_size=400, special_tokens=SPECIAL, initial_alphabet=pre_tokenizers.ByteLevel.alphabet()),
    )
    tokenizer.add_tokens(ODD)
    return tokenizer, {"bos_token": "<|start|>", "eos_token": "<|end|>", "pad_token": "<|pad|>", "chat_template": CHATML}


def split_regex():
    """Like Llama 3 and Qwen 2.5: NFC, a pattern, byte-level, BOS by template; whole words before merges."""
    tokenizer = Tokenizer(models.BPE(ignore_merges=True))
    tokenizer.normalizer = normalizers.NFC()
    pattern = (
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
        r"|\s+(?!\S)|\s+"
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(Regex(pattern), "isolated"), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.train_from_iterator(
        CORPUS,
        trainers.BpeTrainer(vocab_size=400, special_tokens=SPECIAL, initial_alphabet=pre_tokenizers.ByteLevel.alphabet()),
    )
    tokenizer.add_tokens(ODD)
    tokenizer.post_processor = processors.Sequence(
        [
            processors.ByteLevel(trim_offsets=False),
            processors.TemplateProcessing(single="<|start|> $A <|end|>", special_tokens=[("<|start|>", 1), ("<|end|>", 2)]),
        ]
    )
    return tokenizer, {
        "bos_token": "<|start|>",
        "eos_token": {"__type": "AddedToken", "content": "<|end|>", "lstrip": False, "normalized": False, "rstrip": False,
                      "single_word": False},
        "chat_template": [{"name": "tool", "template": "no"}, {"name": "default", "template": LLAMA3}],
    }


def characters():
    """One token a character, no merges, unknown characters fused."""
    alphabet = "0123456789+-*=? abcdefghijklmnopqrstuvwxyz"
    vocab = {"<|pad|>": 0, "<|start|>": 1, "<|end|>": 2, "<unk>": 3}
    vocab.update({c: i + 4 for i, c in enumerate(alphabet)})
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[], unk_token="<unk>", fuse_unk=True))
    tokenizer.decoder = decoders.Fuse()
    tokenizer.add_special_tokens(SPECIAL)
    return tokenizer, {"bos_token": "<|start|>", "eos_token": "<|end|>", "pad_token": "<|pad|>", "unk_token": "<unk>"}


def metaspace():
    """Like Llama 2: Prepend and Replace, byte fallback, a decoder of four steps."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    specials = ["<unk>", "<s>", "</s>"]
    tokenizer.train_from_iterator(
        CORPUS,
        trainers.BpeTrainer(
            vocab_size=500,
            special_tokens=specials + ["<0x%02X>" % byte for byte in range(256)],
            limit_alphabet=60,
        ),
    )
    state = json.loads(tokenizer.to_str())
    state["added_tokens"] = [token for token in state["added_tokens"] if token["content"] in specials]
    tokenizer = Tokenizer.from_str(json.dumps(state))
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return tokenizer, {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "tokenizer_class": "LlamaTokenizerFast",
                       "add_bos_token": True, "add_eos_token": False}


def words():
    """Whole words, digits one by one."""
    tokenizer = Tokenizer(models.WordLevel(unk_token="<unk>"))
    tokenizer.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Lowercase()])
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Whitespace(), pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.Punctuation()]
    )
    tokenizer.train_from_iterator(CORPUS, trainers.WordLevelTrainer(special_tokens=["<unk>", "<|start|>", "<|end|>"]))
    return tokenizer, {"unk_token": "<unk>", "eos_token": "<|end|>", "pad_token": "<added by the configuration>"}


PUNCTUATED = " .?!,'ntmsver"


def punctuated(file_post_processor=None):
    """One token a character, those of contractions among them."""
    vocab = {"<unk>": 0, "<s>": 1, "</s>": 2} | {c: i + 3 for i, c in enumerate(PUNCTUATED)}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[], unk_token="<unk>"))
    tokenizer.decoder = decoders.Fuse()
    tokenizer.add_special_tokens([AddedToken("<s>", special=True), AddedToken("</s>", special=True)])
    if file_post_processor:
        tokenizer.post_processor = processors.TemplateProcessing(single=file_post_processor, special_tokens=[("</s>", 2)])
    return tokenizer


def cleaned():
    """Spaces are cleaned up after decoding; a class that passes over add_bos_token."""
    return punctuated("$A </s>"), {"bos_token": "<s>", "clean_up_tokenization_spaces": True, "add_bos_token": True}


def llama_class():
    """Special tokens and BOS by the defaults of the class; one of them is new to the vocabulary."""
    return punctuated("$A </s>"), {"tokenizer_class": "LlamaTokenizer", "eos_token": "<end>", "clean_up_tokenization_spaces": None}


def llama_model():
    """The class by the type of the model."""
    return punctuated(), {"tokenizer_class": None, "config.json": {"model_type": "llama"}, "add_eos_token": True}


def qwen2_model():
    """The class by the type of the model."""
    return punctuated("$A </s>"), {"tokenizer_class": None, "config.json": {"model_type": "qwen2"}, "add_bos_token": True, "pad_token": None}


def gemma_class():
    return punctuated("$A </s>"), {"tokenizer_class": "GemmaTokenizerFast", "bos_token": "<s>"}


def gpt_neox_class():
    return punctuated("$A </s>"), {"tokenizer_class": "GPTNeoXTokenizerFast", "add_bos_token": True, "add_eos_token": True}


def gpt_neox_without_bos():
    return punctuated("$A </s>"), {"tokenizer_class": "GPTNeoXTokenizerFast"}


def cohere_class():
    return punctuated(), {"tokenizer_class": "CohereTokenizerFast", "add_bos_token": False, "add_eos_token": True}


def gpt2_class():
    return punctuated("$A </s>"), {"tokenizer_class": "GPT2TokenizerFast", "add_bos_token": True, "bos_token": "<s>"}


KINDS = [byte_level, split_regex, characters, metaspace, words, cleaned, llama_class, llama_model, qwen2_model, gemma_class,
         gpt_neox_class, gpt_neox_without_bos, cohere_class, gpt2_class]


def clean_up_spaces():
    draw = random.Random(4)
    texts = ["do n't , they 've said ' no ' ; it 's I 'm we 're .", "x  ' m", "a n ' t", "' ' ' '", "x ' 've  .  ? !"]
    texts += ["".join(draw.choice(PUNCTUATED + "   '") for _ in range(draw.randrange(2, 25))) for _ in range(300)]
    return [[text, PreTrainedTokenizerBase.clean_up_tokenization(text)] for text in texts]


# Calls, their results, thoughts and a value of one's own, as the templates of model families write them.
TOOL_CHAT = """{%- if tools %}<tools>{% for tool in tools %}
{{ tool | tojson }}{% endfor %}</tools>
{%- endif %}
{%- set last = namespace(user=-1) %}
{%- for message in messages %}{% if message.role == 'user' %}{% set last.user = loop.index0 %}{% endif %}{% endfor %}
{%- for message in messages %}
{%- if message.role == 'tool' %}
    {%- if loop.first or messages[loop.index0 - 1].role != 'tool' %}<results>{% endif %}
    {{- '[' + message.content + ']' }}
    {%- if 'name' in message %}{{ '(' ~ message.name ~ ')' }}{% endif %}
    {%- if message.tool_call_id is defined %}{{ '#' ~ message['tool_call_id'] }}{% endif %}
    {%- if loop.last or messages[loop.index0 + 1].role != 'tool' %}</results>{% endif %}
{%- else %}
    {{- '<' + message.role + '>' }}
    {%- if message.reasoning_content is string and loop.index0 > last.user %}{{ '<think>' + message.reasoning_content + '</think>' }}{% endif %}
    {%- if message.content %}{{ message.content }}{% elif message.content is none %}{{ '-' }}{% endif %}
    {%- for tool_call in message.tool_calls %}
        {%- set call = tool_call.function if tool_call.function else tool_call %}
        {{- '<call>' + call.name + ' ' }}{{ call.arguments | tojson }}
        {%- for name, value in call.arguments.items() %}{{ ' ' ~ name ~ '=' ~ value }}{% endfor %}
        {{- '#' ~ tool_call.id if tool_call.id is defined }}{{ '</call>' }}
    {%- endfor %}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<assistant>' }}{% if enable_thinking is defined and enable_thinking is false %}{{ '<think></think>' }}{% endif %}{% endif %}
"""

TOOL = {"type": "function", "function": {"name": "add", "parameters": {
    "type": "object", "properties": {"b": {"type": "number"}, "a": {"type": "number", "enum": [None, 1.5]}}, "required": ["b", "a"]}}}


def call(name, arguments, **more):
    return {"type": "function", "function": {"name": name, "arguments": arguments}} | more


TOOL_CHATS = [
    [{"role": "user", "content": "1 + 2?"}],
    [{"role": "user", "content": "1 + 2?"},
     {"role": "assistant", "content": None, "tool_calls": [call("add", {"b": 2, "a": 1.0, "c": None}, id="abcdefghi")]},
     {"role": "tool", "content": "3", "tool_call_id": "abcdefghi", "name": "add"}],
    [{"role": "system", "content": "Use tools."},
     {"role": "user", "content": "both"},
     {"role": "assistant", "reasoning_content": "two calls", "content": "so",
      "tool_calls": [call("add", {"z": {"deep": [1, None, "é \"<&>'"]}, "a": True}), call("now", {})]},
     {"role": "tool", "content": "3"}, {"role": "tool", "content": "noon"},
     {"role": "assistant", "reasoning_content": "I see", "content": "3 at noon"},
     {"role": "user", "content": "thanks"},
     {"role": "assistant", "reasoning_content": "polite", "content": "welcome"}],
]


def tool_chats(judge):
    cases = []
    for messages in TOOL_CHATS:
        for kwargs in ({}, {"tools": [TOOL]}, {"enable_thinking": False}, {"enable_thinking": True, "tools": [TOOL, TOOL]}):
            text = judge.apply_chat_template(messages, chat_template=TOOL_CHAT, tokenize=False, add_generation_prompt=True, **kwargs)
            cases.append({"messages": messages, "kwargs": kwargs, "text": text})
    return {"template": TOOL_CHAT, "cases": cases}


def main(folder):
    rows = ",\n".join(json.dumps(row) for row in clean_up_spaces())
    (folder / "clean_up_spaces.json").write_text(f"[\n{rows}\n]\n")
    for make in KINDS:
        target = folder / make.__name__
        target.mkdir(parents=True, exist_ok=True)
        tokenizer, config = make()
        tokenizer.save(str(target / "tokenizer.json"), pretty=False)
        config = {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False} | config
        if "config.json" in config:
            (target / "config.json").write_text(json.dumps(config.pop("config.json")) + "\n")
        (target / "tokenizer_config.json").write_text(json.dumps(config, indent=1, ensure_ascii=False) + "\n")

        judge = AutoTokenizer.from_pretrained(target)
        draw = random.Random(1)
        size = len(judge)
        golden = {"vocab_size": size, "encode": [], "decode": [], "chat": []}
        for text in TEXTS:
            golden["encode"].append(
                [text, judge(text, add_special_tokens=False)["input_ids"], judge(text, add_special_tokens=True)["input_ids"]]
            )
        sequences = [row[2] for row in golden["encode"]]
        sequences += [[draw.randrange(size) for _ in range(draw.randrange(1, 25))] for _ in range(60)]
        for ids in sequences:
            golden["decode"].append([ids, judge.decode(ids), judge.decode(ids, skip_special_tokens=True)])
        if judge.chat_template:
            for messages in (
                [{"role": "user", "content": "  What is 2 + 2?\n"}],
                [{"role": "system", "content": "Count."}, {"role": "user", "content": "1, 2"},
                 {"role": "assistant", "content": "3"}, {"role": "user", "content": "and {{ then }}? 'quote'"}],
            ):
                golden["chat"].append(
                    [messages, judge.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)]
                )
        if make is byte_level:
            (folder / "tool_chats.json").write_text(json.dumps(tool_chats(judge), indent=1) + "\n")
        (target / "golden.json").write_text(json.dumps(golden, ensure_ascii=True) + "\n")


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]))
