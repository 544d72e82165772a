"""One example of an operator, set up as a graph of one node with arrays for everything it needs."""

from __future__ import annotations

import dataclasses
import zlib
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from ..attribute_text import to_text
from ..dims import known
from ..errors import OperatorDefinitionError, near_miss
from ..registry import Known, Op, Sample, make_op, signature_of
from ..symbol.graph import Entry, Graph, Node, variable
from ..symbol.infer import infer_shapes, infer_types
from .naive import Array, NaiveRun

AUXILIARY = (0.5, 1.5)  # values of auxiliary states that an example does not state: a variance must be positive
Change = Callable[[Mapping[str, Array]], Mapping[str, Array]]


@dataclasses.dataclass
class Outcome:
    """What one run gave: outputs, hidden outputs, gradients by argument, auxiliary states afterwards."""

    outputs: list[Array]
    hidden: list[Array]
    gradients: dict[str, Array]
    aux: dict[str, Array]

    def named(self) -> dict[str, Array]:
        """All of it under names for messages."""
        return {
            **{f"output {i}": array for i, array in enumerate(self.outputs)},
            **{f"hidden output {i}": array for i, array in enumerate(self.hidden)},
            **{f"gradient of {name}": array for name, array in self.gradients.items()},
            **{f"{name} afterwards": array for name, array in self.aux.items()},
        }


def spread(sample: Sample, place: int, random: np.random.Generator) -> Array:
    """Values of a sample in float64, exact in float16: all different as far as they can be, none in the middle.

    ``place`` shifts them, so that two arrays of one size have no value in common.
    """
    count = int(np.prod(sample.shape, dtype=np.int64))
    if sample.integer:
        return random.integers(int(sample.low), int(sample.high), sample.shape, endpoint=True).astype(np.float64)
    fraction = (random.permutation(count) + (0.31 + 0.17 * place) % 1.0) / max(count, 1)
    values = sample.low + (sample.high - sample.low) * fraction
    return values.astype(np.float16).astype(np.float64).reshape(sample.shape)


