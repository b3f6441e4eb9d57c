#!/usr/bin/env python3
"""A reward of your own: reward { source { command: "python3 examples/rewards/command.py" } }"""
import json
import os


def reward(query, prompt, response, label, truncated, row, **_):
    """A number, or a dict with "reward" (with token_rewards: true also "token_rewards") and, if you like, "score" and "extra_logs"."""
    right = response.strip() == label.strip()
    return {"reward": 1.0 if right else -0.1 * truncated, "score": right, "extra_logs": {"length": len(response)}}


# What is read and written here is for questions and answers alone: print(), and programs that a reward starts, get others.
questions, answers = os.fdopen(os.dup(0)), os.fdopen(os.dup(1), "w")
os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
os.dup2(2, 1)
for line in questions:
    item = json.loads(line)
    value = reward(**item)
    print(json.dumps({**(value if isinstance(value, dict) else {"reward": value}), "id": item["id"]}), file=answers, flush=True)
