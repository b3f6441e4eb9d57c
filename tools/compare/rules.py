#!/usr/bin/env python3
r"""Compares the rules number, math and choice (docs/rewards.md) with independent implementations, on answers to GSM8K.

    pip install "math-verify[antlr4_13_2]"     (0.9.0)
    ./bazelw build //tools/compare:apply_rules
    python tools/compare/rules.py --data GSM8K [--rules PROGRAM] [--seed 0] [--answers 2400]

GSM8K is a folder with the data set's train.jsonl. Its solutions get endings of many kinds, with the right answer or a
wrong one. The cases of the rule math's tests (--reader), whose kinds are named "reader: ...", come beside them. Truth is what a reader takes the answer for; those that are cut off or choose two letters are wrong. To the
rule number, answers without #### and box ("no mark") are wrong too: so it is promised.

Peers: math-verify; and of lm-evaluation-harness (commit 4e7e0d47f33bc71070c1d38394bafbb52b117163) gsm8k strict-match
and flexible-extract (lm_eval/tasks/gsm8k/gsm8k.yaml), mmlu_pro (lm_eval/tasks/mmlu_pro/_default_template_yaml) and
mmlu_flan flexible-extract (lm_eval/tasks/mmlu/flan_cot_zeroshot/_mmlu_flan_cot_zeroshot_template_yaml), with what they
name in lm_eval/filters/extraction.py, and exact_match_hf_evaluate in lm_eval/api/metrics.py.
"""
import argparse
import collections
import json
import logging
import pathlib
import random
import re
import subprocess

from math_verify import parse, verify

Case = collections.namedtuple("Case", "rule kind response label truth options")

