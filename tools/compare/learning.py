#!/usr/bin/env python3
"""Trains by TRL's GRPOTrainer with the settings of examples/smollm2_arithmetic.textproto, for curve against curve.

    python tools/compare/learning.py --model DIR --train FILE --test FILE [--steps 40] [--eval_steps 10] [--threads 2]

Writes a JSON line a step: the batch's mean reward and seconds since the first step began, without evaluations; after every
eval_steps, and before the first step, the mean reward of four answers to each of the test's prompts, drawn as in training. Needs trl (1.16.0),
transformers (5.23.0) and torch (2.11.0), on a CPU.
"""

import argparse
import json
import time

import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
from trl import GRPOConfig, GRPOTrainer

TEMPLATE = "3 + 4 = 7\n9 - 2 = 7\n{} ="
NEWLINE = 198
MAX_NEW_TOKENS = 8
ANSWERS = 4  # to each held-out prompt


def rows(path):
    with open(path, encoding="utf-8") as lines:
        parsed = [json.loads(line) for line in lines]
    return [{"prompt": TEMPLATE.replace("{}", row["prompt"]), "label": row["label"]} for row in parsed]


def exact_match(completions, label, **_):
    return [float(completion.strip() == right) for completion, right in zip(completions, label)]


class Curve(TrainerCallback):
    def __init__(self, args, tokenizer, ends, test):
        self.args, self.tokenizer, self.ends, self.test = args, tokenizer, ends, test
        self.seconds = 0.0

    def evaluate(self, model, step):
        right = 0
        for begin in range(0, len(self.test), 50):
            part = self.test[begin:begin + 50]
            inputs = self.tokenizer([row["prompt"] for row in part], return_tensors="pt", padding=True)
            with torch.no_grad():
                ids = model.generate(**inputs, do_sample=True, temperature=1.0, top_k=0, num_return_sequences=ANSWERS,
                                     max_new_tokens=MAX_NEW_TOKENS, eos_token_id=self.ends)
            texts = self.tokenizer.batch_decode(ids[:, inputs["input_ids"].shape[1]:], skip_special_tokens=True)
            right += sum(exact_match(texts, [row["label"] for row in part for _ in range(ANSWERS)]))
        print(json.dumps({"step": step, "held_out": right / len(self.test) / ANSWERS}), flush=True)

    def on_train_begin(self, args, state, control, model=None, **_):
        self.evaluate(model, 0)
        self.began = time.perf_counter()

    def on_log(self, args, state, control, logs=None, **_):
        if "reward" in logs:
            print(json.dumps({"step": state.global_step, "reward": logs["reward"], "seconds": self.seconds}), flush=True)

    def on_step_end(self, args, state, control, model=None, **_):
        self.seconds += time.perf_counter() - self.began
        if state.global_step % self.args.eval_steps == 0:
            was_training = model.training
            model.eval()
            self.evaluate(model, state.global_step)
            model.train(was_training)
        self.began = time.perf_counter()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True)
    parser.add_argument("--train", required=True)
    parser.add_argument("--test", required=True)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--eval_steps", type=int, default=10)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--output", default="/tmp/compare_learning")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    tokenizer = AutoTokenizer.from_pretrained(args.model, padding_side="left")
    model = AutoModelForCausalLM.from_pretrained(args.model, dtype=torch.float32)
    ends = [model.config.eos_token_id, NEWLINE]
    tokenizer.eos_token = tokenizer.pad_token = tokenizer.convert_ids_to_tokens(ends[0])
    model.generation_config.eos_token_id = ends
    config = GRPOConfig(
        output_dir=args.output, per_device_train_batch_size=128, num_generations=8, max_completion_length=MAX_NEW_TOKENS,
        temperature=1.0, top_k=0, beta=0.0, epsilon=0.2, loss_type="dapo", scale_rewards="group", learning_rate=1e-5,
        lr_scheduler_type="constant", adam_beta2=0.95, weight_decay=0.0, max_grad_norm=1.0, max_steps=args.steps,
        gradient_checkpointing=False, bf16=False, use_cpu=True, report_to=[], save_strategy="no", logging_steps=1, seed=1)
    trainer = GRPOTrainer(model=model, reward_funcs=exact_match, args=config, train_dataset=Dataset.from_list(rows(args.train)),
                          processing_class=tokenizer, callbacks=[Curve(args, tokenizer, ends, rows(args.test))])
    trainer.train()


if __name__ == "__main__":
    main()
