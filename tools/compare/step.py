#!/usr/bin/env python3
"""Times steps of TRL's GRPOTrainer on the prompts of //orchestrator:step_benchmark, with its settings.

    ./bazelw run //orchestrator:step_benchmark -- --run_dir=DIR [--dtype=...]
    python tools/compare/step.py --model DIR --prompts DIR/start/prompts.jsonl [--samples 8] [--answer_tokens 64]
        [--step_prompts 8] [--steps 3] [--dtype bf16|fp32] [--threads 2]

Prints a JSON line: the median seconds of a step, the first left out, of them those that generate, and the mean length of
the answers. Model, gradients and optimizer are of `--dtype`, of which either may be the faster one; Quartet's master weights
and optimizer are fp32 always. Needs trl (1.16.0), transformers (5.23.0) and torch (2.11.0).
"""

import argparse
import json
import statistics
import tempfile
import time

import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
from trl import GRPOConfig, GRPOTrainer


def has_comma(completions, **_):
    return [float("," in completion) for completion in completions]


class Clock(TrainerCallback):
    def __init__(self):
        self.steps, self.generated, self.generating = [], [], 0.0

    def on_step_begin(self, args, state, control, **_):
        self.began, self.generating = time.perf_counter(), 0.0

    def on_step_end(self, args, state, control, **_):
        self.steps.append(time.perf_counter() - self.began)
        self.generated.append(self.generating)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True)
    parser.add_argument("--prompts", required=True)
    parser.add_argument("--samples", type=int, default=8)
    parser.add_argument("--step_prompts", type=int, default=8)
    parser.add_argument("--answer_tokens", type=int, default=64)
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--dtype", choices=["bf16", "fp32"], default="bf16")
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    clock = Clock()

    class Timed(GRPOTrainer):
        def _generate(self, *arguments, **named):
            began = time.perf_counter()
            result = super()._generate(*arguments, **named)
            clock.generating += time.perf_counter() - began
            return result

    model = AutoModelForCausalLM.from_pretrained(
        args.model, dtype=torch.bfloat16 if args.dtype == "bf16" else torch.float32)
    with open(args.prompts, encoding="utf-8") as lines:
        rows = [{"prompt": json.loads(line)["prompt"]} for line in lines]
    with tempfile.TemporaryDirectory() as folder:
        config = GRPOConfig(
            output_dir=folder, per_device_train_batch_size=args.samples, gradient_accumulation_steps=args.step_prompts,
            num_generations=args.samples, max_completion_length=args.answer_tokens,
            generation_kwargs={"min_new_tokens": args.answer_tokens}, temperature=1.0, top_k=0, beta=0.04,
            learning_rate=1e-6, max_steps=args.steps, gradient_checkpointing=False, bf16=False, use_cpu=True,
            report_to=[], save_strategy="no", logging_steps=1, shuffle_dataset=False)
        trainer = Timed(model=model, reward_funcs=has_comma, args=config, train_dataset=Dataset.from_list(rows),
                        processing_class=AutoTokenizer.from_pretrained(args.model, padding_side="left"),
                        callbacks=[clock])
        trainer.train()
    lengths = [log["completions/mean_length"] for log in trainer.state.log_history if "completions/mean_length" in log]
    counted = slice(1 if args.steps > 1 else 0, None)
    print(json.dumps({"benchmark": "trl_step", "dtype": args.dtype, "steps": clock.steps,
                      "seconds": {"step": statistics.median(clock.steps[counted]),
                                  "generate": statistics.median(clock.generated[counted])},
                      "answer_tokens": statistics.mean(lengths)}))


if __name__ == "__main__":
    main()
