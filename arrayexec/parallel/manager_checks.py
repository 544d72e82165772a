"""Keys of buckets, names and values that a manager is given, and the groups that it lets go."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Any

from ..errors import BucketError, UnknownNameError, near_miss
from ..executor import check_values

Array = Any


def bucket_key(key: Any) -> Any:
    """A bucket key; a list counts as the tuple of its items."""
    if isinstance(key, list):
        return tuple(map(bucket_key, key))
    try:
        hash(key)
    except TypeError:
        raise BucketError(f"a bucket key must be hashable (a number, a text, a tuple), but it is {key!r}") from None
    return key


def known_names(
    title: str, given: Sequence[str] | None, known: list[str], default: list[str] | None = None
) -> list[str]:
    """Names given by the user, all of which must be known."""
    names = list(given) if given is not None else known if default is None else default
    stranger = next((name for name in names if name not in known), None)
    if stranger is not None:
        raise UnknownNameError(f"{title}: the symbol has no '{stranger}'{near_miss(stranger, known)}")
    return names


def check_value(name: str, given: Array, held: Array) -> None:
    """ShapeError unless a value given for ``name`` has the shape that is held."""
    check_values(f"set_params: '{name}'", given, held.shape, "the array given")


def check_given(key: Any, names: Collection[str], held: Collection[str], kept: Iterable[str]) -> None:
    """BucketError if a bucket brings a parameter or state that set_params had no value for.

    ``kept``: names of values that still wait for their bucket.
    """
    missing = next((name for name in names if name not in held), None)
    if missing is not None:
        near = near_miss(missing, [name for name in kept if name not in names], shown=0)
        raise BucketError(
            f"bucket {key!r} brings '{missing}', which has no value: give it to set_params together with those of "
            f"the other buckets{near}"
        )


def let_go(groups: dict[Any, Any], first_of: dict[Any, Any], most: int | None) -> list[Any]:
    """Drop the first of ``groups`` until there is room for one more among ``most`` (None: any number); their keys."""
    keys = []
    while most is not None and len(groups) >= most:
        place = next(iter(groups))
        keys.append(place[0])
        if first_of.get(place[0]) is groups.pop(place):
            del first_of[place[0]]
    return keys
