#!/usr/bin/env python3
"""Compares //tools:tokenize with transformers: ids of texts, ids of chats, and texts of ids.

    bazel build //tools:tokenize
    python tools/compare/tokenizer.py --model DIR --data gsm8k.jsonl [--limit N] [--binary bazel-bin/tools/model/tokenize]

The texts are all string fields of the file's lines, and each of them cut at every length that is a multiple of 7, so
that decoding meets ids that end inside a character. Exit code 1 where anything differs, with the first difference.
Versions: tools/golden/requirements.txt.
"""

import argparse
import json
import subprocess
import sys

import transformers


def run(binary, model, flags, values):
    lines = "".join(json.dumps(value) + "\n" for value in values)
    out = subprocess.run([binary, f"--model={model}", *flags], check=True, text=True, stdout=subprocess.PIPE,
                         input=lines).stdout
    return [json.loads(line) for line in out.split("\n")[:-1]]


def compare(name, inputs, ours, theirs):
    assert len(ours) == len(inputs), f"{name}: {len(ours)} lines for {len(inputs)}"
    wrong = [i for i in range(len(inputs)) if ours[i] != theirs[i]]
    print(f"{name}: {len(inputs) - len(wrong)} of {len(inputs)} equal")
    if wrong:
        i = wrong[0]
        print(f"  first difference: {inputs[i]!r}\n  ours   {ours[i]!r}\n  theirs {theirs[i]!r}")
    return not wrong


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True)
    parser.add_argument("--data", required=True)
    parser.add_argument("--limit", type=int, default=0, help="lines of the file; 0: all")
    parser.add_argument("--binary", default="bazel-bin/tools/model/tokenize")
    args = parser.parse_args()

    tokenizer = transformers.AutoTokenizer.from_pretrained(args.model)
    texts = []
    with open(args.data) as lines:
        for number, line in enumerate(lines):
            if args.limit and number == args.limit:
                break
            texts += [value for value in json.loads(line).values() if isinstance(value, str)]

    ids = tokenizer(texts)["input_ids"]
    good = compare("ids", texts, run(args.binary, args.model, [], texts), ids)
    if tokenizer.chat_template:
        chats = [tokenizer.apply_chat_template([{"role": "user", "content": text}], add_generation_prompt=True,
                                               tokenize=True) for text in texts]
        good &= compare("chats", texts, run(args.binary, args.model, ["--chat"], texts), chats)
    pieces = [x[:n] for x in ids for n in [*range(7, len(x), 7), len(x)]]
    for flags in ([], ["--skip_special_tokens"]):
        theirs = tokenizer.batch_decode(pieces, skip_special_tokens=bool(flags), clean_up_tokenization_spaces=False)
        good &= compare(" ".join(["decoded", *flags]), pieces,
                        run(args.binary, args.model, ["--decode", *flags], pieces), theirs)
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    main()
