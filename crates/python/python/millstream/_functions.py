"""Functions of a program as functions of files, which the processes of a run load.

A function of an importable module is loaded from its file. One of a notebook, of the main program or of a prompt that
keeps its source is written into a module, with everything that it refers to:

    a module             import numpy as np
    of another module    from statistics import median
    of the same place    its source, and what that refers to
    a constant           LIMITS = {'low': 1, 'high': 9}

What is written is loaded once here: a default or an attribute of a class that is another one there is refused.

Everything else (a frame, a connection, a variable of a function around it) is refused.
"""

from __future__ import annotations

import ast
import builtins
import dis
import inspect
import os
import re
import sys
import textwrap
import types
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from millstream._errors import of_caller

Function = Callable[..., object]

Entry = tuple[str, str]
"""The section and the name of an entry of a job."""

_ELSEWHERE = "write the function in a .py file, and import it or name it: \"features.py:score\""


def check(function: Function) -> None:
    """Refuses what cannot be called in another process, so that the mistake is found where the function is named."""
    if _file_of(function) is None:
        source = _Source()
        source.add(function)
        source.check()


class Modules:
    """The files of some functions."""

    def __init__(self, paths: Mapping[Entry, str], written: Mapping[str, str]) -> None:
        self.paths = paths
        """For each entry, its function as a job file names it: `features.py:score`."""
        self._written = written
        self._folder: Any = None

    @classmethod
    def temporary(cls, functions: Mapping[Entry, Function]) -> Modules:
        """Files for a run, which are removed on exit. What they import is found where this program finds it."""
        import tempfile

        folder = tempfile.TemporaryDirectory(prefix="millstream-") if functions else None
        try:
            found = (
                f"import sys\n\nsys.path += [path for path in {[os.path.abspath(path) for path in sys.path]!r}"
                " if path not in sys.path]\n\n"
            )
            modules = cls._of(functions, os.path.join(folder.name, "functions.py") if folder else "", None, found)
            modules._folder = folder
            modules.write()
        except BaseException:
            if folder is not None:
                folder.cleanup()
            raise
        return modules

    @classmethod
    def beside(cls, job: str, functions: Mapping[Entry, Function]) -> Modules:
        """Files that a job file can name: importable ones where they are, the others beside it."""
        stem = re.sub(r"\W", "_", os.path.splitext(os.path.basename(job))[0])
        folder = os.path.dirname(os.path.abspath(job))
        return cls._of(functions, os.path.join(folder, f"{stem}_functions.py"), folder, "")

    @classmethod
    def _of(cls, functions: Mapping[Entry, Function], own: str, folder: str | None, before: str) -> Modules:
        source, paths = _Source(), dict[Entry, str]()
        for entry, function in functions.items():
            file = _file_of(function)
            name = function.__qualname__ if file is not None else source.add(function)
            path = file if file is not None else own
            paths[entry] = f"{path if folder is None else os.path.relpath(path, folder)}:{name}"
        source.check()
        return cls(paths, {own: source.text(before)} if source.is_used else {})

    def write(self) -> None:
        """Writes the files that are not there."""
        for path, text in self._written.items():
            with open(path, "w", encoding="utf-8") as file:
                file.write(text)

    def __enter__(self) -> Modules:
        return self

    def __exit__(self, *_: object) -> None:
        if self._folder is not None:
            self._folder.cleanup()


def _file_of(function: Function) -> str | None:
    """The file of a function that its module can be asked for; `None` if it is not one of an importable module."""
    module = sys.modules.get(getattr(function, "__module__", None) or "")
    file = getattr(module, "__file__", None)
    if module is None or _is_main(module) or file is None or not file.endswith(".py"):
        return None
    # A module in a package may import its neighbours, which it does not find on its own.
    if "." in module.__name__ or _reached(module, function) is not function:
        return None
    return os.path.abspath(file)


def _is_main(module: types.ModuleType) -> bool:
    return module.__name__ in ("__main__", "__mp_main__")


def _reached(module: types.ModuleType, value: Any) -> object:
    """What the module has under the name of the value."""
    reached: object = module
    for part in (getattr(value, "__qualname__", None) or "").split("."):
        reached = getattr(reached, part, None)
    return reached


