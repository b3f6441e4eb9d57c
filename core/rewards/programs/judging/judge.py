# The end that has the statements. Names that they do not define are the program's, but for Python's own: its builtins
# and, where something of it is taken, its modules. Its last line is "passed", "failed" or "wrong: ...".
import ast
import importlib.util

# As what modules are known that are not Python's.
ALIASES = {"np": "numpy", "pd": "pandas", "sp": "scipy"}


def of_handles(operation):
    """Refuses what the statements gave no handle of: of `type` itself a program would make objects that equal anything."""

    def checked(target, *rest):
        if id(target) not in link.numbers:
            link.end()
        return operation(target, *rest)

    return checked


def is_there(module):
    top = module.split(".")[0]
    return top in sys.modules or importlib.util.find_spec(top) is not None


def modules_of(tree, free):
    """By the name of each, the modules that are known and of which something is taken."""
    of = {x.value.id for x in ast.walk(tree) if isinstance(x, ast.Attribute) and isinstance(x.value, ast.Name)}
    own = {name: name for name in of & free & sys.stdlib_module_names if is_there(name)}
    return own | {name: ALIASES[name] for name in of & free & ALIASES.keys()}


def imports_of(tree):
    tried = {id(x) for block in ast.walk(tree) if isinstance(block, ast.Try) for x in ast.walk(block)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import) and id(node) not in tried:
            yield from (name.name for name in node.names)
        if isinstance(node, ast.ImportFrom) and id(node) not in tried and node.module:
            yield node.module


def names_outside_functions(tree):
    """Those that are looked up where statements run, not only in functions and classes that they define."""
    definitions = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    run = [x for x in tree.body if not isinstance(x, definitions)]
    return {x.id for statement in run for x in ast.walk(statement) if isinstance(x, ast.Name)}


def can_fail(tree):
    """Whether a statement says what must hold; that nothing is raised holds of any program, nearly."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Assert):
            test = node.test
            if not (isinstance(test, ast.Constant) and test.value or isinstance(test, ast.Tuple) and test.elts):
                return True
        elif isinstance(node, ast.Raise):
            return True
        elif isinstance(node, (ast.Name, ast.Attribute)):  # of unittest, numpy.testing, pytest, os and builtins
            name = node.id if isinstance(node, ast.Name) else node.attr
            if name.startswith("assert") or name in ("fail", "raises", "exit", "_exit", "abort", "exec"):
                return True
    return False


HARMLESS = (ast.Name, ast.Constant, ast.List, ast.Tuple, ast.Dict, ast.UnaryOp, ast.USub, ast.Not, ast.IfExp,
            ast.BoolOp, ast.And, ast.Or, ast.Compare, ast.Is, ast.IsNot, ast.Call, ast.Load)


def is_harmless(node, names):
    """Whether it is made of these names and of nothing that may be expected: None, 0, 1, empty texts and containers."""
    return all(isinstance(x, HARMLESS) and (not isinstance(x, ast.Name) or x.id in names) and
               (not isinstance(x, ast.Constant) or x.value in (None, 0, 1, "")) for x in ast.walk(node))


def record_of(node):
    """Of a class that only keeps what it is made of, in `__init__`: that as a text, and the names of what it keeps."""
    makers = [x for x in node.body if isinstance(x, ast.FunctionDef) and x.name == "__init__"]
    if node.bases or node.keywords or node.decorator_list or len(makers) != 1:
        return None
    if not all(isinstance(x, ast.FunctionDef) and not x.decorator_list or
               isinstance(x, ast.Expr) and isinstance(x.value, ast.Constant) for x in node.body):
        return None
    (maker,) = makers
    given = maker.args
    parameters = [x.arg for x in given.posonlyargs + given.args + given.kwonlyargs]
    if given.vararg or given.kwarg or not parameters:
        return None
    if not all(is_harmless(x, []) for x in given.defaults + [x for x in given.kw_defaults if x]):
        return None
    lines, fields = [], []
    for line in maker.body:
        if isinstance(line, ast.Expr) and isinstance(line.value, ast.Constant):
            continue
        target = line.targets[0] if isinstance(line, ast.Assign) else getattr(line, "target", None)
        value = getattr(line, "value", None)
        keeps = isinstance(line, ast.Assign) and len(line.targets) == 1 or isinstance(line, ast.AnnAssign)
        is_member = isinstance(target, ast.Attribute) and isinstance(target.value, ast.Name)
        if not keeps or not is_member or target.value.id != parameters[0] or target.attr.startswith("_"):
            return None
        if value is None or not is_harmless(value, [*parameters[1:], "int", "list"]):
            return None
        lines.append(ast.Assign([target], value, lineno=1))
        fields.append(target.attr)
    for argument in given.posonlyargs + given.args + given.kwonlyargs:
        argument.annotation = None
    init = ast.FunctionDef("__init__", given, lines or [ast.Pass()], [], lineno=1)
    return ast.unparse(ast.ClassDef(node.name, [], [], [init], [])), fields


incoming, outgoing = pipes()
with open("/run/answer.py", encoding="utf-8") as file:
    statements = file.read()
link = Link(incoming, outgoing, {"call": of_handles(call), "iter": of_handles(iter), "next": of_handles(next),
                                 "value": of_handles(lambda x: x)})
try:
    tree = ast.parse(statements)
    free = set(free_names(statements))
except (SyntaxError, ValueError) as error:
    link.say("wrong: " + str(error))
    sys.exit()
if not can_fail(tree):
    link.say("wrong: nothing in it can fail: it has no assert, or one that always holds, and raises nothing")
    sys.exit()
modules = modules_of(tree, free)
for module in [*modules.values(), *imports_of(tree)]:
    if not is_there(module):
        link.say("wrong: it needs the module " + module + ", which /usr/bin/python3 of this machine does not have")
        sys.exit()
asked = sorted(name for name in free - modules.keys() if not hasattr(builtins, name))
if not asked and len(free) == 1:
    asked = list(free)  # MBPP's `assert sum(10, 15) == 6`: the only name of a test is what it tests
scope = {name: importlib.import_module(module) for name, module in modules.items()}
theirs = {}
classes = {x.name: x for x in tree.body if isinstance(x, ast.ClassDef)}
records = {name: record for name, x in classes.items() if (record := record_of(x))}
link.scope, link.fields = scope, {name: fields for name, (_, fields) in records.items()}
try:
    reply = link.ask("names", asked, more={"classes": records, "annotations": [*classes.keys() - records.keys()]})
    theirs = {name: reply[name] for name in asked if name in reply}
    scope |= theirs | {"__name__": "judge", "__builtins__": __builtins__}
    exec(compile(tree, "tests", "exec"), scope)
except BaseException:
    link.ended = True
if link.ended:
    link.say("failed")
elif link.asks == 1 and not names_outside_functions(tree) & set(asked):
    # Whatever the program: it has had no part in it.
    link.say("wrong: it calls nothing of the program's, such as functions of a test that nobody calls")
else:
    link.say("passed")
