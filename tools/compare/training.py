#!/usr/bin/env python3
"""Compares the optimizer steps of //tools/compare:training_comparison with those of transformers and torch.optim.AdamW.

    bazel build -c opt //tools/compare:training_comparison
    python tools/compare/training.py --model DIR --blocks FILE [--dtype fp32|bf16] [--variant model ...] [--steps 5]
        [--micro_batches 4] [--learning_rate 2e-5] [--tolerance 1e-5] [--threads 2] [--binary PATH] [--report FILE]
        [--keep_padding_idx] [-- --zero_stage=3 ...]

FILE holds int32 token ids, [steps, 2 ranks, micro-batches, 4 sequences, 256 tokens]. Both are given the same blocks; a
step's loss is the mean next-token cross entropy before its update, its norm that of the whole gradient. In bf16 the
model computes in bf16 and AdamW updates fp32 master weights with fp32 sums of the micro-batches' gradients.

Two programs that compute in bf16 agree as far as they round at the same places. `--variant` says where transformers'
model rounds to bf16; of several each is compared, one after the other:
  model      as it is: logits, the rotary tables and the rotated queries and keys, attention's probabilities
  fp32_head  logits are fp32, of the same bf16 hidden states and weights
  wide       also the rotation and attention compute in fp32, and round their results

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
from transformers.models.llama import modeling_llama

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


def cross_entropy(model, ids, variant):
    if variant == "model":
        logits = model(input_ids=ids, use_cache=False).logits
        logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    else:
        hidden = model.model(input_ids=ids, use_cache=False).last_hidden_state
        logits = F.linear(hidden.float(), model.lm_head.weight.float())
    return F.cross_entropy(logits[:, :-1].reshape(-1, logits.shape[-1]), ids[:, 1:].reshape(-1))


def widen(model):
    """Of a Llama model: rotation and attention in fp32, their results in the model's type."""
    rotary = model.model.rotary_emb.forward
    model.model.rotary_emb.forward = lambda x, position_ids: rotary(x.float(), position_ids)
    rotate, attend = modeling_llama.apply_rotary_pos_emb, F.scaled_dot_product_attention

    def rotate_wide(q, k, cos, sin, **options):
        return tuple(x.to(q.dtype) for x in rotate(q.float(), k.float(), cos, sin, **options))

    def attend_wide(query, key, value, **options):
        return attend(query.float(), key.float(), value.float(), **options).to(query.dtype)

    modeling_llama.apply_rotary_pos_emb = rotate_wide
    F.scaled_dot_product_attention = attend_wide

    def undo():
        modeling_llama.apply_rotary_pos_emb, F.scaled_dot_product_attention = rotate, attend

    return undo


def theirs(args, variant):
    dtype = torch.float32 if args.dtype == "fp32" else torch.bfloat16
    model = transformers.AutoModelForCausalLM.from_pretrained(args.model, dtype=dtype).train()
    if not args.keep_padding_idx:
        model.model.embed_tokens.padding_idx = None
    undo = widen(model) if variant == "wide" else lambda: None
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
            loss = cross_entropy(model, ids, variant) / per_step
            loss.backward()
            total += loss.item()
            for master, p in zip(masters, parameters):
                master.grad += p.grad
                p.grad = None
        losses.append(total)
        # Not get_total_norm, which adds tens of millions of squares up in fp32: too small by 6e-5 of it and more.
        norms.append(sum(m.grad.double().square().sum().item() for m in masters) ** 0.5)
        optimizer.step()
        with torch.no_grad():
            for master, p in zip(masters, parameters):
                p.copy_(master)
        print(f"torch: step {len(losses) - 1} {losses[-1]:.6f} {norms[-1]:.5f}", file=sys.stderr, flush=True)
    undo()
    return losses, norms, time.monotonic() - begin


def compare(args, variant, report):
    loss, norm, seconds = report["loss"], report["grad_norm"], sum(report["step_s"])
    expected_loss, expected_norm, expected_seconds = theirs(args, variant)
    assert len(loss) == len(expected_loss) == args.steps
    worst = {"loss": 0.0, "gradient norm": 0.0}
    print("step  loss      torch     difference   gradient norm  torch    difference")
    for i in range(args.steps):
        now = {"loss": abs(loss[i] / expected_loss[i] - 1), "gradient norm": abs(norm[i] / expected_norm[i] - 1)}
        worst = {name: max(worst[name], now[name]) for name in worst}
        print(f"{i:4}  {loss[i]:.6f}  {expected_loss[i]:.6f}  {now['loss']:10.2e}   "
              f"{norm[i]:13.5f}  {expected_norm[i]:.5f}  {now['gradient norm']:10.2e}")
    print(f"{args.dtype}, torch {torch.__version__}, transformers {transformers.__version__}, {variant}: largest "
          f"relative difference of losses {worst['loss']:.2e}, of gradient norms {worst['gradient norm']:.2e}; "
          f"the loss fell by {100 * (1 - loss[-1] / loss[0]):.1f} %; {seconds:.0f} s and {expected_seconds:.0f} s",
          flush=True)
    return max(worst.values()) <= args.tolerance


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True)
    parser.add_argument("--blocks", required=True)
    parser.add_argument("--dtype", choices=["fp32", "bf16"], default="fp32")
    parser.add_argument("--variant", choices=["model", "fp32_head", "wide"], nargs="+", default=["model"])
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--micro_batches", type=int, default=4)
    parser.add_argument("--learning_rate", type=float, default=2e-5)
    parser.add_argument("--tolerance", type=float, default=1e-5)
    parser.add_argument("--threads", type=int, default=2, help="of torch")
    parser.add_argument("--binary", default="bazel-bin/tools/compare/training_comparison")
    parser.add_argument("--report")
    parser.add_argument("--keep_padding_idx", action="store_true")
    parser.add_argument("extra", nargs="*")
    args = parser.parse_args()

    torch.set_num_threads(args.threads)
    report = ours(args, args.extra)
    for variant in args.variant:
        within = compare(args, variant, report)
    sys.exit(0 if within else 1)


if __name__ == "__main__":
    main()
