#!/usr/bin/env python3
"""Compares the gradient of //tools/compare:training_comparison with those of transformers, parameter by parameter.

    bazel build //tools/compare:training_comparison
    python tools/compare/gradients.py --model DIR --blocks FILE [--device cuda] [--threads 2] [--binary PATH]

Of one micro-batch: the first 4 sequences of 256 int32 token ids in FILE. All gradients are held against transformers' in
double precision, by the norm of the difference over the norm. Exit code 1 where Quartet's gradient in fp32 or in bf16
differs by more than 1.15 times as much as transformers' own in that type, in bf16 the better of two: a second one comes
of the variant "wide" of tools/compare/training.py, which rounds at fewer places. How much those two differ from each
other says what agreement between two programs in bf16 can mean.
"""

import argparse
import os
import subprocess
import sys
import tempfile

import numpy as np
import torch
import transformers
from training import LENGTH, SEQUENCES, cross_entropy, widen
from safetensors.torch import load_file

LIMIT = 1.15


def ours(args, dtype):
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "gradients.safetensors")
        subprocess.run([args.binary, f"--model={args.model}", f"--blocks={args.blocks}", f"--dtype={dtype}",
                        "--ranks=1", "--steps=1", "--micro_batches=1", f"--micro_batch={SEQUENCES}",
                        f"--length={LENGTH}", f"--gradients={path}", f"--device={args.device}"],
                       check=True, stdout=subprocess.DEVNULL)
        return load_file(path)


def theirs(args, dtype, variant):
    model = transformers.AutoModelForCausalLM.from_pretrained(args.model, dtype=dtype).to(args.device).train()
    model.model.embed_tokens.padding_idx = None
    ids = torch.from_numpy(np.fromfile(args.blocks, dtype=np.int32, count=SEQUENCES * LENGTH))
    undo = widen(model) if variant == "wide" else lambda: None
    cross_entropy(model, ids.long().reshape(SEQUENCES, LENGTH).to(args.device), variant).backward()
    undo()
    return {name: parameter.grad.cpu() for name, parameter in model.named_parameters()}


def norm(gradient):
    return sum(g.double().square().sum().item() for g in gradient.values()) ** 0.5


def difference(gradient, expected):
    assert gradient.keys() == expected.keys(), gradient.keys() ^ expected.keys()
    return norm({name: gradient[name].double() - expected[name].double() for name in expected}) / norm(expected)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True)
    parser.add_argument("--blocks", required=True)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu", help="of both")
    parser.add_argument("--threads", type=int, default=2, help="of torch")
    parser.add_argument("--binary", default="bazel-bin/tools/compare/training_comparison")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)

    expected = theirs(args, torch.float64, "model")
    gradients = {
        "Quartet, fp32": ours(args, "fp32"),
        "transformers, fp32": theirs(args, torch.float32, "model"),
        "Quartet, bf16": ours(args, "bf16"),
        "transformers, bf16": theirs(args, torch.bfloat16, "model"),
        "transformers, bf16, wide": theirs(args, torch.bfloat16, "wide"),
    }
    print(f"transformers, fp64: norm {norm(expected):.6f}")
    found = {}
    for name, gradient in gradients.items():
        found[name] = difference(gradient, expected)
        print(f"{name}: norm {norm(gradient):.6f} ({norm(gradient) / norm(expected) - 1:+.2e}), "
              f"differs by {found[name]:.2e}")
    print(f"transformers in bf16 and with fewer roundings differ from each other by "
          f"{difference(gradients['transformers, bf16'], gradients['transformers, bf16, wide']):.2e}, Quartet from "
          f"them by {difference(gradients['Quartet, bf16'], gradients['transformers, bf16']):.2e} and "
          f"{difference(gradients['Quartet, bf16'], gradients['transformers, bf16, wide']):.2e}")
    within = (found["Quartet, fp32"] <= LIMIT * found["transformers, fp32"] and
              found["Quartet, bf16"] <= LIMIT * min(found["transformers, bf16"], found["transformers, bf16, wide"]))
    sys.exit(0 if within else 1)


if __name__ == "__main__":
    main()
