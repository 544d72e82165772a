"""``mx.random`` and ``mx.nd.random``: draws at once, from the one seed of the program."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ... import streams
from ...errors import ArgumentError, UnknownOperatorError, near_miss
from ...registry import all_names, find_op
from .array import NDArray, apply, is_array
from .imperative import restart_draws


def seed(seed_state: int, ctx: Any = "all") -> None:
    """Set the one seed of the program; draws begin anew. It is the same for all contexts, whatever ``ctx`` says."""
    streams.seed(seed_state)
    restart_draws()


_LAWS: dict[str, dict[str, float]] = {
    "uniform": {"low": 0.0, "high": 1.0}, "normal": {"loc": 0.0, "scale": 1.0}, "gamma": {"alpha": 1.0, "beta": 1.0},
    "exponential": {"scale": 1.0}, "poisson": {"lam": 1.0}, "negative_binomial": {"k": 1, "p": 1.0},
    "generalized_negative_binomial": {"mu": 1.0, "alpha": 1.0},
}  # fmt: skip


def _law(title: str) -> Callable[..., Any]:
    defaults = _LAWS[title]

    def draw(*values: Any, **words: Any) -> Any:
        names = [*defaults, "shape", "dtype", "ctx", "out"]
        if len(values) > len(names):
            raise ArgumentError(f"random.{title} takes {', '.join(names)}, but was given {len(values)} values")
        given = {**defaults, **dict(zip(names, values, strict=False)), **words}
        numbers = {name: given.pop(name) for name in defaults}
        given = {key: value for key, value in given.items() if value is not None}
        if not any(map(is_array, numbers.values())):
            given.setdefault("shape", given["out"].shape if "out" in given else (1,))
        if title == "exponential":
            numbers = {"lam": 1.0 / numbers["scale"]}
        arrays = [is_array(value) for value in numbers.values()]
        if not any(arrays):
            return apply(f"_random_{title}", **numbers, **given)
        if not all(arrays):
            raise ArgumentError(f"random.{title}: either all or none of {', '.join(defaults)} are NDArrays")
        given.pop("ctx", None)
        return apply(f"_sample_{title}", *numbers.values(), **given)

    draw.__name__ = title
    draw.__doc__ = f"{title} numbers of {', '.join(defaults)}: numbers, or arrays of which each value has its numbers."
    return draw


uniform, normal, gamma, exponential = map(_law, ("uniform", "normal", "gamma", "exponential"))
poisson, negative_binomial, generalized_negative_binomial = map(
    _law, ("poisson", "negative_binomial", "generalized_negative_binomial")
)


def randn(*shape: int, loc: Any = 0.0, scale: Any = 1.0, dtype: Any = None, ctx: Any = None, out: Any = None) -> Any:
    """Normal numbers of the shape given by position."""
    return normal(loc, scale, shape or (1,), dtype, ctx, out)


def randint(low: int, high: int, shape: Any = (1,), dtype: Any = "int32", ctx: Any = None, out: Any = None) -> Any:
    """Whole numbers from ``low`` to just below ``high``."""
    words = {key: value for key, value in (("dtype", dtype), ("ctx", ctx), ("out", out)) if value is not None}
    return apply("_random_randint", low=low, high=high, shape=shape, **words)


def multinomial(data: Any, shape: Any = (), get_prob: bool = False, out: Any = None, dtype: str = "int32") -> Any:
    """Numbers of classes whose probabilities are the rows of ``data``."""
    words = {"shape": shape} if shape not in ((), None) else {}
    return apply("_sample_multinomial", data, get_prob=get_prob, dtype=dtype, out=out, **words)


def shuffle(data: NDArray, out: Any = None) -> Any:
    """The rows of ``data`` in another order."""
    return apply("_shuffle", data, out=out)


def __getattr__(name: str) -> Any:
    operator = f"_random_{name}"
    if name[:1] == "_" or find_op(operator) is None:
        known = [one.removeprefix("_random_") for one in all_names() if one.startswith("_random_")]
        raise UnknownOperatorError(f"there is no '{name}' in mx.random{near_miss(name, known)}")
    return lambda *args, **words: apply(operator, *args, **words)
