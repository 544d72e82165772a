"""Graphs as JSON in MXNet's layout: written as MXNet 1.9.1 writes it, read from every layout since 0.8."""

from __future__ import annotations

import dataclasses
import re
import warnings
from collections.abc import Sequence
from typing import Any, cast

from ..attribute_text import MAX_PORTS, PORTS, unknown_attribute
from ..errors import ArgumentError, FileFormatError, UnknownOperatorError, near_miss
from ..files.source import parse_json, what_it_is
from ..registry import Op, all_names, find_op, get_op, make_op, signature_of
from .attribute import deprecated_suffix, is_hidden, stored_key
from .graph import Entry, Node, post_order

WRITTEN_VERSION = 10901

HINTS = frozenset({
    "workspace", "cudnn_tune", "cudnn_off", "cudnn_algo_verbose", "cudnn_algo_fwd", "cudnn_algo_bwd_data",
    "cudnn_algo_bwd_filter", "cudnn_tensor_core", "cudnn_algo_fwd_prec", "cudnn_algo_bwd_prec", "min_calib_range",
    "max_calib_range", "lazy_update",
})  # fmt: skip
"""Attributes of other versions that change no number: left out with a warning where an operator does not know them."""


# --- writing ------------------------------------------------------------------------------------


NOT_WRITTEN = frozenset(("unbiased", text) for text in ("False", "false", "0"))
"""Attributes that MXNet does not know, where they say what MXNet does anyway."""

_CONTROL = re.compile("[\\x00-\\x1f]")


def _quoted(text: str) -> str:
    for raw, escaped in (("\\", "\\\\"), ('"', '\\"'), ("\n", "\\n"), ("\r", "\\r"), ("\t", "\\t")):
        text = text.replace(raw, escaped)
    text = _CONTROL.sub(lambda found: f"\\u{ord(found[0]):04x}", text)
    return f'"{text}"'


def _array(items: Sequence[str], indent: str = "  ") -> str:
    """An array: on one line up to ten items, as MXNet's writer breaks it."""
    if len(items) <= 10:
        return "[" + ", ".join(items) + "]"
    return f"[\n{indent}  " + f", \n{indent}  ".join(items) + f"\n{indent}]"


def _attributes(attributes: dict[str, str]) -> str:
    items = [f"{_quoted(key)}: {_quoted(attributes[key])}" for key in sorted(attributes)]
    if len(items) == 1:
        return "{" + items[0] + "}"
    return "{\n        " + ", \n        ".join(items) + "\n      }"


def _versions(node: Node) -> Sequence[int]:
    if node.versions is not None:
        return node.versions
    inputs = len(node.signature.inputs) if node.signature else 0
    return [0] * inputs + [1] * (len(node.inputs) - inputs)


def dumps(heads: Sequence[Entry]) -> str:
    """JSON text of the graph that ``heads`` need: given attribute texts only, never defaults."""
    nodes = post_order(heads)
    number = {id(node): i for i, node in enumerate(nodes)}
    written, rows = [], [0]
    for node in nodes:
        fields = [f'"op": {_quoted(node.op.form.name if node.op else "null")}', f'"name": {_quoted(node.name)}']
        attributes = {key: text for key, text in node.attributes.items() if (key, text) not in NOT_WRITTEN}
        if attributes:
            fields.append(f'"attrs": {_attributes(attributes)}')
        edges = [
            f"[{number[id(source)]}, {index}, {version}]"
            for (source, index), version in zip(node.inputs, _versions(node), strict=True)
        ]
        fields.append(f'"inputs": {_array(edges, "      ")}')
        written.append("    {\n      " + ", \n      ".join(fields) + "\n    }")
        rows.append(rows[-1] + (node.op.total_outputs() if node.op else 1))
    variables = [str(i) for i, node in enumerate(nodes) if node.op is None]
    ends = [f"[{number[id(node)]}, {index}, 0]" for node, index in heads]
    return (
        '{\n  "nodes": [\n' + ", \n".join(written) + "\n  ], \n"
        f'  "arg_nodes": {_array(variables)}, \n'
        f'  "node_row_ptr": {_array([str(row) for row in rows])}, \n'
        f'  "heads": {_array(ends)}, \n'
        f'  "attrs": {{"mxnet_version": ["int", {WRITTEN_VERSION}]}}\n}}'
    )


# --- reading ------------------------------------------------------------------------------------


