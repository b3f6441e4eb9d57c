#!/usr/bin/env python3
"""An agent that gives the policy a calculator: OpenAI's client, nothing of Quartet.

    agent { command: "python3 examples/agents/calculator.py" kept: true }

Needs `pip install openai`. Rows are {"prompt": "A box has 37 pens. ...", "label": "888"} (examples/word_problems). A message that is an
expression, such as "37 * 24", is computed, and the policy is told the result; any other is its answer. An example before the
question shows how. examples/smollm2_calculator.textproto is a run with it.
"""
import json
import re
import sys

from openai import APIStatusError, OpenAI

EXAMPLE = [{"role": "system", "content": "Use the calculator."},
           {"role": "user", "content": "A shelf has 21 books. How many books are on 43 shelves?"},
           {"role": "assistant", "content": "21 * 43"}, {"role": "user", "content": "= 903"},
           {"role": "assistant", "content": "903"}]
MOST_CALLS = 2


def calculate(text):
    terms = re.match(r"\s*(\d{1,9}) *([-+*]) *(\d{1,9})\s*(=|$)", text)
    if not terms:
        return None
    a, sign, b = int(terms[1]), terms[2], int(terms[3])
    return {"+": a + b, "-": a - b, "*": a * b}[sign]


def play(episode):
    client = OpenAI(base_url=episode["base_url"], api_key=episode["api_key"])
    messages = EXAMPLE + episode["messages"]
    for calls in range(MOST_CALLS + 1):
        answer = client.chat.completions.create(model="policy", messages=messages).choices[0].message.content or ""
        result = calculate(answer)
        if result is None:
            break
        messages += [{"role": "assistant", "content": answer}, {"role": "user", "content": f"= {result}"}]
    reward = float(answer.strip() == episode["label"])
    return {"reward": reward, "score": reward, "extra_logs": {"calculations": calls}}


for line in sys.stdin:
    episode = json.loads(line)
    try:
        answer = play(episode)
    except APIStatusError as error:  # the episode was given up, or the prompt is too long
        answer = {"error": str(error)}
    print(json.dumps({"id": episode["id"], **answer}), flush=True)
