# The end that has the program: it runs that as a module, and does with its names what the statements ask for.
incoming, outgoing = pipes()
with open("/run/answer.py", encoding="utf-8") as file:
    source = file.read()
scope = {"__name__": "answer", "__builtins__": __builtins__}
sys.argv = ["answer.py"]
exec(compile(source, "answer.py", "exec"), scope)


def operate(name, left, right):
    found = getattr(type(left), name, None)
    value = NotImplemented if found is None else found(left, right)
    if value is NotImplemented:
        reflected = {"__lt__": "__gt__", "__gt__": "__lt__", "__le__": "__ge__", "__ge__": "__le__", "__eq__": "__eq__",
                     "__ne__": "__ne__"}.get(name, "__r" + name[2:])
        found = getattr(type(right), reflected, None)
        value = NotImplemented if found is None else found(right, left)
    if value is NotImplemented:
        raise TypeError("unsupported operand types")
    return value


def getitem(x, key):
    return x[key]


def setitem(x, key, value):
    x[key] = value


def delitem(x, key):
    del x[key]


link = Link(incoming, outgoing, {
    "names": lambda names: {name: scope[name] for name in names if name in scope},
    "call": call, "getattr": getattr, "setattr": setattr, "delattr": delattr, "getitem": getitem, "setitem": setitem,
    "delitem": delitem, "len": len, "iter": iter, "next": next, "bool": bool, "str": str, "repr": repr, "int": int,
    "float": float, "neg": lambda x: -x, "abs": abs, "isinstance": isinstance, "operate": operate})
while True:
    link.serve(link.hear())
