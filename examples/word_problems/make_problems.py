"""Makes train.jsonl and test.jsonl: problems in words whose answer is a product; 50 are held out.

Usage: python3 make_problems.py FOLDER
"""
import json
import pathlib
import random
import sys

KINDS = [
    "A box has {a} pens. How many pens are in {b} boxes?",
    "A ticket costs {a} euros. What do {b} tickets cost?",
    "A train goes {a} miles an hour. How far does it go in {b} hours?",
    "A page has {a} lines. How many lines have {b} pages?",
]
random = random.Random(0)
rows = {}
while len(rows) < 650:
    a, b = random.randint(11, 99), random.randint(11, 99)
    rows[random.choice(KINDS).format(a=a, b=b)] = str(a * b)
lines = [json.dumps({"prompt": prompt, "label": label}) + "\n" for prompt, label in rows.items()]
for name, part in (("test", lines[:50]), ("train", lines[50:])):
    (pathlib.Path(sys.argv[1]) / f"{name}.jsonl").write_text("".join(part), encoding="utf-8")
