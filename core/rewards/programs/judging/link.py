# Both ends of the conversation between statements that test a program and the program: each in a process of its own,
# so that neither sees more of the other than what is said here. A line of JSON each way in turn. Data goes by value
# (values.py), everything else as a handle, whose owner does what is asked with it.
#
# What the statements find is computed at their end, out of plain values. A call is told arguments, a look-up a key or
# a name: what comes back is what is tested. What an operator is told may be what is expected (f(2.0) - 3.14): from then
# on the program's word is no data any more (Link.ask), and a comparison with plain values is never the program's.
import builtins
import json
import numbers
import operator
import os
import sys
from collections.abc import Hashable

sys.set_int_max_str_digits(0)

# Replies whose containers may be the very ones that were given.
IDENTICAL = (list, tuple, dict, set, frozenset, bytearray)
UNARY = ("len", "iter", "next", "bool", "str", "repr", "int", "index", "float", "neg", "abs")
BINARY = ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "matmul", "lshift", "rshift", "and", "or", "xor")
ORDER = ("eq", "ne", "lt", "le", "gt", "ge")


class Ended(BaseException):
    """The other end is gone, does not keep to the protocol, or was asked for what does not count."""


class Remote:
    """An object of the other end; `has_value` where its class derives from one of plain values."""

    def __init__(self, link, number, has_value):
        object.__setattr__(self, "_remote_link", link)
        object.__setattr__(self, "_remote_number", number)
        object.__setattr__(self, "_remote_has_value", has_value)

    def __call__(self, *args, **kwargs):
        return self._remote_link.ask("call", self, kwargs, *args)

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return self._remote_link.ask("getattr", self, name)

    def __setattr__(self, name, value):
        self._remote_link.ask("setattr", self, name, value)

    def __delattr__(self, name):
        self._remote_link.ask("delattr", self, name)

    def __getitem__(self, key):
        return self._remote_link.ask("getitem", self, key)

    def __setitem__(self, key, value):
        self._remote_link.ask("setitem", self, key, value)

    def __delitem__(self, key):
        self._remote_link.ask("delitem", self, key)

    def __enter__(self):
        return self._remote_link.ask("call", self._remote_link.ask("getattr", self, "__enter__"), {})

    def __exit__(self, kind, error, trace):
        # That it has dealt with the error does not count: that would end a failed assert.
        self._remote_link.ask("call", self._remote_link.ask("getattr", self, "__exit__"), {}, kind, None, None)

    def __instancecheck__(self, value):
        return isinstance(value, Remote) and self._remote_link.ask("isinstance", value, self)

    def __subclasscheck__(self, value):
        return isinstance(value, Remote) and self._remote_link.ask("issubclass", value, self)

    def __contains__(self, item):
        # Of all that it gives: else an iterator without end would find anything.
        elements = self._remote_link.value(self) if self._remote_has_value else [x for x in self]
        return any(x is item or x == item for x in elements)

    def __aiter__(self):
        return self._remote_link.ask("call", self._remote_link.ask("getattr", self, "__aiter__"), {})

    async def __anext__(self):
        next_one = self._remote_link.ask("call", self._remote_link.ask("getattr", self, "__anext__"), {})
        return self._remote_link.ask("run", next_one)

    def __hash__(self):
        return hash(self._remote_link.value(self)) if self._remote_has_value else self._remote_link.hash(self)


def unary(name):
    setattr(Remote, "__" + name + "__", lambda self: self._remote_link.ask(name, self))


def binary(name):
    # Of an object whose class derives from a number's or a text's, and a value of this end's: what its value gives.
    operate = getattr(operator, "__" + name + "__")

    def forward(self, other):
        if self._remote_link.computes(self, other):
            return operate(self._remote_link.value(self), other)
        return self._remote_link.ask("operate", "__" + name + "__", self, other)

    def reflected(self, other):
        if self._remote_link.computes(self, other):
            return operate(other, self._remote_link.value(self))
        return self._remote_link.ask("operate", "__" + name + "__", other, self)

    setattr(Remote, "__" + name + "__", forward)
    setattr(Remote, "__r" + name + "__", reflected)


def ordering(name):
    # What an object says of itself beside a value of this end's is not asked: it could claim to equal anything.
    def compare(self, other):
        if self is other and name in ("eq", "ne"):
            return name == "eq"
        if isinstance(other, Remote):
            return self._remote_link.ask("operate", "__" + name + "__", self, other)
        if not self._remote_has_value:
            return NotImplemented
        return getattr(operator, name)(self._remote_link.value(self), other)

    setattr(Remote, "__" + name + "__", compare)


for each in UNARY:
    unary(each)
for each in BINARY:
    binary(each)
for each in ORDER:
    ordering(each)