# Kind || endings || label (by default the data's). <v> is the answer, <o> and <p> are other numbers, <u> is a unit, <n>
# a line's end. The solution comes first, but for endings with "^"; <titled> is the solution with headings.
ENDINGS = r"""
#### 72 || #### <v>
#### $72, 72 clips || ####<v> ;; #### $<v> ;; #### \$<v> ;; #### $<v>$ ;; #### <v> <u> ;; #### <v>.
#### **72** || #### **<v>**
#### Answer: 72 || #### Answer: <v> ;; #### Final answer<n><v>
#### 7,200 || #### <commas> ;; #### <thin>
#### 72.50 || #### <v>.5 ;; #### <v>.50 ;; #### $<v>.50 || <value>.5
#### -72 || #### -<v> ;; #### −<v> || -<value>
#### 72.00, 144/2 || #### <v>.0 ;; #### <frac> ;; #### <slash>
####, sentences after || #### <v><n><n>I used <o> and <p> for this.
box || The answer is $\boxed{<v>}$. ;; \boxed{<v>} ;; \[<n>\boxed{<v>}<n>\] ;; **Answer:** \boxed{<v>}
box, units || \boxed{<v> \text{ <u>}} ;; $\boxed{<v>}$ <u> ;; \boxed{\$<v>} ;; \boxed{<v>\%}
box, degrees || $\boxed{<v>^\circ}$ ;; \boxed{<v>^{\circ}}
box, 7,200 || \boxed{<commas>} ;; $\boxed{<braced>}$ ;; $\boxed{<thin>}$
box, decimals and fractions || \boxed{<v>.00} ;; \boxed{ <v>.0 } ;; \boxed{<frac>} ;; $\boxed{<slash>}$
box, styled || \boxed{\text{<v>}} ;; $\boxed{\mathbf{<v>}}$ ;; \boxed{\textbf{<v>}}
box, x = 72 || \boxed{x = <v>} ;; $\boxed{n=<v>}$
box, then #### || There are $\boxed{<o>}$ at first.<n>#### <v>
several, the last a box || I see $\boxed{<o>}$ at first.<n>It is $\boxed{<v>}$. ;; #### <o><n>No, it is $\boxed{<v>}$.
box, sentences after || $\boxed{<v>}$. That is <o> more than <p>. ;; \boxed{<v>}<n><n>#### Check<n>It was <p> before.
headings || ^<titled>#### <v> ;; ^<titled>The answer is $\boxed{<v>}$. ;; ^<titled>#### Answer<n>\boxed{<v>}
cut before the end || ^<cut>
cut in the answer || The answer is $\boxed{<start> ;; #### <start>
no mark: The answer is $72. || The answer is $<v>. ;; So the answer is $<v> ;; So it is $<v>$.
no mark: Answer: **72** || **Answer: <v>** ;; **Answer:** <v> ;; **Final Answer: <v>** ;; **<v> <u>**
no mark: n=6, so the answer is $72$ || We have $n=<o>$, so the answer is $<v>$. ;; As $x = <o>$, we get $<v>$.
no mark: sentences after $72$ || The answer is $<v>$. That is as $n = <o>$. ;; Final answer: $<v>$, not $<o>$."""
# <L>, <text> are what is chosen; <M>, <other> another.
CHOICE = r"""
The answer is (B) || The answer is (<L>). ;; So the answer is (<L>) ;; The answer is: (<L>)
The answer is B || The answer is <L>. ;; Therefore, the correct answer is <L> ;; The final answer is **<L>**.
the answer is (b) || the answer is (<l>).
B || ^<L> ;; ^<L>. ;; ^(<L>) ;; ^**<L>** ;; ^<L>) <text> ;; ^<L>. <text> ;; ^(<L>) <text> ;; ^**<L>. <text>**
box || \boxed{<L>} ;; The final answer is $\boxed{\text{<L>}}$. ;; $\boxed{\textbf{(<L>)}}$ ;; \boxed{<L>. <text>}
box, sentences around || \boxed{<L>} is right. <M> is wrong. ;; I took $\boxed{<M>}$ first. It is $\boxed{<L>}$.
I think it is B || I think it is <L> ;; ^I would go with <L>. ;; The correct option is <L>. ;; So (<L>) is the answer.
clearly B. A is wrong || The answer is clearly <L>. <M> is wrong. ;; The answer must be <L>. Not <M>.
B, not A || The answer must be <L>, not <M>. ;; The answer is not <M> but <L>. ;; The answer isn't <M>, it is <L>.
Answer: B. Text || Answer: <L>. <text> ;; **Answer: <L>. <text>** ;; **Answer:** (<L>) <text> ;; Answer: <L>) <text>
Answer: B || Answer: <L> ;; **Answer: <L>** ;; ANSWER: <L> ;; ### Answer<n><L> ;; Answer:<n><n>**<L>**
B with text || The answer is <text> (<L>). ;; <M>: <other> is wrong.<n><L>: <text> fits.<n>The answer is <L>.
mind changed || The answer is <M>. Wait, no. The answer is <L>. ;; Answer: <M><n><n>I forgot one.<n><n>Answer: <L>
sentences after || The answer is <L>. A train would do. ;; The answer is (<L>).<n><n>A good check is to add them up.
cut off || <M> is wrong, as it is too much. The answer is ;; Let us look at <M> first. It says
both || The answer is <L> or <M>. ;; The answer is <L> and <M>. ;; \boxed{<L>, <M>}"""
# Kind || right || wrong || label; of numbers 2 < a < b < d < 10. They stand in FRAMES.
FORMS = r"""
fraction || \dfrac{<a>}{11} ;; <a>/11 ;; \frac{<2a>}{22} || \frac{11}{<a>} ;; <b>/11 || \frac{<a>}{11}
mixed number || <a>.25 ;; <a>\frac{1}{4} ;; <a> \frac{1}{4} || <b>\frac{1}{4} ;; \frac{<a>}{4} || \frac{<4a+1>}{4}
root || \sqrt{<3aa>} ;; <a> \cdot \sqrt{3} ;; \frac{<3a>}{\sqrt{3}} ;; <a>\sqrt 3 || \sqrt{<3a>} || <a>\sqrt{3}
interval || (<a>,<b>] ;; x \in \left(<a>, <b>\right] ;; <a> < x \le <b> || [<a>, <b>] ;; <a> < x \le <d> || (<a>, <b>]
union || [<b>,<d>)\cup(1,<a>) || (1,<a>) ;; (1,<a>]\cup[<b>,<d>) || (1,<a>) \cup [<b>,<d>)
\bigcup || (1,<a>) \bigcup (<b>,\infty) || (1,<a>) ;; (1,<a>]\bigcup(<b>,\infty) || (1,<a>) \cup (<b>, \infty)
set || \{<d>, <a>, <b>\} ;; \left\{<b>,<d>,<a>\right\} || \{<a>, <b>\} ;; \{<a>, <b>, 1\} || \{<a>, <b>, <d>\}
tuple || \left(<a>, <b>\right) ;; (x, y) = (<a>, <b>) ;; (<a>.0,<b>) || (<b>, <a>) ;; (<a>, <d>) || (<a>, <b>)
complex and pi || <b>i + <a>\pi ;; <a>\pi + <b> i || <a>\pi-<b>i ;; <b>\pi+<a>i || <a>\pi+<b>i
text || \text{ even} ;; \textbf{even} ;; \mathrm{even} || \text{odd} ;; 2 || \text{even}
list of formulas || <a>$ and $<b> ;; <b>$, $<a> || <a>$ and $<d> ;; <b> || <a>, <b>
list of boxes || \boxed{<a>}$ and $\boxed{<b>} ;; \boxed{<b>}$ or $\boxed{<a>} || \boxed{<b>}$, $\boxed{<d>} || <a>, <b>
list for one || <b> || <a>$ and $<b> ;; <b>$ or $<a> || <b>"""
FRAMES = [r"Thus the answer is $<f>$.", r"The answer is $\boxed{<f>}$.", r"\[ \boxed{<f>} \]", r"Hence, \(<f>\).",
          "**Final Answer:** $<f>$", r"$x$ was given, so we get \[ <f> \]", "We have $k=6$, so the answer is $<f>$."]


