"""Symbol: one or more outputs of a graph, with everything a program may ask or do with them. No arrays here."""

from __future__ import annotations

import importlib
import os
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np

from ..atomic import replacing
from ..attribute_text import TYPE_CODES, read_dtype
from ..dims import Shape, from_user, known, to_user
from ..errors import ArgumentError, CompositionError, OutputIndexError, UnknownNameError, near_miss
from ..files.source import path_text, read_text
from . import json_format, summary
from .algebra import Algebra
from .attribute import deprecated_suffix, is_hidden, scoped, shown, texts_only
from .compose import copied, user_source
from .graph import Entry, Graph, Node
from .infer import infer_shapes, infer_types

_Value = TypeVar("_Value")


class Symbol(Algebra):
    """Outputs of a graph. Symbols are cheap views: many of them share the nodes, and composing copies."""

    __slots__ = ("__weakref__", "_graph", "_heads")

    def __init__(self, heads: Sequence[Entry]) -> None:
        """The public ways are ``Variable``, ``Group``, ``load`` and the operators."""
        self._heads = tuple(heads)
        self._graph: Graph | None = None

    # --- what it is ------------------------------------------------------------------------------

    @property
    def heads(self) -> tuple[Entry, ...]:
        """The outputs, as (node, output number)."""
        return self._heads

    @property
    def graph(self) -> Graph:
        """The nodes in order with numbered values; CompositionError if variables of one name disagree."""
        if self._graph is None:
            self._graph = Graph(self._heads)
        return self._graph

    @property
    def name(self) -> str | None:
        """Name of the node; None for a group of several nodes."""
        node = self._heads[0][0]
        return node.name if all(head is node for head, _ in self._heads) else None

    def list_arguments(self) -> list[str]:
        """Names of the variables that are not auxiliary states, inputs before their users, left to right."""
        return [self.graph.nodes[i].name for i in self.graph.arguments]

    def list_auxiliary_states(self) -> list[str]:
        """Names of the variables that operators update in forward, such as running means."""
        return [self.graph.nodes[i].name for i in self.graph.auxiliary]

    def list_inputs(self) -> list[str]:
        """Names of all variables."""
        return [node.name for node in self.graph.nodes if node.op is None]

    def list_outputs(self) -> list[str]:
        """Names of the outputs: ``fc1_output``, ``split_output2``, ``bn_mean``; a variable's own name."""
        return [node.output_name(index) for node, index in self._heads]

    def get_internals(self) -> Symbol:
        """All visible outputs of all nodes, variables included, as one group."""
        return type(self)([entry for node in self.graph.nodes for entry in node.outputs])

    def get_children(self) -> Symbol | None:
        """The inputs of the output nodes; None if there are none."""
        distinct = {id(node): node for node, _ in self._heads}
        inputs = [entry for node in distinct.values() for entry in node.inputs]
        return type(self)(inputs) if inputs else None

    def __len__(self) -> int:
        return len(self._heads)

    def __iter__(self) -> Iterator[Symbol]:
        return (type(self)((head,)) for head in self._heads)

    def __getitem__(self, item: int | str | slice) -> Symbol:
        """One output by number or name, several by slice.

        Raises OutputIndexError (an IndexError) for a number out of range, UnknownNameError for a name nobody has.
        """
        if isinstance(item, str):
            names = self.list_outputs()
            matches = [i for i, name in enumerate(names) if name == item]
            if not matches:
                raise UnknownNameError(f"{self!r} has no output '{item}'{near_miss(item, names)}")
            if len(matches) > 1:
                raise CompositionError(
                    f"{self!r} has {len(matches)} outputs named '{item}' (numbers {matches}); take one by number"
                )
            item = matches[0]
        if isinstance(item, slice):
            chosen = self._heads[item]
            if not chosen:
                raise OutputIndexError(f"{self!r}: the slice {item} takes none of its {len(self)} outputs")
            return type(self)(chosen)
        if isinstance(item, bool) or not isinstance(item, int | np.integer):
            raise ArgumentError(f"{self!r} is indexed by output number, name or slice, not by {type(item).__name__}")
        if not 0 <= item < len(self._heads):
            raise OutputIndexError(f"{self!r} has outputs 0 to {len(self) - 1}, not {item}")
        return type(self)((self._heads[int(item)],))

    def __repr__(self) -> str:
        if self.name is not None:
            return f"<Symbol {self.name}>"
        names = [node.name for node, _ in self._heads]
        return f"<Symbol group [{', '.join(names[:8])}{', …' if len(names) > 8 else ''}]>"

    def __bool__(self) -> bool:
        raise CompositionError(
            f"{self!r} stands for a value that is not computed yet, so it is neither true nor false; "
            "compare evaluated arrays, or symbols by identity (is)"
        )

    # --- attributes ------------------------------------------------------------------------------

    def attr(self, key: str) -> str | None:
        """Text of one attribute of the (first) node; None if it has none. Hidden keys read under both spellings."""
        return self.list_attr().get(key)

    def list_attr(self) -> dict[str, str]:
        """All attribute texts of the (first) node."""
        return shown(self._heads[0][0].attributes)

    def attr_dict(self) -> dict[str, dict[str, str]]:
        """Attribute texts of every node that has any, by node name."""
        return {node.name: shown(node.attributes) for node in self.graph.nodes if node.attributes}

    def _set_attr(self, **attributes: str) -> None:
        """Set attribute texts of the (first) node; ArgumentError for a value that is not a text."""
        node = self._heads[0][0]
        for key, text in texts_only(attributes, node.where).items():
            if deprecated_suffix(key):
                raise CompositionError(
                    f"{node.where}: '{key}' would belong to another node; "
                    f"give that one Variable({deprecated_suffix(key)}=)"
                )
            if node.op is not None and key in node.op.form.attributes:
                raise CompositionError(f"{node.where}: '{key}' is fixed since the operator was applied; apply it anew")
            node.attributes[key] = text

    # --- inference -------------------------------------------------------------------------------

    def _by_name(self, call: str, args: Sequence[Any], named: Mapping[str, Any]) -> dict[str, Any]:
        """What the caller gave, positional in the order of list_arguments or by keyword, not both."""
        arguments = self.list_arguments()
        if args and named:
            raise ArgumentError(f"{call} takes values by position or by keyword, not both")
        if len(args) > len(arguments):
            raise ArgumentError(
                f"{call} was given {len(args)} values, but {self!r} has {len(arguments)} arguments: {arguments}"
            )
        known_names = {*arguments, *self.list_auxiliary_states()} if named else set()
        for name in named:
            if name not in known_names:
                raise UnknownNameError(f"{call}: {self!r} has no argument '{name}'{near_miss(name, arguments)}")
        return dict(named) if named else dict(zip(arguments, args, strict=False))

    def _triple(self, values: Sequence[_Value]) -> tuple[list[_Value], list[_Value], list[_Value]]:
        graph = self.graph
        return (
            [values[graph.first[i]] for i in graph.arguments],
            [values[entry] for entry in graph.heads],
            [values[graph.first[i]] for i in graph.auxiliary],
        )

    def infer_shape(self, *args: Any, **shapes: Any) -> Any:
        """Shapes of (arguments, outputs, auxiliary states) from those given; 0 is an unknown dim, () an unknown shape.

        (None, None, None) and a UserWarning naming the first unknown arguments if they do not follow.
        Raises ShapeError for shapes that contradict each other, UnknownNameError for a keyword that is no argument.
        """
        values = self._shapes("infer_shape", args, shapes)
        if all(map(known, values)):
            return tuple([to_user(shape) for shape in part] for part in self._triple(values))
        warnings.warn(_unknown_text(self.graph, values), stacklevel=2)
        return None, None, None

    def infer_shape_partial(self, *args: Any, **shapes: Any) -> Any:
        """As infer_shape, with what follows from what is known: () for an unknown shape, 0 for an unknown dim."""
        values = self._shapes("infer_shape_partial", args, shapes)
        return tuple([to_user(shape) for shape in part] for part in self._triple(values))

    def _shapes(self, call: str, args: Sequence[Any], named: Mapping[str, Any]) -> list[Shape]:
        given = self._by_name(call, args, named)
        return infer_shapes(self.graph, {name: _user_shape(call, name, shape) for name, shape in given.items()}, call)

    def infer_type(self, *args: Any, **types: Any) -> Any:
        """Element types (NumPy type classes) of (arguments, outputs, auxiliary states) from those given.

        (None, None, None) if they do not follow. Raises TypeInferenceError for types that contradict each other.
        """
        given = {
            name: None if kind is None else read_dtype(kind, f"infer_type of '{name}'")
            for name, kind in self._by_name("infer_type", args, types).items()
        }
        values = infer_types(self.graph, given)
        if any(kind is None for kind in values):
            return None, None, None
        return tuple([kind.type for kind in part] for part in self._triple(values))  # type: ignore[union-attr]

    # --- files, copies, pictures -----------------------------------------------------------------

    def tojson(self) -> str:
        """The graph as MXNet 1.9.1 writes it."""
        return json_format.dumps(self._heads)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write ``tojson()`` to a file, which appears whole or not at all."""
        with replacing(path_text("Symbol.save", path)) as file:
            file.write(self.tojson().encode())

    def __copy__(self) -> Symbol:
        return type(self)(copied(self._heads))

    def __deepcopy__(self, memo: dict[int, Any]) -> Symbol:
        return self.__copy__()

    def __reduce__(self) -> Any:
        return load_json, (self.tojson(),)

    def debug_str(self) -> str:
        """One line a node: number, operator and name, where it was made, inputs by name."""
        graph = self.graph
        lines = [f"outputs: {', '.join(self.list_outputs())}"]
        for number, node in enumerate(graph.nodes):
            inputs = ", ".join(graph.entry_name(entry) for entry in graph.inputs[number])
            lines.append(f"{number:5d}  {node.where}{'  <- ' + inputs if inputs else ''}")
        return "\n".join(lines)

    def summary(self, **shapes: Any) -> str:
        """Table of layers with output shapes, parameters counted from inferred shapes and inputs; then the totals."""
        values = self._shapes("summary", (), shapes)
        return summary.table(self.graph, values, set(shapes))

    def to_dot(self, **shapes: Any) -> str:
        """The graph in Graphviz's language, weights left out; ``shapes`` label the arrows."""
        return summary.dot(self.graph, self._shapes("to_dot", (), shapes))

    def to_mermaid(self, **shapes: Any) -> str:
        """The graph as a Mermaid flow chart, weights left out; ``shapes`` label the arrows."""
        return summary.mermaid(self.graph, self._shapes("to_mermaid", (), shapes))

    def _repr_html_(self) -> str:
        """The table of ``summary`` for notebooks."""
        return summary.html(self.graph, self._shapes("summary", (), {}))

    # --- composition -----------------------------------------------------------------------------

    def __call__(self, *args: Symbol, name: str | None = None, **named: Symbol) -> Symbol:
        """A copy with variables replaced by the given symbols, by position or keyword; ``name`` renames the head.

        Raises CompositionError for what cannot be put together, UnknownNameError for a keyword that is no variable.
        """
        given = self._by_name(f"composing {self!r}", args, named)
        replaced: dict[str, Entry] = {}
        for key, symbol in given.items():
            if not isinstance(symbol, Symbol) or len(symbol) != 1:
                what = f"{symbol!r} with {len(symbol)} outputs" if isinstance(symbol, Symbol) else repr(symbol)
                raise CompositionError(
                    f"composing {self!r}: '{key}' must be a symbol with one output, but it is {what}"
                )
            replaced[key] = symbol._heads[0]
        heads = copied(self._heads, replaced)
        if name is not None:
            if self.name is None or self._heads[0][0].op is None:
                raise CompositionError(
                    f"composing {self!r}: name={name!r} renames the operator at the head, but this has none"
                )
            heads[0][0].name = name
        return type(self)(heads)

    def gradient(self, wrt: str | Sequence[str], head_gradients: Any = None) -> Symbol:
        """Gradients of the sum of all outputs for the arguments ``wrt`` (one name or several), as a Symbol in order.

        Its outputs are those of nodes named ``<argument>_grad``. It is a graph like any other: it can be bound, saved,
        composed and differentiated again. ``head_gradients``: a symbol for each output that its gradient starts with;
        None: ones. An argument that no output depends on has the gradient zero.
        Raises UnknownNameError, ArgumentError, CompositionError for an operator without a gradient as a Symbol.
        """
        found: Symbol = importlib.import_module("arrayexec.symbol.gradient").gradient(self, wrt, head_gradients)
        return found

    # --- execution: the executor stands above, so it is looked up when first asked for -----------

    def bind(
        self, ctx: Any, args: Any, args_grad: Any = None, grad_req: Any = "write", aux_states: Any = None,
        group2ctx: Any = None, shared_exec: Any = None,
    ) -> Any:  # fmt: skip
        """Executor over the given arrays, which are used where they lie. Raises BindError for what does not fit."""
        return _executor().bind(self, ctx, args, args_grad, grad_req, aux_states, group2ctx, shared_exec)

    def simple_bind(
        self, ctx: Any, grad_req: Any = "write", type_dict: Any = None, stype_dict: Any = None,
        group2ctx: Any = None, shared_arg_names: Any = None, shared_exec: Any = None,
        shared_data_arrays: Any = None, shared_buffer: Any = None, **shapes: Any,
    ) -> Any:  # fmt: skip
        """Executor over new arrays (zeros) of the shapes that follow from ``shapes``. Raises BindError, ShapeError."""
        return _executor().simple_bind(
            self, ctx, grad_req, type_dict, stype_dict, group2ctx, shared_arg_names, shared_exec, shared_data_arrays,
            shared_buffer, **shapes,
        )  # fmt: skip

    def eval(self, ctx: Any = None, **arrays: Any) -> Any:
        """Outputs for the given arrays: bind without gradients and run forward once. Errors as bind's."""
        auxiliary = set(self.list_auxiliary_states())
        given = self._by_name("eval", (), arrays)
        states = {name: given.pop(name) for name in [*given] if name in auxiliary}
        return self.bind(ctx, given, grad_req="null", aux_states=states).forward()


