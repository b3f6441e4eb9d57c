# What a text of Python names and does not define, and what is taken for granted of such names.
import builtins
import importlib
import symtable

# As LiveCodeBench and verl give programs them: these modules, else what `from module import *` gives, the last one's.
# Those that take long to import stand first: they are looked at last.
GIVEN = ("statistics", "random", "json", "datetime", "string", "re", "copy", "collections", "heapq", "bisect", "math",
         "itertools", "functools", "operator", "io", "sys", "typing")


def free_names(source):
    """The names that `source` takes from outside of it, sorted. SyntaxError, ValueError: it is no Python."""
    module = symtable.symtable(source, "source", "exec")
    names, tables = set(), [module]
    while tables:
        table = tables.pop()
        tables += table.get_children()
        names |= {x.get_name() for x in table.get_symbols() if x.is_referenced() and (table is module or x.is_global())}
    bound = {x.get_name() for x in module.get_symbols() if x.is_assigned() or x.is_imported()}
    return sorted(names - bound)


def give(names):
    """Puts those of them that are taken for granted among the builtins: they are nobody's own."""
    for name in names:
        if name in GIVEN:
            setattr(builtins, name, importlib.import_module(name))
        if name.startswith("_") or hasattr(builtins, name):
            continue
        for module in map(importlib.import_module, reversed(GIVEN)):
            if name in getattr(module, "__all__", vars(module)):
                setattr(builtins, name, getattr(module, name))
                break
