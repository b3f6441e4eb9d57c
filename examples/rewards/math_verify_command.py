#!/usr/bin/env python3
"""Mathematical equality as math-verify judges it (pip install "math-verify[antlr4_13_2]"):

reward { source { command: "python3 examples/rewards/math_verify_command.py" timeout_seconds: 60 } }
"""
import json
import sys

from math_verify import parse, verify

answers, sys.stdout = sys.stdout, sys.stderr
for line in sys.stdin:
    item = json.loads(line)
    label = item["label"] if "$" in item["label"] or "\\boxed" in item["label"] else f"${item['label']}$"
    gold = parse(label)
    if not gold:
        reply = {"error": f"math-verify cannot read the label {item['label']!r}"}
    else:
        reply = {"reward": float(verify(gold, parse(item["response"])))}
    print(json.dumps({**reply, "id": item["id"]}), file=answers, flush=True)