# --- making symbols -----------------------------------------------------------------------------


def Variable(
    name: str, shape: Any = None, dtype: Any = None, init: Any = None, lr_mult: float | None = None,
    wd_mult: float | None = None, attr: Mapping[str, str] | None = None, **hidden: str,
) -> Symbol:  # fmt: skip
    """A named input of graphs. ``shape`` and ``dtype`` are defaults of inference, ``init`` an initialiser or its text.

    ``hidden`` are texts under keys between double underscores. Raises ArgumentError (ValueError and TypeError).
    """
    if not isinstance(name, str):
        raise ArgumentError(f"Variable: the name must be a text, but it is {name!r}")
    who = f"Variable '{name}'"
    attributes = {**scoped(), **texts_only(attr or {}, who)}
    for key in attributes:
        if deprecated_suffix(key):
            raise ArgumentError(
                f"{who}: '{key}' is not an attribute of a variable; "
                f"give {deprecated_suffix(key)}= to the variable it means"
            )
    for key in hidden:
        if not is_hidden(key):
            raise ArgumentError(
                f"{who} has no argument '{key}'{near_miss(key, _VARIABLE_WORDS)} (keys of your own look like __{key}__)"
            )
    if shape is not None:
        attributes["__shape__"] = str(_variable_shape(who, shape))
    if lr_mult is not None:
        attributes["__lr_mult__"] = str(lr_mult)
    if wd_mult is not None:
        attributes["__wd_mult__"] = str(wd_mult)
    if dtype is not None:
        kind = read_dtype(dtype, who).name
        attributes["__dtype__"] = str(TYPE_CODES.index(kind)) if kind in TYPE_CODES else kind
    if init is not None:
        if not isinstance(init, str) and not callable(getattr(init, "dumps", None)):
            raise ArgumentError(f"{who}: init must be an initialiser or its text, but it is {init!r}")
        attributes["__init__"] = init if isinstance(init, str) else init.dumps()
    attributes.update(texts_only(hidden, who))
    return Symbol(((Node(None, name, attributes, (), user_source()), 0),))


