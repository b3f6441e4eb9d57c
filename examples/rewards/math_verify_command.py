#!/usr/bin/env python3
"""Mathematical equality as math-verify judges it (pip install "math-verify[antlr4_13_2]"):

reward { source { command: "python3 examples/rewards/math_verify_command.py" timeout_seconds: 60 } }
"""
import json
import os

from math_verify import parse, verify

# What is read and written here is for questions and answers alone: print(), and programs that a reward starts, get others.
questions, answers = os.fdopen(os.dup(0)), os.fdopen(os.dup(1), "w")
os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
os.dup2(2, 1)
for line in questions:
    item = json.loads(line)
    label = item["label"] if "$" in item["label"] or "\\boxed" in item["label"] else f"${item['label']}$"
    gold = parse(label)
    if not gold:
        reply = {"error": f"math-verify cannot read the label {item['label']!r}"}
    else:
        reply = {"reward": float(verify(gold, parse(item["response"])))}
    print(json.dumps({**reply, "id": item["id"]}), file=answers, flush=True)
