# The end that has the program: it runs that as a module, and does with its names what the statements ask for.
incoming, outgoing = pipes()
with open("/run/answer.py", encoding="utf-8") as file:
    source = file.read()
scope = {"__name__": "answer", "__builtins__": __builtins__}
sys.argv = ["answer.py"]
exec(compile(source, "answer.py", "exec"), scope)


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


link = Link(incoming, outgoing, {
    "names": names, "issubclass": issubclass, "index": operator.index, "value": lambda x: x,
    "call": call, "getattr": getattr, "setattr": setattr, "delattr": delattr, "getitem": getitem, "setitem": setitem,
    "delitem": delitem, "len": len, "iter": iter, "next": next, "bool": bool, "str": str, "repr": repr, "int": int,
    "float": float, "neg": lambda x: -x, "abs": abs, "isinstance": isinstance, "operate": operate}, keeps="answer")
while True:
    link.serve(link.hear())
