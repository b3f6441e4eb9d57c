#!/usr/bin/env python3
"""Compares the optimizer steps of //core/zero:training_comparison with those of transformers and torch.optim.AdamW.

    bazel build -c opt //core/zero:training_comparison
    python tools/compare_training.py --model DIR --blocks FILE [--dtype fp32|bf16] [--head model fp32] [--steps 5]
        [--micro_batches 4] [--learning_rate 2e-5] [--tolerance 1e-5] [--threads 2] [--binary PATH] [--report FILE]
        [--keep_padding_idx] [-- --zero_stage=3 ...]

FILE holds int32 token ids, [steps, 2 ranks, micro-batches, 4 sequences, 256 tokens]. Both are given the same blocks; a
step's loss is the mean next-token cross entropy before its update, its norm that of the whole gradient. In bf16 the
model computes in bf16 and AdamW updates fp32 master weights with fp32 sums of the micro-batches' gradients. What
`--head` is for: transformers' model gives bf16 logits ("model"); "fp32" makes fp32 logits of the same bf16 hidden
states and the same bf16 head. With both, one comparison after the other.

transformers gives the embedding a padding_idx where config.json has a pad_token_id: torch then leaves that token's row
out of the embedding's gradient, although in these blocks it is a token like any other (SmolLM2's ends a message). It is
taken away unless --keep_padding_idx is given.

Prints both, step by step, and the largest relative differences; exit code 1 where one is beyond --tolerance in the last
comparison. --report is a file that training_comparison's line is kept in, and taken from where it exists. Arguments
after "--" go to training_comparison. Versions: tools/golden/requirements.txt, or newer.
"""

import argparse
import json
import os
import subprocess
import sys
import time

import numpy as np
import torch
import torch.nn.functional as F
import transformers

RANKS, SEQUENCES, LENGTH = 2, 4, 256


def ours(args, extra):
    command = [args.binary, f"--model={args.model}", f"--blocks={args.blocks}", f"--dtype={args.dtype}",
               f"--steps={args.steps}", f"--micro_batches={args.micro_batches}", f"--ranks={RANKS}",
               f"--micro_batch={SEQUENCES}", f"--length={LENGTH}", f"--learning_rate={args.learning_rate}", *extra]
    print(" ".join(command), flush=True)
    if args.report and os.path.exists(args.report):
        with open(args.report) as kept:
            report = json.load(kept)
        for flag in command[1:]:
            name, value = flag.removeprefix("--").split("=", 1)
            assert report[name] == value, f"{args.report} is of --{name}={report[name]}, not {value}"
        return report
    line = subprocess.run(command, check=True, text=True, stdout=subprocess.PIPE).stdout
    if args.report:
        with open(args.report, "w") as kept:
            kept.write(line)
    return json.loads(line)


def cross_entropy(model, ids, head):
    if head == "model":
        logits = model(input_ids=ids, use_cache=False).logits.float()
    else:
        hidden = model.model(input_ids=ids, use_cache=False).last_hidden_state
        logits = F.linear(hidden.float(), model.lm_head.weight.float())
    return F.cross_entropy(logits[:, :-1].reshape(-1, logits.shape[-1]), ids[:, 1:].reshape(-1))


def theirs(args, head):
    dtype = torch.float32 if args.dtype == "fp32" else torch.bfloat16
    model = transformers.AutoModelForCausalLM.from_pretrained(args.model, dtype=dtype).train()
    if not args.keep_padding_idx:
        model.model.embed_tokens.padding_idx = None
    parameters = list(model.parameters())
    masters = [p.detach().float().clone().requires_grad_() for p in parameters]
    optimizer = torch.optim.AdamW(masters, lr=args.learning_rate, betas=(0.9, 0.95), eps=1e-8, weight_decay=0)
    per_step = RANKS * args.micro_batches
    blocks = torch.from_numpy(np.fromfile(args.blocks, dtype=np.int32)[:args.steps * per_step * SEQUENCES * LENGTH])
    blocks = blocks.long().reshape(args.steps, per_step, SEQUENCES, LENGTH)
    losses, norms = [], []
    begin = time.monotonic()
    for step in blocks:
        total = 0.0
        for master in masters:
            master.grad = torch.zeros_like(master)
        for ids in step:
            loss = cross_entropy(model, ids, head) / per_step
            loss.backward()
            total += loss.item()
            for master, p in zip(masters, parameters):
                master.grad += p.grad
                p.grad = None
        losses.append(total)
        norms.append(torch.nn.utils.get_total_norm([m.grad for m in masters]).item())
        optimizer.step()
        with torch.no_grad():
            for master, p in zip(masters, parameters):
                p.copy_(master)
        print(f"torch: step {len(losses) - 1} {losses[-1]:.6f} {norms[-1]:.5f}", file=sys.stderr, flush=True)
    return losses, norms, time.monotonic() - begin


def compare(args, head, report):
    loss, norm, seconds = report["loss"], report["grad_norm"], sum(report["step_s"])
    expected_loss, expected_norm, expected_seconds = theirs(args, head)
    assert len(loss) == len(expected_loss) == args.steps
    worst = {"loss": 0.0, "gradient norm": 0.0}
    print("step  loss      torch     difference   gradient norm  torch    difference")
    for i in range(args.steps):
        now = {"loss": abs(loss[i] / expected_loss[i] - 1), "gradient norm": abs(norm[i] / expected_norm[i] - 1)}
        worst = {name: max(worst[name], now[name]) for name in worst}
        print(f"{i:4}  {loss[i]:.6f}  {expected_loss[i]:.6f}  {now['loss']:10.2e}   "
              f"{norm[i]:13.5f}  {expected_norm[i]:.5f}  {now['gradient norm']:10.2e}")
    print(f"{args.dtype}, torch {torch.__version__}, transformers {transformers.__version__}, head {head}: largest "
          f"relative difference of losses {worst['loss']:.2e}, of gradient norms {worst['gradient norm']:.2e}; "
          f"the loss fell by {100 * (1 - loss[-1] / loss[0]):.1f} %; {seconds:.0f} s and {expected_seconds:.0f} s",
          flush=True)
    return max(worst.values()) <= args.tolerance


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True)
    parser.add_argument("--blocks", required=True)
    parser.add_argument("--dtype", choices=["fp32", "bf16"], default="fp32")
    parser.add_argument("--head", choices=["model", "fp32"], nargs="+", default=["model"])
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--micro_batches", type=int, default=4)
    parser.add_argument("--learning_rate", type=float, default=2e-5)
    parser.add_argument("--tolerance", type=float, default=1e-5)
    parser.add_argument("--threads", type=int, default=2, help="of torch")
    parser.add_argument("--binary", default="bazel-bin/core/zero/training_comparison")
    parser.add_argument("--report")
    parser.add_argument("--keep_padding_idx", action="store_true")
    parser.add_argument("extra", nargs="*")
    args = parser.parse_args()

    torch.set_num_threads(args.threads)
    report = ours(args, args.extra)
    for head in args.head:
        within = compare(args, head, report)
    sys.exit(0 if within else 1)


if __name__ == "__main__":
    main()
