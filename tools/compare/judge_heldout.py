"""Judges a run from outside: transformers loads the run's newest checkpoint, answers the held-out prompts greedily, and
the answers are compared with the labels.

Usage: judge_heldout.py RUN_DIR [--max_new_tokens=16]    (torch 2.11.0, transformers 4.57.6)
"""

import argparse
import json
import pathlib

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run_dir", type=pathlib.Path)
    parser.add_argument("--max_new_tokens", type=int, default=16)
    arguments = parser.parse_args()
    folder = arguments.run_dir / "checkpoints" / "latest" / "policy"
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder, torch_dtype=torch.float32)
    problems = [json.loads(line) for line in (arguments.run_dir / "heldout.jsonl").read_text().splitlines()]
    right = 0
    for problem in problems:
        ids = torch.tensor([tokenizer(problem["prompt"])["input_ids"]])
        answer = model.generate(ids, do_sample=False, max_new_tokens=arguments.max_new_tokens)[0, ids.shape[1] :]
        right += tokenizer.decode(answer, skip_special_tokens=True).strip() == problem["label"]
    print(f"{right} of {len(problems)} right ({right / len(problems):.1%})")


if __name__ == "__main__":
    main()
