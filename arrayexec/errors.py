"""Every exception class of the project, and the one builder that words them.

The first line of a message is the fact: who (operator, node), where (the user's file and line), what must hold and what
is. Detail (inputs, who said what, what to do) follows, one item a line.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence


class ArrayExecError(Exception):
    """Root of the tree: everything the engine raises on purpose is one of these."""

    def __str__(self) -> str:
        # KeyError prints the repr of its argument; our messages are sentences.
        return str(self.args[0]) if len(self.args) == 1 else super().__str__()


class ArgumentError(ArrayExecError, ValueError, TypeError):
    """An argument of a call that is of the wrong type or has an impossible value."""


class OutputIndexError(ArrayExecError, IndexError):
    """An output number that a symbol does not have."""


class IndexRangeError(ArrayExecError, IndexError, ValueError):
    """An index among an operator's values that is no place, where the nearest one cannot be meant."""


class ShapeError(ArrayExecError, ValueError):
    """Shapes that cannot go together."""


class TypeInferenceError(ArrayExecError, TypeError, ValueError):
    """Element types that cannot go together."""


class BindError(ArrayExecError, ValueError):
    """Arrays, names or requests that do not fit the symbol they are bound to."""


class UnknownNameError(BindError, TypeError, KeyError):
    """A name that the symbol, executor or group does not have."""


class NotBoundError(ArrayExecError, RuntimeError):
    """A call that needs an earlier one (bind, forward, load) first."""


class StaleForwardError(ArrayExecError, RuntimeError):
    """Values kept by a forward are gone: another executor or an engine call has written since."""


class BusyExecutorError(ArrayExecError, RuntimeError):
    """An executor, or the memory it shares, is already running."""


class NonFiniteError(ArrayExecError, FloatingPointError):
    """A NaN or an infinity that ``check='finite'`` found; names the first node that made one."""


class BucketError(ArrayExecError, ValueError, KeyError):
    """A sequence bucket that is unknown, unannounced or does not fit the others."""


class ContextError(ArrayExecError, ValueError):
    """A device description that means nothing, or arrays of different devices mixed."""


class BackendUnavailableError(ArrayExecError, RuntimeError):
    """A backend (CuPy, MPI, NCCL, numba) that was asked for and cannot be used here, with the reason."""


class CheckpointError(ArrayExecError, RuntimeError, ValueError):
    """A checkpoint that cannot be written or does not fit."""


class FileFormatError(ArrayExecError, ValueError):
    """A file that is not what its reader expects; names the offset and its meaning."""


class UnknownOperatorError(ArrayExecError, AttributeError, KeyError, ValueError):
    """An operator name that nobody registered."""


class OperatorDefinitionError(ArrayExecError, TypeError):
    """A class given to ``register_op`` that breaks the operator form."""


class OperatorContractError(ArrayExecError, AssertionError):
    """An operator that does not keep the contract of the operator form; lists every fault."""


class AttributeValueError(ArrayExecError, ValueError, TypeError):
    """An operator attribute that is unknown, missing or has an impossible value."""


class CompositionError(ArrayExecError, ValueError, TypeError):
    """Symbols that cannot be composed as asked."""


class ParallelizeError(ArrayExecError, ValueError):
    """Wrong combination of arguments of a data-parallel model."""


class DeviceError(ParallelizeError):
    """A list of devices that cannot be used."""


class RendezvousError(ParallelizeError, RuntimeError):
    """Ranks that could not meet."""


class PlanMismatchError(ArrayExecError, RuntimeError):
    """Ranks that do not hold the same model, options or plan."""


class AlreadyParallelizedError(ParallelizeError):
    """A model that is data-parallel already."""


class InconsistentReplicaError(ArrayExecError, RuntimeError):
    """Replicas whose parameters have drifted apart."""


class CollectiveError(ArrayExecError, RuntimeError):
    """A collective operation that failed."""


class CollectiveTimeoutError(CollectiveError, TimeoutError):
    """A collective that passed its deadline; names the ranks that are late."""


class BarrierTimeoutError(CollectiveTimeoutError):
    """A barrier that passed its deadline; names the ranks that have not arrived."""


class PeerFailure(CollectiveError):
    """Another rank failed or left."""


class BlobFreedError(ArrayExecError, KeyError, RuntimeError):
    """A value whose memory was given back before it was asked for."""


def near_miss(name: str, candidates: Iterable[str], shown: int = 8) -> str:
    """``; did you mean 'x'?`` or, of at most ``shown`` candidates, ``; there are: a, b`` for a name nobody knows."""
    known = list(dict.fromkeys(candidates))
    close = difflib.get_close_matches(str(name), known, n=2, cutoff=0.6)
    if close:
        return "; did you mean " + " or ".join(repr(item) for item in close) + "?"
    if not known or not shown:
        return ""
    listed = ", ".join(known[:shown]) + (f", … ({len(known)} in all)" if len(known) > shown else "")
    return f"; there are: {listed}"


def message(fact: str, rows: Sequence[Sequence[str]] = (), title: str = "inputs", hint: str = "") -> str:
    """Fact first, then a table of ``rows`` under ``title`` with aligned columns, then what to do."""
    lines = [fact]
    if rows:
        widths = [max(len(row[i]) for row in rows if i < len(row)) for i in range(max(map(len, rows)))]
        lines.append(f"  {title}:")
        for row in rows:
            cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=False))
            lines.append(("    " + "  ".join(cells)).rstrip())
    if hint:
        lines.append(f"  {hint}")
    return "\n".join(lines)


def format_shape(shape: object) -> str:
    """``(32, ?)`` for a partly known shape, ``?`` for one of unknown rank (``dims.ANY``, None)."""
    if not isinstance(shape, Sequence):
        return "?"
    dims = [str(dim) for dim in shape]
    return f"({dims[0]},)" if len(dims) == 1 else "(" + ", ".join(dims) + ")"
