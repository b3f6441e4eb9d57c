"""Makes orchestrator/data/testdata/conversations.json: conversations, their ids and which of them are the assistant's.

Usage: python3 tools/golden/make_conversations.py core/tokenizer/testdata orchestrator/data/testdata   (transformers 4.57.6)

The templates beside it mark what the assistant writes with {% generation %}; transformers tokenises the conversation as
one text and finds the marked tokens in it by their characters. A row: the tokenizer, the template, the messages, their ids
up to the end of the last answer, the mask of all answers, that of the last one.
"""

import json
import pathlib
import sys

from transformers import AutoTokenizer

USER, ASSISTANT, SYSTEM = "user", "assistant", "system"
CONVERSATIONS = [
    [(USER, "What is 2 + 2?"), (ASSISTANT, "4")],
    [(SYSTEM, "Answer in one word."), (USER, "Wie groß ist der Deich?\n\nSag es."), (ASSISTANT, "Größer.\nViel größer!")],
    [(USER, "1, 2"), (ASSISTANT, "3"), (USER, "and then?  "), (ASSISTANT, "4, 5 and 6"), (USER, "今日は"), (ASSISTANT, "天気がいい 😀")],
    [(SYSTEM, "Be quick."), (USER, "a"), (ASSISTANT, "def add(a, b):\n    return a + b"), (USER, "'quote' {{ b }}"), (ASSISTANT, "")],
]
CASES = [("byte_level", "chatml"), ("split_regex", "chatml"), ("split_regex", "brackets")]


def main(tokenizers, folder):
    rows = []
    for name, template in CASES:
        judge = AutoTokenizer.from_pretrained(tokenizers / name)
        source = (folder / f"{template}.jinja").read_text()
        for conversation in CONVERSATIONS:
            messages = [{"role": role, "content": content} for role, content in conversation]
            made = judge.apply_chat_template(
                messages, chat_template=source, tokenize=True, return_dict=True, return_assistant_tokens_mask=True
            )
            ids, mask = made["input_ids"], made["assistant_masks"]
            end = len(mask) - mask[::-1].index(1)
            # The last answer: from behind the last opening of the assistant's turn.
            prompt = judge.apply_chat_template(
                messages[:-1], chat_template=source, tokenize=True, add_generation_prompt=True
            )
            assert ids[: len(prompt)] == prompt, (name, template, messages)
            last = [0] * len(prompt) + mask[len(prompt) : end]
            assert 0 not in last[len(prompt) :]
            rows.append([name, template, messages, ids[:end], mask[:end], last])
    text = ",\n".join(json.dumps(row) for row in rows)
    (folder / "conversations.json").write_text(f"[\n{text}\n]\n")


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2]))