class Trial:
    """An operator set to an example's attributes, in a graph of one node called 'node'.

    ``shapes`` replaces input shapes of the example; inputs that are named in neither follow by inference.
    ``twice`` binds two inputs to one variable. Raises OperatorDefinitionError for an example that says too little.
    """

    def __init__(
        self,
        cls: type[Op],
        example: Mapping[str, Any],
        dtype: Any = np.float64,
        shapes: Mapping[str, Any] | None = None,
        twice: tuple[str, str] | None = None,
    ) -> None:
        attributes = {key: value for key, value in example.items() if key in cls.form.attributes}
        self.cls, self.example, self.dtype = cls, example, np.dtype(dtype)
        self.op: Any = make_op(cls.form.name, attributes)
        self.signature = signature_of(self.op)
        texts = {key: to_text(value) for key, value in attributes.items()}
        nodes = {name: variable(f"v_{name}") for name in self.signature.arguments}
        if twice:
            nodes[twice[1]] = nodes[twice[0]]
        entries: list[Entry] = [(node, 0) for node in nodes.values()]
        self.node = Node(self.op, "node", texts, entries)
        self.graph_heads: list[Entry] = [(self.node, i) for i in range(len(self.signature.outputs))]
        self.graph = Graph(self.graph_heads)
        self.samples = self._samples(example, attributes)
        given = {f"v_{name}": tuple(sample.shape) for name, sample in self.samples.items()}
        given |= {f"v_{name}": shape for name, shape in (shapes or {}).items()}
        self.entries = self.graph.values(self.graph.index[id(self.node)])
        self.all_shapes = infer_shapes(self.graph, given, "example")
        typed = [f"v_{name}" for name in self.signature.inputs if name not in self.op.no_gradient]
        self.all_types = infer_types(self.graph, dict.fromkeys(typed[:1], self.dtype), "example", self.dtype)
        self.known = Known(self.signature, self._of(self.all_shapes), self._of(self.all_types))

    def _of(self, table: list[Any]) -> list[Any]:
        return [table[entry] for entry in self.entries]

    def _samples(self, example: Mapping[str, Any], attributes: Mapping[str, Any]) -> dict[str, Sample]:
        found = {}
        for name, value in example.items():
            if name in attributes:
                continue
            if name not in self.signature.arguments:
                known_names = (*self.signature.arguments, *self.cls.form.attributes)
                raise OperatorDefinitionError(
                    f"example of {self.cls.form.name}: '{name}' is neither an input nor an attribute"
                    f"{near_miss(name, known_names)}"
                )
            if not isinstance(value, Sample):
                low, high = AUXILIARY if name in self.signature.aux else (-1.0, 1.0)
                value = Sample(tuple(value), low, high)
            found[name] = value
        return found

    @property
    def number(self) -> int:
        """Number of the operator's node in the graph."""
        return self.graph.index[id(self.node)]

    def shape(self, name: str) -> tuple[int, ...]:
        """Inferred shape of an input, auxiliary state, output or hidden output."""
        place = (*self.signature.arguments, *self.signature.outputs, *self.signature.hidden).index(name)
        shape = self.all_shapes[self.entries[place]]
        if not known(shape):
            raise OperatorDefinitionError(
                f"example of {self.cls.form.name}: the shape of '{name}' does not follow from the others; state it"
            )
        return tuple(shape)

    def type(self, name: str) -> np.dtype[Any]:
        """Inferred type of an input, auxiliary state, output or hidden output."""
        place = (*self.signature.arguments, *self.signature.outputs, *self.signature.hidden).index(name)
        return np.dtype(self.all_types[self.entries[place]])

    def differentiable(self) -> list[str]:
        """Inputs whose gradient backward gives: real numbers, not in ``no_gradient``."""
        backward = {
            place for kind, place in self.signature.backward or () if kind == "dinput" and not isinstance(place, tuple)
        }
        for kind, place in self.signature.backward or ():
            if kind == "dinput" and isinstance(place, tuple):
                backward.update(place)
        return [
            name
            for i, name in enumerate(self.signature.inputs)
            if i in backward and name not in self.op.no_gradient and self.type(name).kind == "f"
        ]

    def arrays(self) -> dict[str, Array]:
        """Values of all inputs and auxiliary states, the same for every type."""
        random = np.random.default_rng(zlib.crc32(self.cls.form.name.encode()))
        found = {}
        for place, name in enumerate(self.signature.arguments):
            low, high = AUXILIARY if name in self.signature.aux else (-1.0, 1.0)
            sample = self.samples.get(name, Sample((), low, high))
            found[name] = spread(sample._replace(shape=self.shape(name)), place, random).astype(self.type(name))
        return found

    def heads(self) -> list[Array]:
        """Gradients that arrive at the outputs."""
        random = np.random.default_rng(1)
        shapes = [Sample(self.shape(name), 0.25, 1.25) for name in self.signature.outputs]
        return [
            (spread(sample, i, random) * random.choice([-1, 1], sample.shape)).astype(self.type(name))
            for i, (sample, name) in enumerate(zip(shapes, self.signature.outputs, strict=True))
        ]

    def start(self, arrays: Mapping[str, Array] | None = None, is_train: bool = True, **options: Any) -> NaiveRun:
        """The example bound to ``arrays`` (default: its own)."""
        arrays = self.arrays() if arrays is None else arrays
        names = {self.graph.nodes[i].name for i in (*self.graph.arguments, *self.graph.auxiliary)}
        bound = {f"v_{name}": array for name, array in arrays.items() if f"v_{name}" in names}
        aux = {f"v_{name}": bound.pop(f"v_{name}") for name in self.signature.aux}
        return NaiveRun(self.graph, bound, aux, is_train, **options)

    def outcome(
        self,
        arrays: Mapping[str, Array] | None = None,
        is_train: bool = True,
        wants: Mapping[str, str] | None = None,
        heads: list[Array] | None = None,
        **options: Any,
    ) -> Outcome:
        """Run forward and backward once. ``wants`` speaks of input names (default: all written)."""
        run = self.start(arrays, is_train, **options)
        outputs = run.forward()
        first = self.graph.first[self.number] + len(self.signature.outputs)
        hidden = [run.values[first + i].copy() for i in range(len(self.signature.hidden))]
        asked = None if wants is None else {f"v_{name}": how for name, how in wants.items()}
        gradients = run.backward(self.heads() if heads is None else heads, asked)
        return Outcome(outputs, hidden, {key[2:]: value for key, value in gradients.items()}, run.aux)