class _Source:
    """The text of a module, as it grows."""

    def __init__(self) -> None:
        self._imports: dict[str, None] = {}
        self._constants: dict[str, str] = {}
        self._definitions: list[str] = []
        self._known: dict[str, object] = {}
        self._defined: dict[str, object] = {}
        """The functions and classes that are there by their source."""

    @property
    def is_used(self) -> bool:
        """Whether there is anything in it."""
        return bool(self._known)

    def text(self, before: str) -> str:
        """The module. `before` comes before its imports."""
        constants = [f"{name} = {value}\n" for name, value in self._constants.items()]
        parts = ["".join(f"{line}\n" for line in self._imports), "".join(constants), *self._definitions]
        text = "\n\n".join(part.strip("\n") + "\n" for part in parts if part)
        return f"from __future__ import annotations\n\n{before}{text}"

    def add(self, function: Function) -> str:
        """Adds a function. Returns its name."""
        name = getattr(function, "__name__", type(function).__name__)
        if not isinstance(function, types.FunctionType):
            what = f"`{name}` is a {type(function).__name__}, and no function that was defined with `def`"
            raise of_caller(what, hint=f"call it in a function: def call(row): …; or {_ELSEWHERE}")
        if name == "<lambda>":
            raise of_caller("a lambda has no name that another process could find", hint="define it with `def`")
        module = sys.modules.get(function.__module__)
        if module is not None and not _is_main(module) and _reached(module, function) is function:
            self._know(name, function, name)
            self._imports[f"from {module.__name__} import {function.__qualname__}"] = None
            return name
        self._define(name, function, name)
        return name

    def check(self) -> None:
        """Refuses what has other defaults or attributes in the module than here."""
        from millstream._same import difference

        found = difference(self.text(""), self._defined) if self._defined else None
        if found is None:
            return
        what, here, there = found
        name = re.split(r"\W", what)[0]
        hint = f"write the value into `{name}`, define `{name}` anew, or {_ELSEWHERE}"
        if _shown(here) == _shown(there):
            what = f"`{what}`, {_shown(here)}, cannot be compared with what its source gives in another process"
        else:
            what = f"`{what}` is {_shown(here)} here, and its source gives {_shown(there)} in another process"
        raise of_caller(what, text=name, hint=hint)

    def _know(self, name: str, value: object, user: str) -> None:
        """Two functions of different notebooks, say, may mean different things by one name."""
        if name in self._known and self._known[name] is not value:
            raise of_caller(
                f"two things of the job are called `{name}`, and `{user}` needs one of them", hint="rename one of them"
            )
        self._known[name] = value

    def _define(self, name: str, defined: Any, user: str) -> None:
        """Adds a function or a class by its source, after what it refers to."""
        self._know(name, defined, user)
        text = _source_of(name, defined)
        tree = ast.parse(text)
        own = _globals_of(defined)
        for used in _names(compile(_without_annotations(tree), f"<source of {name}>", "exec")):
            if used.startswith("__") and used.endswith("__"):
                continue
            if used not in self._known and (used in own or not hasattr(builtins, used)):
                self._refer(used, own, name)
        self._definitions.append(text)
        self._defined[name] = defined

    def _refer(self, name: str, own: Mapping[str, Any], user: str) -> None:
        """Adds what `name` is for `user`."""
        if name not in own:
            what = f"`{user}` refers to `{name}`, which is not defined"
            raise of_caller(what, text=name, hint=f"define `{name}` first")
        value = own[name]
        if isinstance(value, types.ModuleType):
            self._know(name, value, user)
            self._imports[_import_of(name, value, user)] = None
        elif (line := _imported(name, value)) is not None:
            self._know(name, value, user)
            self._imports[line] = None
        elif isinstance(value, (types.FunctionType, type)):
            self._define(value.__name__, value, user)
            if value.__name__ != name:
                self._know(name, value, user)
                self._definitions.append(f"{name} = {value.__name__}\n")
        else:
            self._know(name, value, user)
            self._constants[name] = self._constant(name, value, user)

    def _constant(self, name: str, value: object, user: str) -> str:
        """The text of a constant."""
        if isinstance(value, re.Pattern):
            pattern: Any = value  # pyright: ignore[reportUnknownVariableType]
            self._imports["import re"] = None
            self._known.setdefault("re", re)
            return f"re.compile({pattern.pattern!r}, {int(pattern.flags)})"
        if _is_literal(value):
            return repr(value)
        what = f"`{user}` refers to `{name}`, a {type(value).__name__}, which cannot be written into a module"
        raise of_caller(what, text=name, hint=f"make it in the function, or {_ELSEWHERE}")


