# The end that has the program: it runs that as a module, and does with its names what the statements ask for.
import __future__
import asyncio
import re

incoming, outgoing = pipes()
with open("/run/answer.py", encoding="utf-8") as file:
    source = file.read()
module = sys.modules["answer"] = types.ModuleType("answer")
scope = vars(module)
scope["__builtins__"] = __builtins__
sys.argv = ["answer.py"]


def operate(name, left, right):
    return getattr(operator, name)(left, right)


def getitem(x, key):
    return x[key]


def setitem(x, key, value):
    x[key] = value


def delitem(x, key):
    del x[key]


def names(asked):
    return {name: scope[name] for name in asked if name in scope}


async def done(awaitable):
    return await awaitable


def run(awaitable):
    """All of them in one loop, as locks and queues belong to one."""
    if "loop" not in vars(run):
        run.loop = asyncio.new_event_loop()
    return run.loop.run_until_complete(done(awaitable))


link = Link(incoming, outgoing, {
    "names": names, "issubclass": issubclass, "index": operator.index, "value": lambda x: x, "hash": hash, "run": run,
    "call": call, "getattr": getattr, "setattr": setattr, "delattr": delattr, "getitem": getitem, "setitem": setitem,
    "delitem": delitem, "len": len, "iter": iter, "next": next, "bool": bool, "str": str, "repr": repr, "int": int,
    "float": float, "neg": lambda x: -x, "abs": abs, "isinstance": isinstance, "operate": operate}, keeps="answer")
# First come the classes of records, which the program may take for granted, and the names of other classes of the
# statements', which it may name in annotations.
first = link.hear()
link.scope = scope
for name, (text, fields) in first["classes"].items():
    link.fields[name] = fields
    exec(text, scope)
lazy = any(re.search(rf"\b{re.escape(name)}\b", source) for name in first["annotations"])
exec(compile(source, "answer.py", "exec", flags=__future__.annotations.compiler_flag if lazy else 0), scope)
link.serve(first)
while True:
    link.serve(link.hear())
