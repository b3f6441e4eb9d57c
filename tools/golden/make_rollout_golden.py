"""Writes rollout/engine/testdata/generate.json: what transformers generates greedily, fp32, with the models of
core/model/testdata.

Needs torch 2.11 and transformers 4.57.6. Run from the repository root, after make_model_golden.py; of models named as
arguments these cases alone are made anew.
"""

import json
import os
import random
import sys

import torch
from transformers import AutoModelForCausalLM

ROOT = "core/model/testdata"
MAX_NEW_TOKENS = 48


def generate(model, prompt):
    """Ids of the answer, their log-probabilities, and the smallest gap between the two best logits on the way."""
    with torch.no_grad():
        out = model.generate(
            torch.tensor([prompt]),
            attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
            do_sample=False,
            max_new_tokens=MAX_NEW_TOKENS,
            output_logits=True,
            return_dict_in_generate=True,
        )
    answer = out.sequences[0, len(prompt) :].tolist()
    logits = torch.stack([x[0] for x in out.logits])
    best = logits.topk(2, -1).values
    log_probs = torch.log_softmax(logits, -1)[range(len(answer)), answer]
    return answer, log_probs.tolist(), (best[:, 0] - best[:, 1]).min().item()


def make_cases(name, model):
    rng = random.Random(name)
    cases = []
    while len(cases) < 8:
        length = rng.choice([1, 2, 5, 15, 16, 17, 40, 90, 130])
        prompt = [rng.randrange(3, model.config.vocab_size) for _ in range(length)]
        answer, log_probs, gap = generate(model, prompt)
        # A near tie may go either way in fp32.
        if gap < 1e-4:
            continue
        cases.append({"prompt": prompt, "answer": answer, "log_probs": [float(f"{x:.7g}") for x in log_probs]})
    ends = sum(len(c["answer"]) < MAX_NEW_TOKENS for c in cases)
    print(f"{name}: {ends} of {len(cases)} end with an end token")
    return {"model": name, "max_new_tokens": MAX_NEW_TOKENS, "cases": cases}


def load(name):
    return AutoModelForCausalLM.from_pretrained(os.path.join(ROOT, name), dtype=torch.float32).eval()


def main():
    path = "rollout/engine/testdata/generate.json"
    names = [n for n in sorted(os.listdir(ROOT)) if os.path.exists(os.path.join(ROOT, n, "generation_config.json"))]
    if sys.argv[1:]:
        result = [case for case in json.load(open(path)) if case["model"] not in sys.argv[1:]]
        result += [make_cases(name, load(name)) for name in names if name in sys.argv[1:]]
        return write(path, result)
    result = [make_cases(name, load(name)) for name in names]
    # What a rollout of "llama" generates after an update to the weights of "mistral", which has the same shapes.
    updated = load("llama")
    updated.load_state_dict(load("mistral").state_dict())
    result.append(make_cases("llama updated to mistral", updated))
    write(path, result)


def write(path, result):
    with open(path, "w") as out:
        json.dump(result, out, separators=(",", ":"))
        out.write("\n")


main()
