"""What the registry knows of every operator, as a table, in full, and as the page ``docs/operators.md``."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from .. import ops
from ..attribute_text import Attribute, to_text
from ..dims import ANY, UNKNOWN
from ..errors import ArrayExecError
from ..ops.expression import Pointwise
from ..ops.symbolic import in_symbols
from ..registry import Op, get_op, kernel_tiers
from ..testing.inference import inferred
from ..testing.trial import Trial

PREFACE = """# Operators

Written by `python -m arrayexec ops --markdown`; a test says when it is stale. `python -m arrayexec ops NAME` gives the
whole text of one operator.

*Gradient*: `yes`, `no` (zeros) or `head` (a loss head: ignores the gradient that arrives), then `symbol` where
`Symbol.gradient` knows it, too. *Infers*: which shapes of inputs follow from which other values, in some setting of
the attributes; `(part)` where rank or some dims follow. Outputs always follow from the inputs. Required attributes
have no default; *hint* marks an attribute that changes no number."""


class Entry(NamedTuple):
    """One operator as it is listed; ``infers`` says which shapes follow from which others."""

    name: str
    aliases: tuple[str, ...]
    text: str
    attributes: tuple[str, ...]
    gradient: str
    infers: tuple[str, ...]
    backends: tuple[str, ...]


def entry(name: str) -> Entry:
    """What is known of the operator ``name``; UnknownOperatorError for a name that nobody registers."""
    cls = get_op(name)
    form = cls.form
    return Entry(
        form.name,
        form.aliases,
        inspect.getdoc(cls) or "",
        tuple(_attribute(one) + (" (hint)" if one.name in cls.hints else "") for one in form.attributes.values()),
        _gradient(cls),
        tuple(_infers(cls)),
        ("numpy", "cupy", *kernel_tiers(form.name)),
    )


def entries() -> Iterator[tuple[str, list[Entry]]]:
    """The operators of every family, sorted by name."""
    for family, names in sorted(ops.FAMILIES.items()):
        yield family, [entry(name) for name in sorted({get_op(name).form.name for name in names.split()}, key=_key)]


def table() -> str:
    """One line an operator: name, gradient, backends, aliases, attributes with defaults."""
    found = [one for _, listed in entries() for one in listed]
    wide, middle = (max(len(one[column]) for one in found) for column in (0, 4))
    return "\n".join(
        f"{one.name:<{wide}}  gradient: {one.gradient:<{middle}}  on: {' '.join(one.backends)}"
        + (f"  also: {' '.join(one.aliases)}" if one.aliases else "")
        + (f"  ({', '.join(one.attributes)})" if one.attributes else "")
        for one in found
    )


def in_full(name: str) -> str:
    """Everything about one operator, for reading."""
    found = entry(name)
    parts = [
        found.name + (f" (also {', '.join(found.aliases)})" if found.aliases else ""),
        "",
        found.text,
        "",
        *(f"  {attribute}" for attribute in found.attributes),
        f"gradient: {found.gradient}",
        f"infers: {'; '.join(found.infers) or 'nothing backwards'}",
        f"backends: {', '.join(found.backends)}",
    ]
    return "\n".join(parts)


def page() -> str:
    """The page ``docs/operators.md``."""
    lines = [PREFACE]
    for family, found in entries():
        lines += ["", f"## {family}", ""]
        lines += ["| operator | what it computes | attributes | gradient | infers |", "|---|---|---|---|---|"]
        for one in found:
            name = f"**{one.name}**" + "".join(f"<br>{alias}" for alias in one.aliases)
            text = one.text.partition("\n\n")[0]
            cells = (name, text, "<br>".join(one.attributes), one.gradient, "<br>".join(one.infers))
            lines.append("| " + " | ".join(_cell(cell) for cell in cells) + " |")
    return "\n".join(lines)


def _key(name: str) -> tuple[str, str]:
    return name.lstrip("_").lower(), name


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|").replace("``", "`")


def _attribute(attribute: Attribute) -> str:
    kind = attribute.text.removeprefix("a ").removeprefix("an ")
    kind = "element type" if kind.startswith("element type") else kind
    return f"{attribute.name}: {kind}" + ("" if attribute.required else f" = {to_text(attribute.default) or repr('')}")


def _gradient(cls: type[Op]) -> str:
    if cls.form.backward is None:
        return "no"
    settings = [Trial(cls, example).signature for example in cls.examples]
    heads = [not signature.head_gradient for signature in settings]
    found = "head" if heads and all(heads) else "yes or head" if any(heads) else "yes"
    known = in_symbols(cls) if issubclass(cls, Pointwise) else cls.linear or hasattr(cls, "gradient")
    return found + (", symbol" if known else "")


def _infers(cls: type[Op]) -> Iterator[str]:
    """``input ← source`` for every input that follows, in some example, from one value or from all others."""
    whole: dict[str, dict[str, None]] = {}
    part: dict[str, dict[str, None]] = {}
    for example in cls.examples:
        trial = Trial(cls, example)
        signature = trial.signature
        shapes = {name: trial.shape(name) for name in (*signature.arguments, *signature.outputs)}
        for target in signature.arguments:
            others = {name: shape for name, shape in shapes.items() if name != target}
            sources: list[tuple[str, dict[str, Any]]] = [("attributes", {})]
            sources += [(name, {name: shape}) for name, shape in others.items()]
            if len(others) > 1:
                sources.append(("the others", others))
            rank = len(shapes[target])
            for start in ({}, {target: (UNKNOWN,) * rank}):  # nothing is known of it, or its rank
                told = 0
                for title, given in sources:
                    found = _known(trial, target, {**start, **given})
                    if found > max(told, bool(start)):
                        (whole if found == 2 * rank + 1 else part).setdefault(target, {})[title] = None
                    told = told or (found if title == "attributes" else 0)
    for target in dict.fromkeys((*whole, *part)):
        complete = _short(whole.get(target, ()))
        partly = [name for name in _short(part.get(target, ())) if name not in complete]
        if complete and partly == ["the others"]:
            partly = []
        texts = [*complete, *(f"{name} (part)" for name in partly)]
        yield f"{target} ← {', '.join(texts)}"


def _short(sources: Iterable[str]) -> list[str]:
    """All of them together are not said beside one that is enough."""
    listed = list(sources)
    return [name for name in listed if name != "the others" or len(listed) == 1]


def _known(trial: Trial, target: str, given: dict[str, Any]) -> int:
    """How much of the shape of ``target`` follows: 0 nothing, else 1 for the rank and 2 for each known dim."""
    try:
        shape = inferred(trial, given)[trial.signature.arguments.index(target)]
    except ArrayExecError:
        return 0
    return 0 if shape is ANY else 1 + 2 * sum(dim is not UNKNOWN for dim in shape)
