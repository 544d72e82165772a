"""The command line, ``python -m arrayexec``: lists operators, converts files and tells what they hold.

Each command is a function of its arguments.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Sequence

from ..errors import ArrayExecError
from . import catalogue
from . import convert as conversion


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; 0 if it was done, 1 after a complaint on standard error, 2 for arguments that are none."""
    parser = argparse.ArgumentParser(prog="arrayexec", description="Array-level executor engine: its command line.")
    commands = parser.add_subparsers(dest="command", required=True)
    ops = commands.add_parser("ops", help="list operators: name, aliases, attributes, gradient, backends")
    ops.add_argument("names", nargs="*", help="only these operators (names or aliases), each in full")
    ops.add_argument("--markdown", action="store_true", help="the page docs/operators.md")
    convert = commands.add_parser("convert", help="write a file anew in the format that the new name ends with")
    convert.add_argument("source", help=".params (any generation), .npz, .safetensors, or a symbol's .json")
    convert.add_argument("target", help="the new file: .params, .npz, .safetensors; .json for a symbol")
    convert.add_argument("--force", action="store_true", help="replace the new file if it exists")
    convert.add_argument("--version", type=int, choices=(1, 2, 3), help="generation of a .params file (1: old readers)")
    inspect = commands.add_parser("inspect", help="what a file holds: names, types, shapes, metadata")
    inspect.add_argument("source", help=".params, .npz, .safetensors, a symbol's .json, or .states with --mxnet-pickle")
    inspect.add_argument("--mxnet-pickle", action="store_true", help="a .states file of MXNet's (nothing of it is run)")
    for command in (convert, inspect):
        command.add_argument("--limit", type=int, help="bytes that packed and sparse arrays may take in memory")
    given = parser.parse_args(arguments)
    try:
        for line in _lines(given):
            print(line)  # noqa: T201
        return 0
    except (ArrayExecError, FileNotFoundError, PermissionError) as error:
        print(f"arrayexec: {error}", file=sys.stderr)  # noqa: T201
        return 1
    except BrokenPipeError:  # the reader has seen enough
        sys.stderr.close()
        return 0


def _lines(given: argparse.Namespace) -> Iterable[str]:
    if given.command == "convert":
        return conversion.convert(given.source, given.target, given.force, given.version, given.limit)
    if given.command == "inspect":
        return conversion.inspect(given.source, given.mxnet_pickle, given.limit)
    if given.names:
        return ["\n\n".join(catalogue.in_full(name) for name in given.names)]
    return [catalogue.page() if given.markdown else catalogue.table()]
