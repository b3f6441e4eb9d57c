#!/usr/bin/env python3
"""An agent that gives the policy a calculator: OpenAI's client, nothing of Quartet.

    agent { command: "python3 examples/agents/calculator.py" kept: true }

Needs `pip install openai`. Rows are {"prompt": "37 * 24", "label": "888"} (examples/arithmetic). The policy is asked to write what is to be
computed behind "CALC:", is told the result, and is to answer with it.
"""
import json
import re
import sys

from openai import OpenAI

RULES = ("You have a calculator. To use it, write one line like this: CALC: 12 * 3\n"
         "Then you are told the result. Then answer with the number alone.")
EXAMPLE = [{"role": "user", "content": RULES + "\nWhat is 21 + 4?"}, {"role": "assistant", "content": "CALC: 21 + 4"},
           {"role": "user", "content": "RESULT: 25"}, {"role": "assistant", "content": "25"}]


def calculate(text):
    terms = re.search(r"CALC:\s*(\d{1,9})\s*([-+*])\s*(\d{1,9})\s*$", text)
    if not terms:
        return None
    a, sign, b = int(terms[1]), terms[2], int(terms[3])
    return {"+": a + b, "-": a - b, "*": a * b}[sign]


def play(episode):
    client = OpenAI(base_url=episode["base_url"], api_key=episode["api_key"], max_retries=8)
    messages = EXAMPLE + [{"role": "user", "content": f"What is {episode['messages'][-1]['content']}?"}]
    calls = 0
    for _ in range(3):
        answer = client.chat.completions.create(model="policy", messages=messages,
                                                max_tokens=24).choices[0].message.content or ""
        result = calculate(answer)
        if result is None:
            break
        calls += 1
        messages += [{"role": "assistant", "content": answer}, {"role": "user", "content": f"RESULT: {result}"}]
    return {"reward": float(answer.strip() == episode["label"]), "extra_logs": {"calls": calls}}


for line in sys.stdin:
    print(json.dumps(play(json.loads(line))), flush=True)
