# The end that has the statements. Names that they do not define are the program's, but for Python's own: its builtins
# and, where something of it is taken, its modules. Its last line is "passed", "failed" or "wrong: ...".
import ast

# As what modules are known that are not Python's.
ALIASES = {"np": "numpy", "pd": "pandas", "sp": "scipy"}


def of_handles(operation):
    """Refuses what the statements gave no handle of: of `type` itself a program would make objects that equal anything."""

    def checked(target, *rest):
        if id(target) not in link.numbers:
            raise Ended()
        return operation(target, *rest)

    return checked


incoming, outgoing = pipes()
with open("/run/answer.py", encoding="utf-8") as file:
    statements = file.read()
link = Link(incoming, outgoing, {"call": of_handles(call), "iter": of_handles(iter), "next": of_handles(next)})
try:
    tree = ast.parse(statements)
except (SyntaxError, ValueError) as error:
    link.say("wrong: " + str(error))
    sys.exit()
scope = {"__name__": "judge", "__builtins__": __builtins__}
used = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
modules = {node.value.id for node in ast.walk(tree) if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name)}
for name in modules:
    if name in sys.stdlib_module_names or name in ALIASES:
        try:
            scope[name] = importlib.import_module(ALIASES.get(name, name))
        except ImportError:
            pass
scope.update(link.ask("names", sorted(n for n in used if not hasattr(builtins, n) and n not in scope)))
try:
    exec(compile(tree, "tests", "exec"), scope)
except BaseException:
    link.say("failed")
else:
    link.say("passed")
