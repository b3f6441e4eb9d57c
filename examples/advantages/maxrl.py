#!/usr/bin/env python3
"""MaxRL (Tajwar et al. 2026, arXiv:2602.02710): a reward less its group's mean, divided by that mean.

algorithm { advantage_estimator: "command" advantage_command { command: "python3 examples/advantages/maxrl.py" } }
"""
import collections
import json
import sys


def advantages(answers):
    """A number for each answer, or a list with one for each of its tokens."""
    groups = collections.defaultdict(list)
    for answer in answers:
        groups[answer["group"]].append(answer["reward"])
    means = {group: sum(rewards) / len(rewards) for group, rewards in groups.items()}
    return [(a["reward"] - means[a["group"]]) / means[a["group"]] if means[a["group"]] > 0 else 0.0 for a in answers]


out, sys.stdout = sys.stdout, sys.stderr  # print() goes to the terminal
for line in sys.stdin:
    print(json.dumps({"advantages": advantages(json.loads(line)["answers"])}), file=out, flush=True)
