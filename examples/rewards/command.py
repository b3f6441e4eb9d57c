#!/usr/bin/env python3
"""A reward of your own: reward { source { command: "python3 examples/rewards/command.py" } }"""
import json
import sys


def reward(query, prompt, response, label, truncated, row, **_):
    """A number, or a dict with "reward" and, if you like, "score" and "extra_logs"."""
    right = response.strip() == label.strip()
    return {"reward": 1.0 if right else -0.1 * truncated, "score": right, "extra_logs": {"length": len(response)}}


answers, sys.stdout = sys.stdout, sys.stderr  # print() goes to the scorer's log
for line in sys.stdin:
    item = json.loads(line)
    value = reward(**item)
    print(json.dumps({**(value if isinstance(value, dict) else {"reward": value}), "id": item["id"]}), file=answers, flush=True)