var = Variable
_VARIABLE_WORDS = ("shape", "dtype", "init", "lr_mult", "wd_mult", "attr")


def Group(symbols: Iterable[Symbol]) -> Symbol:
    """One symbol of all outputs of ``symbols``, in order. Raises CompositionError for none or for what is no symbol."""
    heads: list[Entry] = []
    kind: type[Symbol] = Symbol
    if not isinstance(symbols, Iterable):
        raise CompositionError(f"Group takes symbols, but it was given {symbols!r}")
    for symbol in symbols:
        if not isinstance(symbol, Symbol):
            raise CompositionError(f"Group takes symbols, but one is {symbol!r}")
        heads += symbol.heads
        kind = kind_of((kind, type(symbol)))
    if not heads:
        raise CompositionError("Group needs at least one symbol")
    return kind(heads)


def kind_of(kinds: Iterable[type[Symbol]]) -> type[Symbol]:
    """The class of what is made of symbols of these classes: a subclass of Symbol among them wins."""
    return max(kinds, key=lambda kind: len(kind.__mro__), default=Symbol)


def load_json(text: str | bytes) -> Symbol:
    """Symbol from JSON text of any MXNet layout since 0.8.

    Raises FileFormatError, UnknownOperatorError, AttributeValueError.
    """
    return Symbol(json_format.loads(text))


