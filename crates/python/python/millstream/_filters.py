"""Filters of Polars as conditions in SQL.

Polars applies its filters itself to what it is given, so a condition may keep too many rows, and must never leave out
one that the filter keeps. Only what surely means the same is translated: comparisons of whole numbers, texts and dates
with values, tests for null, and `and`, `or` and `not` of these. (Numbers with a fraction are left out: Polars and SQL
differ in NaN and in negative zero.)
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import polars

_COMPARISONS = {"Eq": "=", "NotEq": "<>", "Lt": "<", "LtEq": "<=", "Gt": ">", "GtEq": ">="}
_CONNECTIVES = {"And": "AND", "LogicalAnd": "AND", "Or": "OR", "LogicalOr": "OR"}
_WHOLE = {f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)}


class _Unknown(Exception):
    """The expression has no condition that surely means the same."""


def condition(predicate: polars.Expr, schema: Mapping[str, str]) -> str | None:
    """A condition that keeps all rows that `predicate` keeps, if one is known."""
    try:
        tree = json.loads(predicate.meta.serialize(format="json"))
    except Exception:
        # The form is that of one version of Polars, and some expressions have none.
        return None
    return _wider(tree, schema)


def _wider(tree: Any, schema: Mapping[str, str]) -> str | None:
    """A condition that keeps at least the rows of `tree`."""
    left, operator, right = _binary(tree)
    if _CONNECTIVES.get(operator) == "AND":
        sides = [_wider(left, schema), _wider(right, schema)]
        return " AND ".join(side for side in sides if side is not None) or None
    try:
        return _same(tree, schema)
    except _Unknown:
        return None


def _same(tree: Any, schema: Mapping[str, str]) -> str:
    """The condition that means the same as `tree`."""
    left, operator, right = _binary(tree)
    if operator in _CONNECTIVES:
        return f"({_same(left, schema)} {_CONNECTIVES[operator]} {_same(right, schema)})"
    if operator in _COMPARISONS:
        name, kind = _column(left, schema)
        return f"({name} {_COMPARISONS[operator]} {_literal(right, kind)})"
    name, arguments = _function(tree)
    if name in ("IsNull", "IsNotNull") and len(arguments) == 1:
        column, _ = _column(arguments[0], schema)
        return f"({column} IS {'NOT ' if name == 'IsNotNull' else ''}NULL)"
    if name == "Not" and len(arguments) == 1:
        return f"(NOT {_same(arguments[0], schema)})"
    column, kind = _column(tree, schema)
    if kind != "bool":
        raise _Unknown
    return column


def _binary(tree: Any) -> tuple[Any, str, Any]:
    match tree:
        case {"BinaryExpr": {"left": left, "op": str(operator), "right": right}}:
            return left, operator, right
        case _:
            return None, "", None


def _function(tree: Any) -> tuple[str, list[Any]]:
    match tree:
        case {"Function": {"input": [*arguments], "function": {"Boolean": str(name)}}}:
            return name, arguments
        case _:
            return "", []


def _column(tree: Any, schema: Mapping[str, str]) -> tuple[str, str]:
    """The name of a column in SQL, and its type."""
    match tree:
        case {"Column": str(name)} if name in schema:
            return '"' + name.replace('"', '""') + '"', schema[name]
        case _:
            raise _Unknown


def _literal(tree: Any, kind: str) -> str:
    """A value in SQL, if it can be compared with a column of that type."""
    match tree:
        case {"Literal": {"Scalar": {"String": str(text)}}} if kind == "utf8":
            return "'" + text.replace("'", "''") + "'"
        case {"Literal": {"Scalar": {"Date": int(days)}}} if kind == "date":
            return f"DATE '{_date(days)}'"
        case {"Literal": {"Scalar": {**scalar}}} if kind in _WHOLE:
            for name, value in scalar.items():
                if str(name).lower() in _WHOLE and isinstance(value, int) and abs(value) < 1 << 63:
                    return str(value)
        case _:
            pass
    raise _Unknown


def _date(days: int) -> str:
    import datetime

    try:
        return (datetime.date(1970, 1, 1) + datetime.timedelta(days=days)).isoformat()
    except OverflowError:
        raise _Unknown from None
