#!/usr/bin/env python3
"""Answers that math-verify finds equal to their labels, and that it does not.

pip install math-verify==0.9.0
python3 tools/golden/make_math_golden.py > core/rewards/math/testdata/golden.json
"""
import json

from math_verify import parse, verify

# (label, responses)
CASES = [
    ("72", ["72", "\\boxed{72}", "so it is $72$.", "\\boxed{72.0}", "\\boxed{73}", "\\boxed{-72}", "\\boxed{144/2}", "\\boxed{7.2 \\times 10}", "\\boxed{72\\%}", "\\boxed{8 \\cdot 9}"]),
    ("1234567", ["\\boxed{1,234,567}", "\\boxed{1{,}234{,}567}", "\\boxed{1\\,234\\,567}", "\\boxed{1.234567 \\cdot 10^6}"]),
    ("\\frac{1}{2}", ["\\boxed{0.5}", "\\boxed{\\dfrac12}", "\\boxed{1/2}", "\\boxed{2^{-1}}", "\\boxed{\\frac{-1}{-2}}", "\\boxed{0.51}", "\\boxed{\\sin 30^\\circ}"]),
    ("-\\frac{3}{4}", ["\\boxed{-0.75}", "\\boxed{\\frac{-3}{4}}", "\\boxed{-3/4}", "\\boxed{3/4}"]),
    ("2\\sqrt{3}", ["\\boxed{\\sqrt{12}}", "\\boxed{2\\sqrt3}", "\\boxed{\\frac{6}{\\sqrt{3}}}", "\\boxed{3.4641}", "\\boxed{2 \\cdot 3^{1/2}}", "\\boxed{3\\sqrt{2}}"]),
    ("\\sqrt{2}+\\sqrt{3}", ["\\boxed{\\sqrt{3} + \\sqrt{2}}", "\\boxed{\\sqrt{5+2\\sqrt{6}}}", "\\boxed{\\sqrt{5}}"]),
    ("2\\pi", ["\\boxed{2 \\pi}", "\\boxed{\\pi \\cdot 2}", "\\boxed{6.283185307179586}", "\\boxed{2\\pi \\text{ cm}}", "\\boxed{\\pi^2}", "\\boxed{6.28}"]),
    ("x^2+2x+1", ["\\boxed{(x+1)^2}", "\\boxed{1 + 2x + x^2}", "\\boxed{x(x+2)+1}", "\\boxed{x^2+2x}", "\\boxed{(1+x)(x+1)}", "\\boxed{(y+1)^2}"]),
    ("\\frac{x+1}{x-1}", ["\\boxed{\\frac{1+x}{x-1}}", "\\boxed{1+\\frac{2}{x-1}}", "\\boxed{-\\frac{x+1}{1-x}}", "\\boxed{\\frac{x-1}{x+1}}"]),
    ("\\ln 2", ["\\boxed{\\ln(2)}", "\\boxed{-\\ln\\frac{1}{2}}", "\\boxed{\\log 2}", "\\boxed{\\ln 3}"]),
    ("3", ["\\boxed{\\log_2 8}", "\\boxed{\\sqrt[3]{27}}", "\\boxed{\\binom{3}{1}}", "\\boxed{|-3|}", "\\boxed{x=3}", "\\boxed{3 \\text{ apples}}", "\\boxed{3!}", "\\boxed{\\lfloor \\pi \\rfloor}"]),
    ("120", ["\\boxed{5!}", "\\boxed{2^3 \\cdot 3 \\cdot 5}", "\\boxed{\\frac{6!}{3!}}"]),
    ("10^{20}", ["\\boxed{10^{20}}", "\\boxed{100000000000000000000}", "\\boxed{10^{20}+1}"]),
    ("e^2", ["\\boxed{e^2}", "\\boxed{e \\cdot e}", "\\boxed{\\exp(2)}", "\\boxed{e^3}"]),
    ("3+4i", ["\\boxed{4i+3}", "\\boxed{3-4i}", "\\boxed{(2+i)^2}"]),
    ("(1,2)", ["\\boxed{(1,2)}", "\\boxed{(1, 2.0)}", "\\boxed{\\left(1, \\frac{4}{2}\\right)}", "\\boxed{(2,1)}", "\\boxed{(x,y)=(1,2)}", "\\boxed{[1,2]}"]),
    ("(-\\infty,3]", ["\\boxed{(-\\infty, 3]}", "\\boxed{(-\\infty, 3)}", "\\boxed{x \\le 3}", "\\boxed{x \\in (-\\infty,3]}"]),
    ("[0,1)\\cup(2,3]", ["\\boxed{[0,1) \\cup (2,3]}", "\\boxed{(2,3] \\cup [0,1)}", "\\boxed{[0,1] \\cup (2,3]}"]),
    ("\\{1,2,3\\}", ["\\boxed{\\{3,2,1\\}}", "\\boxed{1,2,3}", "\\boxed{3, 1 \\text{ and } 2}", "\\boxed{\\{1,2\\}}", "\\boxed{\\{1,2,3,4\\}}"]),
    ("1,-2", ["\\boxed{-2, 1}", "\\boxed{x=1 \\text{ or } x=-2}", "$1$ and $-2$", "\\boxed{1,2}"]),
    ("\\pm 3", ["\\boxed{3, -3}", "\\boxed{\\pm 3}", "\\boxed{3}"]),
    ("\\frac{-1\\pm\\sqrt{5}}{2}", ["\\boxed{\\frac{-1+\\sqrt5}{2}, \\frac{-1-\\sqrt5}{2}}", "\\boxed{\\frac{-1+\\sqrt5}{2}}"]),
    ("\\begin{pmatrix} 1 & 2 \\\\ 3 & 4 \\end{pmatrix}", ["\\boxed{\\begin{pmatrix}1&2\\\\3&4\\end{pmatrix}}", "\\boxed{\\begin{bmatrix}1&2\\\\3&4\\end{bmatrix}}", "\\boxed{\\begin{pmatrix}1&2\\\\4&3\\end{pmatrix}}"]),
    ("y=2x+3", ["\\boxed{y = 3 + 2x}", "\\boxed{2x - y + 3 = 0}", "\\boxed{y=2x-3}"]),
    ("x<5", ["\\boxed{x < 5}", "\\boxed{5 > x}", "\\boxed{x \\le 5}", "\\boxed{(-\\infty, 5)}"]),
    ("2<x<5", ["\\boxed{2 < x < 5}", "\\boxed{(2,5)}", "\\boxed{2 \\le x < 5}", "\\boxed{5 > x > 2}"]),
    ("30^\\circ", ["\\boxed{30^{\\circ}}", "\\boxed{30}", "\\boxed{30 \\text{ degrees}}", "\\boxed{60^\\circ}"]),
    ("\\$18.90", ["\\boxed{18.90}", "\\boxed{\\$18.9}", "\\boxed{18.91}"]),
    ("50\\%", ["\\boxed{50\\%}", "\\boxed{50}", "\\boxed{40\\%}"]),
    ("\\text{Evelyn}", ["\\boxed{\\text{Evelyn}}", "\\boxed{Evelyn}", "\\boxed{\\text{Carla}}"]),
    ("3:4", ["\\boxed{3:4}", "\\boxed{3 : 4}", "\\boxed{4:3}"]),
    ("1\\frac{1}{2}", ["\\boxed{1\\frac{1}{2}}", "\\boxed{1.5}", "\\boxed{\\frac{3}{2}}"]),
    ("0.333333", ["\\boxed{0.333333}", "\\boxed{\\frac{1}{3}}", "\\boxed{0.33}"]),
    ("x_1=2, x_2=3", ["\\boxed{x_1 = 2, x_2 = 3}", "\\boxed{2, 3}", "\\boxed{x_1 = 2, x_2 = 4}"]),
    ("\\cos^2 x", ["\\boxed{1-\\sin^2 x}", "\\boxed{(\\cos x)^2}", "\\boxed{\\sin^2 x}", "\\boxed{\\frac{1+\\cos 2x}{2}}"]),
    ("2^{10}", ["\\boxed{1024}", "\\boxed{4^5}", "\\boxed{1023}"]),
    ("\\frac{1}{2004!}", ["\\boxed{\\frac{1}{2004!}}", "\\boxed{\\frac{1}{2006!}}"]),
    ("n(n+1)/2", ["\\boxed{\\frac{n(n+1)}{2}}", "\\boxed{\\frac{n^2+n}{2}}", "\\boxed{\\binom{n+1}{2}}", "\\boxed{n(n+1)}"]),
    ("17", ["The final answer is $17$. I hope it is correct.", "It is 17", "17 is too small, so 18", "no answer", ""]),
]

judged = []
for label, responses in CASES:
    gold = parse(f"${label}$")
    for response in responses:
        judged.append({"label": label, "response": response, "equal": bool(verify(gold, parse(response)))})
print(json.dumps({"math-verify": "0.9.0", "cases": judged}, indent=0, ensure_ascii=True))
