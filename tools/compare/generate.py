"""Compares greedy generation of //rollout:generate with transformers', token for token.

    bazel build //rollout:generate
    python tools/compare/generate.py --model DIR --prompts train.jsonl --key question --count 16

A divergence is excused where the two best logits of transformers are within --tie of each other; each one is printed.
Also prints the largest difference of the log-probabilities up to there, and both speeds.
Needs torch 2.11 and transformers 4.57.6.
"""

import argparse
import json
import os
import subprocess
import sys
import time

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", required=True)
    parser.add_argument("--prompts", required=True)
    parser.add_argument("--key", default="question")
    parser.add_argument("--count", type=int, default=16)
    parser.add_argument("--max_new_tokens", type=int, default=128)
    parser.add_argument("--dtype", default="fp32", choices=["fp32", "bf16"])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--tie", type=float, default=1e-4)
    parser.add_argument("--binary", default="bazel-bin/rollout/generate")
    args = parser.parse_args()

    torch.set_num_threads(args.threads)
    tokenizer = AutoTokenizer.from_pretrained(args.model)
    with open(args.prompts) as lines:
        texts = [json.loads(line)[args.key] for line, _ in zip(lines, range(args.count))]
    prompts = [
        tokenizer.apply_chat_template([{"role": "user", "content": text}], add_generation_prompt=True) for text in texts
    ]

    run = subprocess.run(
        [
            args.binary,
            f"--model={args.model}",
            f"--dtype={args.dtype}",
            f"--max_new_tokens={args.max_new_tokens}",
        ],
        input="".join(json.dumps({"ids": p}) + "\n" for p in prompts),
        capture_output=True,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": str(args.threads)},
    )
    if run.returncode != 0:
        sys.exit(run.stderr)
    print("ours:", run.stderr.strip().splitlines()[-1])
    ours = [json.loads(line) for line in run.stdout.splitlines()]

    dtype = torch.float32 if args.dtype == "fp32" else torch.bfloat16
    model = AutoModelForCausalLM.from_pretrained(args.model, dtype=dtype).eval()
    equal = excused = 0
    largest = 0.0
    start = time.time()
    tokens = 0
    for i, prompt in enumerate(prompts):
        with torch.no_grad():
            out = model.generate(
                torch.tensor([prompt]),
                attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
                do_sample=False,
                temperature=None,
                top_p=None,
                max_new_tokens=args.max_new_tokens,
                output_logits=True,
                return_dict_in_generate=True,
            )
        theirs = out.sequences[0, len(prompt) :].tolist()
        tokens += len(theirs)
        logits = torch.stack([x[0].float() for x in out.logits])
        log_probs = torch.log_softmax(logits, -1)
        mine = ours[i]["ids"]
        same = next((t for t, (a, b) in enumerate(zip(mine, theirs)) if a != b), min(len(mine), len(theirs)))
        for t in range(same):
            largest = max(largest, abs(log_probs[t, theirs[t]].item() - ours[i]["log_probs"][t]))
        if mine == theirs:
            equal += 1
            continue
        best = logits[same].topk(2).values
        gap = (best[0] - best[1]).item()
        excused += gap <= args.tie
        print(f"prompt {i}: diverges at token {same} of {len(theirs)}; the two best logits are {gap:.2e} apart")
    print(f"transformers, one prompt at a time: {tokens / (time.time() - start):.0f} tokens/s")
    print(f"{equal} of {len(prompts)} equal, {excused} excused; largest difference of log-probabilities {largest:.2e}")
    sys.exit(equal + excused != len(prompts))


main()
