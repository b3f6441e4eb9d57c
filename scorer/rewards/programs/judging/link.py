# Both ends of the conversation between statements that test a program and the program: each in a process of its own,
# so that neither sees more of the other than what is said here. A line of JSON each way in turn. Data goes by value,
# everything else as a handle, whose owner does what is asked with it.
#
# What the statements find is computed at their end, out of plain values. A call is told arguments, a look-up a key or
# a name: what comes back is what is tested. What an operator is told may be what is expected (f(2.0) - 3.14): from then
# on the program's word is no data any more (Link.ask), and a comparison with plain values is never the program's.
import base64
import builtins
import collections
import datetime
import decimal
import fractions
import json
import numbers
import operator
import os
import sys
from collections.abc import Hashable

sys.set_int_max_str_digits(0)

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

    def __hash__(self):
        return hash(self._remote_link.value(self) if self._remote_has_value else self._remote_number)


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


class Link:
    def __init__(self, incoming, outgoing, operations, keeps=None):
        self.incoming, self.outgoing, self.operations = incoming, outgoing, operations
        self.keeps = keeps  # the module whose classes' objects stay here, derived from plain ones or not
        self.mine, self.numbers = [], {}  # objects that the other end has handles of
        self.theirs = {}  # handles of theirs, by number
        self.values = {}  # of those that have one, by number: the same in each comparison until it may have changed
        self.errors = {}  # classes of exceptions that only the other end has
        self.ended = False
        self.asks = 0
        self.told = False  # an operator has told the other end data

    def end(self):
        self.ended = True  # whoever catches it
        raise Ended()

    def say(self, message):
        self.outgoing.write(json.dumps(message) + "\n")
        self.outgoing.flush()

    def hear(self):
        try:
            message = json.loads(self.incoming.readline())
        except (ValueError, RecursionError):
            message = None
        if type(message) is not dict:
            self.end()
        return message

    def ask(self, operation, *operands):
        """Has the other end do it. What that asks for meanwhile is done here."""
        self.asks += 1
        between_handles = all(isinstance(x, Remote) for x in operands[1:] if operation == "operate")
        self.told = self.told or not between_handles
        if operation not in ("value", "bool", "len"):
            self.values = {n: x for n, x in self.values.items() if isinstance(x, Hashable)}
        self.say({"do": operation, "with": [self.encode(x) for x in operands]})
        while "do" in (reply := self.hear()):
            self.serve(reply)
        try:
            raised = self.error(reply["raised"], self.decode(reply["arguments"])) if "raised" in reply else None
            value = None if raised else self.decode(reply["value"])
            changes = [(operands[place], self.decode(now)) for place, now in reply.get("changed", [])]
        except Exception:
            self.end()
        if self.told:
            is_truth = type(value) is bool and operation in ("operate", "isinstance", "issubclass") and between_handles
            is_nothing = value is None and operation in ("call", "setattr", "setitem", "delattr", "delitem")
            is_error = raised and operation in ("call", "operate")  # a look-up's, such as an iteration's end, is data
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
            reply["value"] = self.encode(self.operations[operation](*operands), by_value=operation == "value")
        except Ended:
            raise
        except BaseException as error:
            reply = {"raised": [c.__name__ for c in type(error).__mro__], "arguments": self.encode([str(error)])}
        now = [self.encode(x) for x in operands[1 : len(before) + 1]]
        reply["changed"] = [(i + 1, x) for i, x in enumerate(now) if x != before[i]]
        self.say(reply)

    def error_class(self, names):
        for i, name in enumerate(names):
            found = getattr(builtins, name, None)
            if isinstance(found, type) and issubclass(found, BaseException):
                for own in reversed(names[:i]):
                    if own not in self.errors:
                        self.errors[own] = type(own, (found,), {})
                    found = self.errors[own]
                return found
        return Exception

    def error(self, names, arguments):
        found = self.error_class(names)
        return found.__new__(found, *arguments)  # some take more of them

    def handle(self, kind, x):
        if id(x) not in self.numbers:
            self.numbers[id(x)] = len(self.mine)
            self.mine.append(x)
        return {kind: self.numbers[id(x)]}

    def encode(self, x, by_value=False):
        if self.keeps and not by_value and isinstance(x, PLAIN) and type(x).__module__ == self.keeps:
            return self.handle("like", x)
        if x is None or isinstance(x, (bool, str)):
            return x if type(x) in (bool, str, type(None)) else str.__str__(x)
        if isinstance(x, int):
            return int.__int__(x)
        if isinstance(x, float):
            return float.__float__(x)
        if isinstance(x, (list, tuple)):
            base = list if isinstance(x, list) else tuple
            return {base.__name__: [self.encode(y) for y in base.__iter__(x)]}
        if isinstance(x, (set, frozenset)):
            return {"frozenset" if isinstance(x, frozenset) else "set": [self.encode(y) for y in x]}
        if isinstance(x, dict):
            return {"dict": [[self.encode(k), self.encode(v)] for k, v in dict.items(x)]}
        if isinstance(x, collections.deque):
            return {"deque": [[self.encode(y) for y in x], x.maxlen]}
        if isinstance(x, (bytes, bytearray)):
            return {"bytearray" if isinstance(x, bytearray) else "bytes": base64.b64encode(x).decode()}
        if isinstance(x, complex):
            return {"complex": [x.real, x.imag]}
        if isinstance(x, range):
            return {"range": [x.start, x.stop, x.step]}
        if isinstance(x, slice):
            return {"slice": [self.encode(y) for y in (x.start, x.stop, x.step)]}
        if isinstance(x, fractions.Fraction):
            return {"fraction": [int(x.numerator), int(x.denominator)]}
        if isinstance(x, decimal.Decimal):
            return {"decimal": str(x)}
        if type(x) in TIMES and getattr(x, "tzinfo", None) is None:
            return {type(x).__name__: [getattr(x, part) for part in TIMES[type(x)]]}
        if isinstance(x, type) and issubclass(x, BaseException):
            return {"error": [c.__name__ for c in x.__mro__]}
        if isinstance(x, type) and getattr(builtins, x.__name__, None) is x:
            return {"type": x.__name__}
        if isinstance(x, Remote):
            return {"yours": x._remote_number}
        if type(x).__module__ == "numpy" and hasattr(x, "tolist") and hasattr(x, "dtype"):
            value = x.tolist()
            return {"array": [x.dtype.str, self.encode(value)]} if isinstance(value, list) else self.encode(value)
        return self.handle("mine", x)

    def decode(self, x):
        if not isinstance(x, dict):
            return x
        ((kind, value),) = x.items()
        if kind in ("list", "tuple", "set", "frozenset"):
            return getattr(builtins, kind)([self.decode(y) for y in value])
        if kind == "dict":
            return {self.decode(k): self.decode(v) for k, v in value}
        if kind == "deque":
            return collections.deque([self.decode(y) for y in value[0]], value[1])
        if kind in ("bytes", "bytearray"):
            return getattr(builtins, kind)(base64.b64decode(value))
        if kind in ("complex", "range"):
            return getattr(builtins, kind)(*value)
        if kind == "slice":
            return slice(*[self.decode(y) for y in value])
        if kind == "fraction":
            return fractions.Fraction(*value)
        if kind == "decimal":
            return decimal.Decimal(value)
        for time in TIMES:
            if kind == time.__name__:
                return time(*value)
        if kind == "error":
            return self.error_class(value)
        if kind == "type":
            found = getattr(builtins, value)
            if not isinstance(found, type):
                self.end()
            return found
        if kind == "array":
            import numpy

            return numpy.array(self.decode(value[1]), dtype=value[0])
        if kind == "yours":
            return self.mine[value]
        if kind in ("mine", "like"):
            if value not in self.theirs:
                self.theirs[value] = Remote(self, value, has_value=kind == "like")
            return self.theirs[value]
        self.end()


