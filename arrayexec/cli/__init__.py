"""The command line: ``python -m arrayexec ops`` lists the operators. Each command is a function of its arguments."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from ..errors import ArrayExecError
from . import catalogue


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; 0 if it was done, 1 after a complaint on standard error, 2 for arguments that are none."""
    parser = argparse.ArgumentParser(prog="arrayexec", description="Array-level executor engine: its command line.")
    commands = parser.add_subparsers(dest="command", required=True)
    ops = commands.add_parser("ops", help="list operators: name, aliases, attributes, gradient, backends")
    ops.add_argument("names", nargs="*", help="only these operators (names or aliases), each in full")
    ops.add_argument("--markdown", action="store_true", help="the page docs/operators.md")
    given = parser.parse_args(arguments)
    try:
        if given.names:
            text = "\n\n".join(catalogue.in_full(name) for name in given.names)
        else:
            text = catalogue.page() if given.markdown else catalogue.table()
        print(text)  # noqa: T201
        return 0
    except ArrayExecError as error:
        print(f"arrayexec: {error}", file=sys.stderr)  # noqa: T201
        return 1
    except BrokenPipeError:  # the reader has seen enough
        sys.stderr.close()
        return 0
