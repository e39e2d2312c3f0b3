"""Whether what is written into a module means there what it means here.

A default of an argument is computed anew when a module is loaded, and a class has there what its source says. So what
was written is loaded once in this process, and what came of it is compared: defaults of functions, attributes of
classes.
"""

from __future__ import annotations

import enum
import inspect
import itertools
import sys
import types
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, cast

_NUMBERS = itertools.count()

Difference = tuple[str, object, object]
"""What differs, as `f(k=…)` or `K.X`, and what it is here and there."""

ABSENT: Any = type("Absent", (), {"__repr__": lambda self: "nothing"})()  # pyright: ignore[reportUnknownLambdaType]


def difference(text: str, defined: Mapping[str, object]) -> Difference | None:
    """The first thing of what is `defined` here that is another one in a module with this text, or may be."""
    name = f"_millstream_functions_{next(_NUMBERS)}"
    module = sys.modules[name] = types.ModuleType(name)
    try:
        exec(compile(text, f"<{name}>", "exec"), vars(module))
    except Exception:
        # It does not load in the other process either, whose error says more.
        return None
    finally:
        del sys.modules[name]
    comparison = _Comparison(name)
    for name, here in defined.items():
        for found in comparison.of_definition(name, here, vars(module).get(name, ABSENT)):
            return found
    return None


class _Comparison:
    """Compares things of this program with those of the module with this name."""

    def __init__(self, module: str) -> None:
        self._module = module
        self._compared = set[int]()

    def of_definition(self, name: str, here: Any, there: Any) -> Iterator[Difference]:
        """What differs in a function or a class."""
        if id(here) in self._compared:
            return
        self._compared.add(id(here))
        if isinstance(here, type) and isinstance(there, type):
            yield from self._of_class(name, here, there)
        else:
            yield from self._of_function(name, here, there)

    def _of_function(self, name: str, here: Any, there: Any) -> Iterator[Difference]:
        here, there = inspect.unwrap(here), inspect.unwrap(there)
        if not isinstance(here, types.FunctionType) or not isinstance(there, types.FunctionType):
            if type(here).__qualname__ != type(there).__qualname__:
                yield name, here, there
            return
        if here.__qualname__.rpartition(".")[2] != there.__qualname__.rpartition(".")[2]:
            yield name, here, there
        ours, theirs = _defaults(here), _defaults(there)
        for argument in {**ours, **theirs}:
            pair = ours.get(argument, ABSENT), theirs.get(argument, ABSENT)
            if not self._are_same(*pair):
                yield (f"{name}({argument}=…)", *pair)

    def _of_class(self, name: str, here: type, there: type) -> Iterator[Difference]:
        ours, theirs = _attributes(here), _attributes(there)
        for attribute in {**ours, **theirs}:
            pair = ours.get(attribute, ABSENT), theirs.get(attribute, ABSENT)
            shown = f"{name}.{attribute}"
            if any(one is ABSENT for one in pair):
                yield (shown, *pair)
            elif any(isinstance(one, type) for one in pair) and not self._are_same(*pair):
                yield (shown, *pair)
            elif all(map(_is_code, pair)):
                for function, other in zip(_functions(pair[0]), _functions(pair[1])):
                    yield from self._of_function(shown, function, other)
            elif not self._are_same(*pair):
                yield (shown, *pair)

    def _are_same(self, here: Any, there: Any) -> bool:
        """Whether they surely mean the same."""
        if here is there:
            return True
        if isinstance(here, (types.FunctionType, type)) and type(here) is type(there):
            if there.__module__ != self._module or here.__qualname__.rpartition(".")[2] != there.__name__:
                return False
            return not any(self.of_definition(here.__name__, here, there))
        if type(there).__module__ == self._module:
            # An object of a class that is written: it is equal to none of the class here.
            return type(here).__qualname__ == type(there).__qualname__ and self._have_same_state(here, there)
        if type(here) is not type(there):
            return False
        if isinstance(here, (list, tuple)):
            values = cast("Sequence[Any]", here)
            return len(values) == len(there) and all(map(self._are_same, values, there))
        if isinstance(here, dict):
            items = cast("dict[Any, Any]", here)
            return list(items) == list(there) and all(self._are_same(items[key], there[key]) for key in items)
        if isinstance(here, float):
            return repr(here) == repr(there)
        try:
            if here == there:
                return True
        except Exception:
            # Arrays compare element by element.
            pass
        return _pickled(here, 0) == _pickled(there, 1)

    def _have_same_state(self, here: Any, there: Any) -> bool:
        if isinstance(here, enum.Enum):
            return self._are_same((here.name, here.value), (there.name, there.value))
        kind: type[Any] = cast("Any", type(here))
        if tuple in kind.__mro__ and hasattr(kind, "_fields"):
            return self._are_same(list(here), list(there))
        states = [getattr(one, "__dict__", None) for one in (here, there)]
        has_more = hasattr(kind, "__slots__") or not _is_plain(kind)
        return None not in states and not has_more and self._are_same(*states)


def _pickled(value: Any, otherwise: int) -> bytes | int:
    """What the value is made of, in bytes, if it can be said."""
    import pickle

    try:
        return pickle.dumps(value)
    except Exception:
        return otherwise


def _is_plain(kind: type[Any]) -> bool:
    """Whether all that objects of this class have are attributes: none of its bases is written in C."""
    return all(base is object or base.__flags__ & 1 << 9 for base in kind.__mro__)


def _defaults(function: types.FunctionType) -> dict[str, object]:
    """The defaults of a function by the names of its arguments."""
    code, defaults = function.__code__, function.__defaults__ or ()
    names = code.co_varnames[:code.co_argcount]
    return {**dict(zip(names[len(names) - len(defaults):], defaults)), **(function.__kwdefaults__ or {})}


def _attributes(kind: type[Any]) -> dict[str, object]:
    """What the source of a class has given to it, and the program since."""
    given: Mapping[str, object] = vars(kind)
    if issubclass(kind, enum.Enum):
        methods = {name: value for name, value in given.items() if _is_code(value) and not name.startswith("_")}
        return {**methods, **{name: member.value for name, member in kind.__members__.items()}}
    return {name: value for name, value in given.items() if _is_code(value) or not _is_of_python(name)}


def _is_of_python(name: str) -> bool:
    """Whether an attribute is kept by Python itself."""
    return name.startswith("__") and name.endswith("__") or name in ("_abc_impl", "_is_protocol")


def _is_code(value: object) -> bool:
    """Whether it is a function, or computes something when it is asked for."""
    return not isinstance(value, type) and hasattr(type(value), "__get__")


def _functions(value: Any) -> list[Any]:
    """The functions in a method, a property or the like."""
    if isinstance(value, (staticmethod, classmethod)):
        return [cast("Any", value).__func__]
    if isinstance(value, property):
        return [value.fget, value.fset, value.fdel]
    return [value]
