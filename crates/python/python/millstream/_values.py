"""Arguments as what the engine takes: JSON and texts."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypedDict

if TYPE_CHECKING:
    Path = str | os.PathLike[str]


class Limits(TypedDict):
    """What may be used of the machine."""

    machine: str | None
    memory: str | None
    cores: int | None


def limits(machine: Path | None, memory: int | str | None, cores: int | None) -> Limits:
    """What the arguments of a call say of the machine."""
    if cores is not None and (isinstance(cores, bool) or not hasattr(cores, "__index__")):
        raise TypeError(f"cores: give a whole number, not {cores!r}")
    if cores is not None and cores < 1:
        raise ValueError("cores: there is at least one")
    return {
        "machine": None if machine is None else os.fspath(machine),
        "memory": None if memory is None else str(memory),
        "cores": cores,
    }


def as_paths(path: Path | Sequence[Path]) -> list[str]:
    """A path or several as texts."""
    if isinstance(path, (str, os.PathLike)):
        return [os.fspath(path)]
    if not isinstance(path, Sequence):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise TypeError(f"a {type(path).__name__} is no path: give a path, a URL, or a list of them")
    if not path:
        raise ValueError("the list of paths is empty")
    return [os.fspath(one) for one in path]


def as_json(value: object) -> str:
    """The value as JSON. Paths and dates become texts."""
    import json

    return json.dumps(value, default=_plain, allow_nan=False)


def _plain(value: object) -> object:
    if isinstance(value, os.PathLike):
        return os.fspath(value)  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]
    if isinstance(value, Mapping):
        return dict(value)  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]
    isoformat: Any = getattr(value, "isoformat", None)
    if isoformat is not None:
        return isoformat()
    raise TypeError(f"a setting cannot be a {type(value).__name__}: {value!r}")


def as_texts(variables: Mapping[str, object] | None) -> dict[str, str]:
    """The values of variables as the texts that stand for them in a job file."""
    return {name: _text(value) for name, value in (variables or {}).items()}


def _text(value: object) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (int, float)):
        return str(value)
    return str(_plain(value))


def without_none(settings: Mapping[str, object]) -> dict[str, object]:
    """The settings that say something."""
    return {name: value for name, value in settings.items() if value is not None}