def load(path: str | os.PathLike[str]) -> Symbol:
    """Symbol from a file; errors as load_json, naming the file."""
    text = path_text("sym.load", path)
    return Symbol(json_format.loads(read_text(text), f"'{text}'"))


def _variable_shape(who: str, shape: Any) -> tuple[int, ...]:
    if isinstance(shape, int | list | np.ndarray):
        shape = (shape,) if isinstance(shape, int) else tuple(shape)
    return to_user(from_user(_checked_shape(who, "shape", shape)))


# --- the edge of the API: shapes in, words out --------------------------------------------------


def _checked_shape(call: str, name: str, shape: Any) -> tuple[int, ...]:
    """A caller's shape; tuples only, as MXNet."""
    if not isinstance(shape, tuple):
        raise ArgumentError(f"{call}: the shape of '{name}' must be a tuple, but it is {shape!r}")
    for dim in shape:
        if isinstance(dim, bool) or not isinstance(dim, int | np.integer) or dim < 0:
            raise ArgumentError(
                f"{call}: dims of '{name}' are whole numbers >= 0 (0: unknown), but the shape is {shape}"
            )
    return shape


def _user_shape(call: str, name: str, shape: Any) -> Shape:
    """A caller's shape as inference wants it, None if nothing is known."""
    if shape is None or (isinstance(shape, tuple) and not shape):
        return None
    return from_user(_checked_shape(call, name, shape))


def _unknown_text(graph: Graph, values: Sequence[Shape]) -> str:
    names = [graph.nodes[i].name for i in graph.arguments if not known(values[graph.first[i]])]
    if not names:
        names = [graph.entry_name(entry) for entry, shape in enumerate(values) if not known(shape)]
    shown_names = ", ".join(names[:8]) + (f", … ({len(names)} in all)" if len(names) > 8 else "")
    return (
        f"infer_shape could not find the shapes of {shown_names}; "
        "give more shapes, or ask infer_shape_partial for the rest"
    )


def _executor() -> Any:
    return importlib.import_module("arrayexec.executor")
