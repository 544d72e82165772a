"""``sym.random``, ``sym.linalg`` and ``sym.contrib``: operators under the names that MXNet's modules give them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..errors import CompositionError, UnknownOperatorError, near_miss
from ..registry import all_names
from .operators import apply, function
from .symbol import Symbol


class Namespace:
    """Operators whose names begin with a prefix, without it, and functions that stand for several."""

    def __init__(self, title: str, prefix: str, functions: dict[str, Callable[..., Symbol]] | None = None) -> None:
        self._title, self._prefix, self._functions = title, prefix, functions or {}

    def __getattr__(self, name: str) -> Callable[..., Symbol]:
        found = None if name[:2] == "__" else self._functions.get(name) or function(self._prefix + name)
        if found is None:
            fact = f"there is no operator '{name}' in sym.{self._title}"
            raise UnknownOperatorError(f"{fact}{near_miss(name, dir(self))}")
        return found

    def __dir__(self) -> list[str]:
        names = (name.removeprefix(self._prefix) for name in all_names() if name.startswith(self._prefix))
        return sorted({*self._functions, *names})


def _law(title: str, *names: str) -> Callable[..., Symbol]:
    def draw(*values: Any, **words: Any) -> Symbol:
        given = {key: words.pop(key) for key in names if key in words} | dict(zip(names, values, strict=False))
        words.update(zip(("shape", "dtype"), values[len(names) :], strict=False))
        if title == "exponential" and "scale" in given:
            given = {"lam": 1 / given["scale"]}
        symbols = [key for key, value in given.items() if isinstance(value, Symbol)]
        if not symbols:
            return apply(f"_random_{title}", (), {**given, **words})
        if len(symbols) < len(names):
            raise CompositionError(f"sym.random.{title}: either all or none of {', '.join(names)} are symbols")
        order = names if len(given.keys() & set(names)) else tuple(given)  # the scale of exponential is lam by now
        return apply(f"_sample_{title}", tuple(given[key] for key in order), words)

    draw.__name__ = title
    draw.__doc__ = f"{title} numbers of {', '.join(names)}: numbers, or symbols of which each value has its numbers."
    return draw


_LAWS = {
    "uniform": ("low", "high"), "normal": ("loc", "scale"), "gamma": ("alpha", "beta"), "exponential": ("scale",),
    "poisson": ("lam",), "negative_binomial": ("k", "p"), "generalized_negative_binomial": ("mu", "alpha"),
}  # fmt: skip
random = Namespace(
    "random", "_random_",
    {**{title: _law(title, *names) for title, names in _LAWS.items()},
     "multinomial": lambda *inputs, **words: apply("_sample_multinomial", inputs, words),
     "shuffle": lambda *inputs, **words: apply("_shuffle", inputs, words)},
)  # fmt: skip
linalg, contrib = Namespace("linalg", "_linalg_"), Namespace("contrib", "_contrib_")
