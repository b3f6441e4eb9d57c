# Before a program: what it takes for granted.
try:
    with open("/run/answer.py", encoding="utf-8") as source:
        give(free_names(source.read()))
except (SyntaxError, ValueError):
    pass