def fill(template, values):
    return re.sub("<([^<> ]+)>", lambda m: str(values[m[1]]), template)


def cases(r, problems, answers):
    kinds = [(rule, *line.split(" || ")) for rule, text in (
        ("number", ENDINGS), ("math", ENDINGS + FORMS), ("choice", CHOICE)) for line in text.split("\n") if line]
    for i in range(answers):
        rule, kind, endings, *more = kinds[i % len(kinds)]
        value, right = 0, r.random() < .5
        while value < (1000 if "7,200" in kind else 10):
            label, steps = r.choice(problems)
            value = int(label.replace(",", ""))
        said = {int(x) for x in re.findall(r"(?<![\d.,/])\d{1,6}(?![\d.,/])", " ".join(steps))}
        others = sorted({*said, value + 1, value - 1, value * 10, value + 10} - {0, value})
        (o, p), (a, b, d) = r.sample(others, 2), sorted(r.sample(range(3, 10), 3))
        v, k, u = value if right else r.choice(others), r.randint(2, 9), r.choice(["pages", "dollars", "cm"])
        body, title = "".join(step + "\n" for step in steps), r.choice(["Step {}", "Step {}: count", "{}. Count"])
        options = [f"{x} {u}" for x in r.sample([value, *r.sample(others, 3)], 4)]
        best = "ABCD"[options.index(f"{value} {u}")]
        L = best if right else r.choice("ABCD".replace(best, ""))
        M = r.choice("ABCD".replace(best if kind == "cut off" else L, ""))
        cut = body[:r.randrange(len(body))].split(str(value))[0].rstrip(" \n=+-*/x$.0123456789")
        values = {
            "v": v, "value": value, "o": o, "p": p, "u": u, "n": "\n", "commas": f"{v:,}", "start": str(value)[:-1],
            "braced": f"{v:,}".replace(",", "{,}"), "thin": f"{v:,}".replace(",", r"\,"), "slash": f"{v * k}/{k}",
            "frac": rf"\frac{{{v * k}}}{{{k}}}", "cut": cut,
            "titled": "".join(f"#### {title.format(n)}\n{step}\n\n" for n, step in enumerate(steps, 1)),
            "a": a, "b": b, "d": d, "2a": 2 * a, "3a": 3 * a, "3aa": 3 * a * a, "4a+1": 4 * a + 1,
            "L": L, "l": L.lower(), "M": M, "text": options["ABCD".index(L)], "other": options["ABCD".index(M)]}
        ending = r.choice((more[0] if len(more) == 2 and not right else endings).split(" ;; "))
        if len(more) == 2:  # Lists have dollar signs, and boxes, of their own.
            ending = "^" + r.choice(FRAMES[:1] if kind.startswith("list") else FRAMES).replace("<f>", ending)
        response = fill(ending[1:] if ending[0] == "^" else body + ending, values)
        never = kind.startswith(("cut", "both")) or (rule == "number" and kind.startswith("no mark"))
        label = best if rule == "choice" else fill(more[-1], values) if more else label
        yield Case(rule, kind, response, label, right and not never, options)