def _shown(value: object) -> str:
    """A value in a message."""
    shown = re.sub(r" at 0x[0-9a-f]+|\b(_millstream_functions_\d+|__main__)\.", "", repr(value))
    return shown if len(shown) <= 60 else f"{shown[:57]}…"


def _source_of(name: str, defined: Any) -> str:
    """The source of a function or a class, as it can stand in a module."""
    code = getattr(inspect.unwrap(defined) if callable(defined) else defined, "__code__", None)
    if code is not None and code.co_freevars:
        free = ", ".join(f"`{one}`" for one in code.co_freevars)
        what = f"`{name}` refers to {free} of the function around it, which another process does not have"
        raise of_caller(what, hint=f"define `{name}` outside of other functions, with constants in place of {free}")
    try:
        text = _at_margin(inspect.getsource(defined))
        body = ast.parse(text).body
        body = body[0].body if isinstance(body[0], ast.If) else body
    except (OSError, TypeError, SyntaxError):
        raise of_caller(f"the source of `{name}` is not known", hint=_ELSEWHERE) from None
    if len(body) != 1 or not isinstance(body[0], (ast.FunctionDef, ast.ClassDef)) or body[0].name != name:
        raise of_caller(f"`{name}` is not defined by a `def` of that name", hint=_ELSEWHERE)
    return text


def _at_margin(source: str) -> str:
    """The source of a definition, which may be indented, as one of a module. Its texts stay as they are."""
    if not source[:1].isspace():
        return source
    inside, dedented = f"if True:\n{source}", textwrap.dedent(source)
    (block,) = ast.parse(inside).body
    try:
        is_same = isinstance(block, ast.If) and ast.dump(ast.Module(block.body, [])) == ast.dump(ast.parse(dedented))
    except SyntaxError:
        is_same = False
    return dedented if is_same else inside


def _globals_of(defined: Any) -> Mapping[str, Any]:
    """What the names in its source mean."""
    if isinstance(defined, type):
        module = sys.modules.get(defined.__module__)
        return {} if module is None else vars(module)
    return inspect.unwrap(defined).__globals__


def _without_annotations(tree: ast.Module) -> ast.Module:
    """The tree without annotations of arguments and results: the module that is written does not evaluate them."""
    for node in ast.walk(tree):
        if isinstance(node, ast.arg):
            node.annotation = None
        elif isinstance(node, ast.FunctionDef):
            node.returns = None
    return tree


def _names(code: types.CodeType) -> Iterator[str]:
    """The names of the module that the code looks up."""
    of_module, own = dict[str, None](), set[str]()
    for instruction in dis.get_instructions(code):
        if instruction.opname in ("LOAD_GLOBAL", "LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS"):
            of_module[instruction.argval] = None
        elif instruction.opname == "STORE_NAME":
            own.add(instruction.argval)
    yield from (name for name in of_module if name not in own)
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from (name for name in _names(constant) if name not in own or code.co_name != "<module>")


def _import_of(name: str, module: types.ModuleType, user: str) -> str:
    if _is_main(module):
        raise of_caller(f"`{user}` refers to `{name}`, the main program", text=name, hint=_ELSEWHERE)
    return f"import {name}" if module.__name__ == name else f"import {module.__name__} as {name}"


def _imported(name: str, value: Any) -> str | None:
    """How a value is imported, if it can be."""
    module = sys.modules.get(getattr(value, "__module__", None) or "")
    original = getattr(value, "__qualname__", None)
    if module is None or _is_main(module) or not isinstance(original, str) or "." in original:
        return None
    if getattr(module, original, None) is not value:
        return None
    return f"from {module.__name__} import {original}" + ("" if original == name else f" as {name}")


def _is_literal(value: Any) -> bool:
    """Whether its `repr` is a text that means the same."""
    if value is None or type(value) in (bool, int, str, bytes):
        return True
    if type(value) is float:
        return value - value == 0
    kind = type(value).__name__ if type(value).__module__ == "builtins" else ""
    if kind in ("list", "tuple"):
        return all(map(_is_literal, value))
    if kind == "set":
        return bool(value) and all(map(_is_literal, value))
    return kind == "dict" and all(_is_literal(key) and _is_literal(one) for key, one in value.items())
