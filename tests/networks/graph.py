"""A walk over a symbol's JSON, from one node to the next: what the plain walker and PyTorch's have in common."""

from __future__ import annotations

import ast
import json
from collections.abc import Callable, Mapping
from typing import Any


class Walker:
    """Functions (inputs, attributes, extra) by operator, and the walk from one node to the next."""

    def __init__(self) -> None:
        self.operators: dict[str, Callable[..., Any]] = {}

    def op(self, *names: str) -> Callable[[Any], Any]:
        """Register a function for these operators."""

        def register(function: Any) -> Any:
            self.operators.update(dict.fromkeys(names, function))
            return function

        return register

    def short(self, functions: Mapping[str, Callable[..., Any]]) -> None:
        """Register functions (inputs, attributes) by operator."""
        for name, function in functions.items():
            self.operators[name] = lambda x, a, extra, function=function: function(x, a)

    def walk(self, text: str, arrays: Mapping[str, Any], extra: Any = None) -> list[Any]:
        """Outputs of the symbol in ``text``; every function is given ``extra``."""
        document, values = json.loads(text), list[tuple[Any, ...]]()
        for node in document["nodes"]:
            if node["op"] == "null":
                values.append((arrays[node["name"]],))
                continue
            attributes = {key: read(value) for key, value in node.get("attrs", {}).items() if key[:2] != "__"}
            found = self.operators[node["op"]]([values[i][output] for i, output, *_ in node["inputs"]], attributes, extra)
            values.append(found if isinstance(found, tuple) else (found,))
        return [values[i][output] for i, output, *_ in document["heads"]]


def read(text: str) -> Any:
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text


def pairs(a: Mapping[str, Any], key: str, count: int, default: int) -> list[int]:
    value = a.get(key) or (default,) * count
    return list(value) if isinstance(value, tuple) else [value] * count