def reader_cases(path):
    for line in path.read_text().splitlines():
        case = json.loads(line)
        yield Case("math", "reader: " + case["kind"], case["response"], case["label"], case["want"], ())


def found(pattern, text, which):
    """RegexFilter.apply; None for its "[invalid]"."""
    every = [next(filter(None, m.groups()), "") if m.groups() else m[0] for m in re.finditer(pattern, text)]
    return every[which].strip() if every else None


def gsm8k(pattern, which):
    def clean(text):
        return re.sub(r"\.$", "", re.sub("[,$]", "", text))
    return lambda case: clean(found(pattern, case.response, which) or "[invalid]") == clean(case.label)


def mmlu_flan(case):
    """MultiChoiceRegexFilter.apply"""
    letters = dict(zip((option.lower() for option in case.options), "ABCD"))
    plain = re.sub(r"[^\w\s]|_", "", case.response.lower())
    said = found(r"(\([A-Z]\))", case.response, -1) or letters.get(found("|".join(letters), plain, -1))
    return (said or found(r":[\s]*(A|B|C|D)", case.response, -1) or "").strip("()") == case.label


PEERS = [("number", "gsm8k strict", gsm8k(r"#### (\-?[0-9\.\,]+)", 0)),
         ("number", "gsm8k flexible", gsm8k(r"(-?[$0-9.,]{2,})|(-?[0-9]+)", -1)),
         ("math", "math-verify", lambda case: verify(parse(f"${case.label}$"), parse(case.response))),
         ("choice", "mmlu_pro", lambda case: found(r"answer is \(?([ABCDEFGHIJ])\)?", case.response, 0) == case.label),
         ("choice", "mmlu_flan", mmlu_flan)]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rules", default="bazel-bin/tools/compare/apply_rules")
    parser.add_argument("--data", type=pathlib.Path, required=True)
    parser.add_argument("--reader", type=pathlib.Path, default="core/rewards/math/testdata/reader.jsonl")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--answers", type=int, default=2400)
    args = parser.parse_args()
    logging.disable(logging.ERROR)  # math-verify's, of what it cannot read.

    text = (args.data / "train.jsonl").read_text()
    solved = [json.loads(line)["answer"].split("\n#### ") for line in text.splitlines()]
    problems = [(label, re.sub("<<.*?>>", "", solution).split("\n")) for solution, label in solved]
    made = [*cases(random.Random(args.seed), problems, args.answers), *reader_cases(args.reader)]
    asked = "".join(json.dumps({"rule": c.rule, "response": c.response, "label": c.label}) + "\n" for c in made)
    said = subprocess.run([args.rules], input=asked, stdout=subprocess.PIPE, text=True, check=True).stdout
    ours = [json.loads(line).get("value", line) for line in said.splitlines()]

    print("| rule, peer | kind | cases | agrees with peer % | ours right % | peer right % |\n|---|---|---|---|---|---|")
    examples = collections.defaultdict(dict)  # By title; ours is compared with two peers, but is wrong once.
    for rule, peer, judge in PEERS:
        rows = collections.defaultdict(list)
        for case, our in [pair for pair in zip(made, ours, strict=True) if pair[0].rule == rule]:
            their, example = float(judge(case)), f"{case.response!r}, label {case.label!r}, right {float(case.truth)}"
            for kind in (case.kind, "reader: all" if case.kind.startswith("reader: ") else "all"):
                rows[kind].append((our == their, our == case.truth, their == case.truth))
            if our != case.truth:
                examples[f"Ours is not right: {rule}, {case.kind}"][f"{example}, ours {our}"] = True
            if our != their:
                examples[f"Differs: {rule}, {peer}, {case.kind}"][f"{example}, ours {our}, peer {their}"] = True
        for kind in sorted(rows, key=lambda kind: kind.endswith("all")):
            shares = " | ".join(f"{100 * sum(column) / len(rows[kind]):.0f}" for column in zip(*rows[kind]))
            print(f"| {rule}, {peer} | {kind} | {len(rows[kind])} | {shares} |")
    for title in sorted(examples, key=lambda title: not title.startswith("Ours")):
        print(f"\n{title} ({len(examples[title])})", *list(examples[title])[:3], sep="\n  ")


if __name__ == "__main__":
    main()