# Of dates and times, what their classes are made of.
TIMES = {
    datetime.datetime: ("year", "month", "day", "hour", "minute", "second", "microsecond"),
    datetime.date: ("year", "month", "day"),
    datetime.time: ("hour", "minute", "second", "microsecond"),
    datetime.timedelta: ("days", "seconds", "microseconds"),
}
PLAIN = (str, int, float, list, tuple, set, frozenset, dict, collections.deque, bytes, bytearray, complex,
         fractions.Fraction, decimal.Decimal)


def changed(own, now):
    """What has become of `own`, which a function has made `now`: where it can be changed in place, itself."""
    kind = type(now)
    if not isinstance(own, kind):
        return now
    if kind is list:
        own[:] = [changed(x, y) for x, y in zip(own, now)] + now[len(own) :]
    elif kind is dict:
        items = {key: changed(own[key], x) if key in own else x for key, x in now.items()}
        own.clear()
        own.update(items)
    elif kind is tuple:
        items = tuple(changed(x, y) for x, y in zip(own, now))
        return own if len(own) == len(now) and all(x is y for x, y in zip(own, items)) else now
    elif kind in (set, collections.deque):
        own.clear()
        (own.update if kind is set else own.extend)(now)
    elif kind is bytearray:
        own[:] = now
    elif kind.__name__ == "ndarray" and own.shape == now.shape:
        own[...] = now
    else:
        return now
    return own


def pipes():
    """What this process talks over; for everything else in it there is nothing to read and nobody to write to."""
    incoming, outgoing = os.fdopen(os.dup(0), "r", encoding="ascii"), os.fdopen(os.dup(1), "w", encoding="ascii")
    nothing = os.open("/dev/null", os.O_RDWR)
    os.dup2(nothing, 0)
    os.dup2(nothing, 1)
    return incoming, outgoing


def call(function, kwargs, *args):
    return function(*args, **kwargs)