class Link(Values):
    def __init__(self, incoming, outgoing, operations, keeps=None):
        super().__init__(keeps)
        self.incoming, self.outgoing, self.operations = incoming, outgoing, operations
        self.values = {}  # of those that have one, by number: the same in each comparison until it may have changed
        self.hashes = {}  # by number
        self.errors = {}  # classes of exceptions that only the other end has
        self.ended = False
        self.asks = 0
        self.told = False  # an operator has told the other end data

    def end(self):
        self.ended = True  # whoever catches it
        raise Ended()

    def say(self, message):
        if self.named:
            message["records"] = self.states()
        self.outgoing.write(json.dumps(message) + "\n")
        self.outgoing.flush()

    def hear(self):
        try:
            message = json.loads(self.incoming.readline())
        except (ValueError, RecursionError):
            message = None
        if type(message) is not dict or "records" in message and self.told:
            self.end()
        try:
            self.take(message.get("records", []))
        except Exception:
            self.end()
        return message

    def ask(self, operation, *operands, more={}):
        """Has the other end do it. What that asks for meanwhile is done here."""
        self.asks += 1
        between_handles = all(isinstance(x, Remote) for x in operands[1:] if operation == "operate")
        self.told = self.told or not between_handles
        if operation not in ("value", "bool", "len"):
            self.values = {n: x for n, x in self.values.items() if isinstance(x, Hashable)}
        self.say({"do": operation, "with": [self.encode(x) for x in operands]} | more)
        while "do" in (reply := self.hear()):
            self.serve(reply)
        try:
            raised = self.error(reply) if "raised" in reply else None
            same = reply.get("same") if operation == "call" and not self.told else None
            value = None if raised else self.decode(reply["value"]) if same is None else operands[2:][same]
            changes = [(operands[place], self.decode(now)) for place, now in reply.get("changed", [])]
        except Exception:
            self.end()
        if self.told:
            is_truth = type(value) is bool and operation in ("operate", "isinstance", "issubclass") and between_handles
            is_nothing = value is None and operation in ("call", "run", "setattr", "setitem", "delattr", "delitem")
            # A look-up's, such as an iteration's end, is data.
            is_error = raised and operation in ("call", "run", "operate")
            if not (is_truth or is_error or is_nothing and not raised or isinstance(value, Remote)):
                self.end()
        if changes and (self.told or operation != "call"):
            self.end()
        for own, now in changes:
            changed(own, now)
        if isinstance(raised, StopIteration) and operation != "next":
            raised = RuntimeError("StopIteration")  # else it would end an iteration of this end's
        if raised:
            raise raised
        return value

    def value(self, handle):
        """Of an object whose class derives from one of plain values: what it is as one of those."""
        if self.told:
            self.end()  # which of its objects the other end gives back is its choice
        if handle._remote_number not in self.values:
            value = self.ask("value", handle)
            if isinstance(value, Remote):
                self.end()
            self.values[handle._remote_number] = value
        return self.values[handle._remote_number]

    def hash(self, handle):
        """Of two of the program's objects, beside whether they are equal: whether they are one in a set."""
        if self.keeps or self.told:
            return self.hashes.get(handle._remote_number, handle._remote_number)
        if handle._remote_number not in self.hashes:
            self.hashes[handle._remote_number] = hash(int(self.ask("hash", handle)))
        return self.hashes[handle._remote_number]

    async def awaited(self, handle):
        try:
            return self.ask("run", handle)
        except StopAsyncIteration:
            raise RuntimeError("StopAsyncIteration")  # else it would end an iteration of this end's

    def computes(self, handle, other):
        """Whether an operator between the two is done here, with the handle's value, which tells the other end nothing."""
        if not handle._remote_has_value or isinstance(other, Remote) or self.told:
            return False
        return isinstance(self.value(handle), (numbers.Number, str, bytes))

    def serve(self, message):
        """Does what the other end asks, and answers."""
        reply = {}
        try:
            operation, operands = message["do"], [self.decode(x) for x in message["with"]]
        except Exception:
            self.end()
        before = [self.encode(x) for x in operands[1:]] if operation == "call" else []
        try:
            if operation not in self.operations:
                self.end()
            value = self.operations[operation](*operands)
            given = [i for i, x in enumerate(operands[2:]) if x is value and type(x) in IDENTICAL]
            if operation == "call" and given and self.keeps:
                reply["same"] = given[0]
            else:
                reply["value"] = self.encode(value, by_value=operation == "value")
        except Ended:
            raise
        except BaseException as error:
            reply = {"raised": [c.__name__ for c in type(error).__mro__], "text": str(error)}
            if self.keeps:
                reply |= self.parts(error)
        now = [self.encode(x) for x in operands[1 : len(before) + 1]]
        reply["changed"] = [(i + 1, x) for i, x in enumerate(now) if x != before[i]]
        self.say(reply)

    def parts(self, error):
        """What an exception is made of, and what its class adds to Python's."""
        base = next(c for c in type(error).__mro__ if getattr(builtins, c.__name__, None) is c)
        parts = {}
        for name in sorted(set(dir(error)) - set(dir(base))):
            try:
                part = getattr(error, name)
            except Exception:
                continue
            if not name.startswith("_") and not callable(part):
                parts[name] = part
        return {"args": self.encode(error.args), "parts": self.encode(parts)}

    def error_class(self, names):
        for i, name in enumerate(names):
            found = getattr(builtins, name, None)
            if isinstance(found, type) and issubclass(found, BaseException):
                for own in reversed(names[:i]):
                    if own not in self.errors:
                        self.errors[own] = type(own, (found,), {"__str__": lambda self, is_text=found.__str__: vars(
                            self).get("_remote_text") or is_text(self)})
                    found = self.errors[own]
                return found
        return Exception

    def error(self, reply):
        found, text = self.error_class(reply["raised"]), str(reply["text"])
        arguments = (text,) if self.told or "args" not in reply else self.decode(reply["args"])
        try:
            error = found(*arguments)
        except Exception:
            error = found.__new__(found, *arguments)  # some take others of them
        if found in self.errors.values():
            error._remote_text = text
        for name, part in [] if self.told or "parts" not in reply else self.decode(reply["parts"]).items():
            if name.isidentifier() and not name.startswith("_") and not hasattr(found, name):
                vars(error)[name] = part
        return error


def pipes():
    """What this process talks over; for everything else in it there is nothing to read and nobody to write to."""
    incoming, outgoing = os.fdopen(os.dup(0), "r", encoding="ascii"), os.fdopen(os.dup(1), "w", encoding="ascii")
    nothing = os.open("/dev/null", os.O_RDWR)
    os.dup2(nothing, 0)
    os.dup2(nothing, 1)
    return incoming, outgoing


def call(function, kwargs, *args):
    return function(*args, **kwargs)