class _Reader:
    """Turns one parsed document into nodes; every complaint names the node and the source."""

    def __init__(self, document: Any, source: str) -> None:
        self.source = source
        if not isinstance(document, dict) or not isinstance(document.get("nodes"), list):
            raise self.damaged("the top level must be an object with a list 'nodes'")
        if not isinstance(document.get("heads"), list) or not document["heads"]:
            raise self.damaged("'heads' must be a list of at least one output")
        self.document = document
        self.version = self.read_version()
        self.nodes: list[Node] = []

    def damaged(self, text: str) -> FileFormatError:
        return FileFormatError(f"{self.source} is not a symbol file: {text}")

    def read_version(self) -> int:
        attributes = self.document.get("attrs")
        if attributes is None:
            return 800
        if not isinstance(attributes, dict):
            raise self.damaged("the top level's 'attrs' must be an object")
        version = attributes.get("mxnet_version", ["int", WRITTEN_VERSION])
        if not (isinstance(version, list) and len(version) == 2 and type(version[1]) is int and version[1] >> 31 == 0):
            raise self.damaged(f"'mxnet_version' must be ['int', number], but it is {repr(version)[:60]}")
        if version[1] > WRITTEN_VERSION:
            warnings.warn(
                f"{self.source} was written by MXNet {version[1]}, "
                f"later than {WRITTEN_VERSION}; what that added is not read",
                stacklevel=6,
            )
        return int(version[1])

    def check_operators(self) -> None:
        """One error for all operators that nobody knows, with the nodes that use them."""
        unknown: dict[str, list[str]] = {}
        for position, node in enumerate(self.document["nodes"]):
            if not (isinstance(node, dict) and all(isinstance(node.get(key), str) for key in ("op", "name"))):
                raise self.damaged(f"node {position} must be an object with texts 'op' and 'name'")
            if node["op"] != "null" and (node["op"] in unknown or find_op(node["op"]) is None):
                unknown.setdefault(node["op"], []).append(f"'{node['name']}'")
        if unknown:
            lines = []
            for op, names in unknown.items():
                listed = ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")
                close = near_miss(op, all_names())
                lines.append(f"{op} (node {listed}{close if 'did you mean' in close else ''})")
            raise UnknownOperatorError(f"{self.source} uses operators that are not registered: " + "; ".join(lines))

    def texts(self, document: dict[str, Any]) -> dict[str, str]:
        """The node's attributes of all layouts merged: operator's (0.8), user's (0.8), both (0.9, 1.x)."""
        merged: dict[str, str] = {}
        for key in ("param", "attr", "attrs"):
            part = document.get(key) or {}
            if not isinstance(part, dict) or not all(isinstance(value, str) for value in part.values()):
                raise self.damaged(f"'{key}' of node '{document['name']}' must be an object of texts")
            merged.update(part)
        return merged

    def edges(self, document: dict[str, Any], key: str, who: str) -> list[tuple[Entry, int]]:
        """Outputs of the nodes read so far, named by [node, output] or [node, output, version]."""
        listed = document.get(key, [])
        if not isinstance(listed, list):
            raise self.damaged(f"the {key} of {who} must be a list")
        found = []
        for edge in listed:
            if not (isinstance(edge, list) and len(edge) in (2, 3) and all(type(item) is int for item in edge)):
                raise self.damaged(f"the {key} of {who} must be [node, output, version], but one is {str(edge)[:60]}")
            if not 0 <= edge[0] < len(self.nodes):
                before = f"only nodes 0 to {len(self.nodes) - 1} stand" if self.nodes else "no node stands"
                fact = f"name node {edge[0]}, but {before} before it"
                raise self.damaged(f"the {key} of {who} {fact}")
            node = self.nodes[edge[0]]
            if not 0 <= edge[1] < node.visible:
                fact = f"name output {edge[1]} of node '{node.name}', which has {node.visible}"
                raise self.damaged(f"the {key} of {who} {fact}")
            found.append(((node, edge[1]), edge[2] if len(edge) == 3 else 0))
        return found

    def read(self) -> list[Entry]:
        self.check_operators()
        for document in self.document["nodes"]:
            self.nodes.append(self.node(document))
        return [entry for entry, _ in self.edges(self.document, "heads", "the graph")]

    def node(self, document: dict[str, Any]) -> Node:
        name, texts = document["name"], self.texts(document)
        edges = self.edges(document, "inputs", f"node '{name}'")
        if document["op"] == "null":
            if edges:
                raise self.damaged(f"variable '{name}' has inputs")
            return Node(None, name, {stored_key(key): text for key, text in texts.items()})
        title = document["op"]
        if title in ("_sample_uniform", "_sample_normal") and not edges:  # before 0.11: what is _random_… now
            title = title.replace("_sample_", "_random_")
        attributes, moved = self.split(title, name, texts)
        op = self.setting(title, name, attributes)
        wanted = signature_of(op).arguments
        if len(edges) < len(wanted):
            op, edges = self.complete(op, name, texts, edges)
            wanted = signature_of(op).arguments
        if len(edges) != len(wanted):
            needs = f"{len(wanted)}: {', '.join(wanted[:8]) or 'none'}"
            raise self.damaged(f"{op.form.name} '{name}' has {len(edges)} inputs, but it needs {needs}")
        variables = {at: source for at, ((source, _), _) in zip(wanted, edges, strict=True) if source.op is None}
        for argument, key, text in moved:
            if argument in variables:
                variables[argument].attributes[stored_key(key)] = text
            else:
                attributes[f"{argument}_{key}"] = text
        for argument, variable in variables.items() if self.version < 904 else ():
            for key, text in op.variable_attributes(argument).items():
                variable.attributes.setdefault(key, text)
        node = Node(op, name, attributes, [entry for entry, _ in edges])
        node.versions = tuple(version for _, version in edges)
        return node

    def split(self, op: str, name: str, texts: dict[str, str]) -> tuple[dict[str, str], list[tuple[str, str, str]]]:
        """Attributes as a node keeps them, and those meant for an input's variable: (argument, key, text)."""
        cls = get_op(op)
        known = cls.form.attributes
        kept: dict[str, str] = {}
        moved = []
        for key, text in texts.items():
            suffix = deprecated_suffix(key)
            if key in known or is_hidden(stored_key(key)) or cls.rest:
                kept[stored_key(key)] = text
            elif suffix is not None:
                moved.append((key[: -len(suffix) - 1], suffix, text))
            elif key in HINTS:
                warnings.warn(f"{op} '{name}' in {self.source}: the hint {key}={text} is left out", stacklevel=7)
            elif not known:  # of such an operator MXNet reads none, whatever a program gave it
                warnings.warn(f"{op} '{name}' in {self.source}: {key}={text} says nothing, left out", stacklevel=7)
            elif self.version > WRITTEN_VERSION:  # who wrote it knows more attributes
                warnings.warn(
                    f"{op} '{name}' in {self.source} (MXNet {self.version}): {key}={text} is not known and is left out",
                    stacklevel=7,
                )
            else:
                raise unknown_attribute(f"{op} '{name}' in {self.source} (MXNet {self.version})", key, known)
        if op in ("argmax", "argmin") and self.version < 905 and kept.get("axis") == "-1":
            del kept["axis"]  # what -1 meant then: all axes
        return kept, moved

    def setting(self, op: str, name: str, attributes: dict[str, str]) -> Op:
        own = {key: text for key, text in attributes.items() if not is_hidden(key)}
        where, known = f" '{name}' in {self.source}", get_op(op).form.attributes
        for key in own.keys() & known.keys() & set(PORTS):
            if known[key].parse(own[key], f"{op}{where}") > MAX_PORTS:
                raise self.damaged(f"{op} '{name}' has {key}={own[key]}, more than {MAX_PORTS}")
        return make_op(op, own, where)

    def complete(self, op: Op, name: str, texts: dict[str, str], edges: list[Any]) -> tuple[Op, list[Any]]:
        """Inputs that a file may leave out: any before 0.9 (variables of the usual names), a bias afterwards."""
        wanted = signature_of(op).arguments
        if self.version < 900:
            for argument in wanted[len(edges) :]:
                attributes = {stored_key(key): text for key, text in texts.items()}
                edges = [*edges, ((Node(None, f"{name}_{argument}", attributes), 0), 0)]
        elif "no_bias" in op.form.attributes and wanted[len(edges) :] == ("bias",):
            op = dataclasses.replace(cast(Any, op), no_bias=True)
        return op, edges


def loads(text: str | bytes, source: str = "the JSON text") -> list[Entry]:
    """Heads of the graph in ``text``; ``source`` names it in errors.

    Raises ArgumentError for what is no text, FileFormatError for what is not a graph, UnknownOperatorError with all
    unknown operators at once, AttributeValueError for attributes that an operator does not have.
    """
    if not isinstance(text, (str, bytes, bytearray)):
        raise ArgumentError(f"a symbol must be loaded from a text, but it is {type(text).__name__}")
    try:
        document = parse_json(text)
    except ValueError as error:
        start = (text[:40].encode("utf-8", "replace") if isinstance(text, str) else bytes(text[:40])).lstrip()
        other = "" if start.startswith(b"{") else what_it_is(start)
        raise FileFormatError(f"{source} is not a symbol file: it is not JSON ({error}){other}") from None
    return _Reader(document, source).read()
