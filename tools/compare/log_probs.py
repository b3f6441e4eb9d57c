#!/usr/bin/env python3
"""Compares //tools:log_probs with transformers on the texts of a JSONL file.

    bazel build //tools:log_probs
    python tools/compare/log_probs.py --model DIR --data gsm8k.jsonl [--limit 100] [--dtype fp32]
        [--binary bazel-bin/tools/model/log_probs]

A text is the fields "question" and "answer" of a line, tokenised by transformers. The judge is always fp32 logits of a
model in --dtype. Prints the largest and the mean difference; exit code 1 where the largest is beyond --tolerance.
Versions: tools/golden/requirements.txt.
"""

import argparse
import json
import subprocess
import sys
import time

import numpy as np
import torch
import transformers


def read_ids(path, tokenizer, limit):
    ids = []
    with open(path) as lines:
        for line in lines:
            if len(ids) == limit:
                break
            record = json.loads(line)
            ids.append(tokenizer(record["question"] + "\n" + record["answer"])["input_ids"])
    return ids


def expected_log_probs(model, ids):
    with torch.no_grad():
        tokens = torch.tensor([ids])
        logits = model(input_ids=tokens, use_cache=False).logits[0, :-1].float()
        return torch.log_softmax(logits, -1).gather(-1, tokens[0, 1:, None]).squeeze(-1).numpy()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True)
    parser.add_argument("--data", required=True)
    parser.add_argument("--limit", type=int, default=100)
    parser.add_argument("--dtype", choices=["fp32", "bf16"], default="fp32")
    parser.add_argument("--binary", default="bazel-bin/tools/model/log_probs")
    parser.add_argument("--tolerance", type=float, default=1e-4)
    args = parser.parse_args()

    tokenizer = transformers.AutoTokenizer.from_pretrained(args.model)
    ids = read_ids(args.data, tokenizer, args.limit)
    tokens = sum(map(len, ids))
    begin = time.monotonic()
    out = subprocess.run([args.binary, f"--model={args.model}", f"--dtype={args.dtype}"], check=True, text=True,
                         stdout=subprocess.PIPE, input="".join(json.dumps({"ids": x}) + "\n" for x in ids)).stdout
    print(f"log_probs: {tokens} tokens in {time.monotonic() - begin:.1f} s, loading included")
    ours = [np.array(json.loads(line)["log_probs"]) for line in out.splitlines()]
    assert len(ours) == len(ids), f"{len(ours)} lines for {len(ids)}"

    dtype = torch.float32 if args.dtype == "fp32" else torch.bfloat16
    model = transformers.AutoModelForCausalLM.from_pretrained(args.model, dtype=dtype).eval()
    begin = time.monotonic()
    theirs = [expected_log_probs(model, x) for x in ids]
    print(f"transformers: {tokens} tokens in {time.monotonic() - begin:.1f} s, one text at a time")
    assert [len(x) for x in ours] == [len(x) for x in theirs]
    difference = np.abs(np.concatenate(ours) - np.concatenate(theirs))
    print(f"{args.dtype}: {len(ids)} texts, {difference.size} positions: difference max {difference.max():.3g}, "
          f"99th percentile {np.percentile(difference, 99):.3g}, mean {difference.mean():.3g}")
    sys.exit(0 if difference.max() <= args.tolerance else 1)


if __name__ == "__main__":
    main()
