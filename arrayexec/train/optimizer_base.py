"""What all optimizers share: options, counts of updates, rates and multipliers, a step over flat memory.

A rule is elementwise, writes through ``out=`` and works in cache-sized pieces with two small scratch arrays, so an
update allocates nothing after the first. What it is given may be one parameter, or many that lie behind each other.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, TypeVar

import numpy

from ..context import Array, Context, asnumpy, context_of, copyto
from ..errors import AttributeValueError, ShapeError
from .lr_scheduler import DEFAULT_RATE, LRScheduler
from .options import made, number

Key = int | str
State = dict[str, Array]
Factors = dict[str, Any]

_PIECE = 1 << 15  # elements of one piece on the processor: parameter, gradient, states and scratch fit in 1 MiB of L2
_registry: dict[str, type[Optimizer]] = {}
_Class = TypeVar("_Class", bound="type[Optimizer]")


def register(cls: _Class) -> _Class:
    """Make an optimizer known to `create` under its name in lower case."""
    _registry[cls.__name__.lower()] = cls
    return cls


def create(name: str | Optimizer, **options: Any) -> Optimizer:
    """The optimizer of a registered name, or the one given.

    Raises AttributeValueError for unknown names and options, with the nearest known one.
    """
    if isinstance(name, Optimizer):
        return name
    return made("optimizer", name, _registry, **options)


def used(factor: Any, idle: float = 0.0) -> bool:
    """Whether a factor matters: it is an array, or a number that is not ``idle``."""
    return not isinstance(factor, (int, float)) or factor != idle


def move_mean(xp: Any, mean: Array, share: float, a: Array, b: Array) -> None:
    """``mean = share·mean + (1−share)·a``; leaves ``(1−share)·a`` in ``b``."""
    xp.multiply(mean, share, out=mean)
    xp.multiply(a, 1.0 - share, out=b)
    xp.add(mean, b, out=mean)


def move_mean_square(xp: Any, mean: Array, share: float, a: Array, b: Array) -> None:
    """``mean = share·mean + (1−share)·a²``; ``b`` is scratch."""
    xp.multiply(mean, share, out=mean)
    xp.multiply(a, a, out=b)
    xp.multiply(b, 1.0 - share, out=b)
    xp.add(mean, b, out=mean)


def descend(xp: Any, w: Array, lr: Any, direction: Array, length: Array, a: Array, keep: Any = 1.0) -> None:
    """``w = keep·w − lr·direction/length``; ``a`` is scratch, and may be direction or length."""
    xp.divide(direction, length, out=a)
    xp.multiply(a, lr, out=a)
    if used(keep, 1.0):
        xp.multiply(w, keep, out=w)
    xp.subtract(w, a, out=w)


class Scratch:
    """A few arrays for every device and type; they grow to the largest piece asked for, then stay."""

    def __init__(self) -> None:
        self._buffers: dict[tuple[Context, Any], Array] = {}

    def arrays(self, context: Context, count: int, shape: tuple[int, ...], dtype: Any) -> list[Array]:
        """``count`` arrays with arbitrary values."""
        size = math.prod(shape)
        buffer = self._buffers.get((context, dtype))
        if buffer is None or buffer.shape[0] < count or buffer.shape[1] < size:
            buffer = context.empty((count, size), dtype, "state")
            self._buffers[context, dtype] = buffer
        return [buffer[i, :size].reshape(shape) for i in range(count)]


class Optimizer:
    """What all rules share: learning rate, weight decay, multipliers, clipping, counts of updates.

    The gradient is multiplied by ``rescale_grad`` and cut to ±``clip_gradient`` (None or 0: not). With
    ``clip_global_norm`` the gradients of a step, all parameters together, are made shorter where their common length is
    above it; it needs `Updater.update_all`. The learning rate is that of ``lr_scheduler`` (as a function of the largest
    count of updates), else ``learning_rate`` (default 0.01), times the parameter's multiplier; weight decay is ``wd``
    times its multiplier, which is 0 for named parameters except those that end in ``_weight`` or ``_gamma``. Names of
    indices come from ``param_idx2name``. Multipliers come, the later the stronger, from ``sym`` (its attributes
    ``__lr_mult__`` and ``__wd_mult__``), `set_lr_mult` and `set_wd_mult`, ``param_dict`` (objects with ``lr_mult`` and
    ``wd_mult``). Rules compute in float32 for 16-bit parameters; ``multi_precision`` also keeps a float32 master of
    each, and float32 states: without, what is smaller than a parameter's last bit is lost.

    A subclass names its `state_names` and gives `factors` and `rule`; or, in MXNet's way, `create_state` and `update`.
    """

    opt_registry: ClassVar[dict[str, type[Optimizer]]] = _registry
    register = staticmethod(register)
    create_optimizer = staticmethod(create)
    state_names: ClassVar[tuple[str, ...]] = ()
    copies: ClassVar[tuple[str, ...]] = ()
    """States that begin as copies of the parameter; others begin as zeros."""
    default_lr: ClassVar[float] = 0.01
    decays: ClassVar[tuple[str, ...]] = ("_weight", "_gamma")
    """How names of parameters end that decay."""
    keyless: ClassVar[bool] = False
    """Whether `factors` depends on rate, decay and count alone, not on which parameter it is."""
    divides_by_rate: ClassVar[bool] = False
    """Whether a rate of 0 means nothing."""
    flat: ClassVar[bool] = True
    """Whether parameters that lie behind each other may be updated as one array."""
    elementwise: bool = True
    """Whether an element moves by its own gradient alone: then parts of parameters may be updated like whole ones."""

    def __init__(
        self,
        rescale_grad: float = 1.0,
        param_idx2name: Mapping[int, str] | None = None,
        wd: float = 0.0,
        clip_gradient: float | None = None,
        learning_rate: float | None = None,
        lr_scheduler: LRScheduler | None = None,
        sym: Any = None,
        begin_num_update: int = 0,
        multi_precision: bool = False,
        param_dict: Mapping[Key, Any] | None = None,
        clip_global_norm: float | None = None,
    ) -> None:
        who = type(self).__name__
        self.rescale_grad = number(who, "rescale_grad", rescale_grad)
        self.lr = self.default_lr if learning_rate is None else number(who, "learning_rate", learning_rate)
        self.wd = number(who, "wd", wd)
        self.clip_gradient = None if clip_gradient is None else number(who, "clip_gradient", clip_gradient)
        self.clip_global_norm = None if clip_global_norm is None else number(who, "clip_global_norm", clip_global_norm)
        if clip_global_norm is not None and not 0 < clip_global_norm < math.inf:
            raise AttributeValueError(
                f"{who}: clip_global_norm must be a length above 0, but it is {clip_global_norm!r}"
            )
        if lr_scheduler is not None and not callable(lr_scheduler):
            raise AttributeValueError(
                f"{who}: lr_scheduler must be an object such as lr_scheduler.CosineScheduler(1000), "
                f"but it is {lr_scheduler!r}"
            )
        self.lr_scheduler = lr_scheduler
        untouched = getattr(lr_scheduler, "base_lr", None) == DEFAULT_RATE
        if not getattr(lr_scheduler, "base_lr_given", True) and (learning_rate is not None or untouched):
            lr_scheduler.base_lr = self.lr  # type: ignore[union-attr]
        self.idx2name = dict(param_idx2name or {})
        self.param_dict = dict(param_dict or {})
        self.begin_num_update = begin_num_update
        self.num_update = begin_num_update
        self.multi_precision = multi_precision
        self.update_counts: dict[Key, int] = {}
        self._sym_attrs: dict[str, dict[str, str]] = {} if sym is None else sym.attr_dict()
        self.set_lr_mult({})
        self.set_wd_mult({})

    # --- what a subclass gives -----------------------------------------------------------------------------------

    def rule(self, xp: Any, w: Array, g: Array, state: State, a: Array, b: Array, **factors: Any) -> None:
        """Change ``w`` and ``state`` in place by gradient ``g``; ``a``, ``b`` are scratch of their shape.

        A factor is a number or, where parameters with different ones are updated at once, an array like ``w``.
        """
        raise AttributeValueError(f"optimizer {type(self).__name__}: the class must define rule()")

    def factors(self, key: Key, lr: float, wd: float) -> Factors:
        """What `rule` gets by name: numbers that are the same for all elements of the parameter."""
        return {"lr": lr, "wd": wd}

    def used_states(self) -> tuple[str, ...]:
        """Those of `state_names` that `rule` uses with the options given."""
        return self.state_names

    def extra_state(self) -> dict[str, float]:
        """Numbers beside the states of parameters that resuming needs: names of attributes and their values."""
        return {}

    def apply(
        self, context: Context, weight: Array, grad: Array, state: State, scratch: Scratch,
        factors: Sequence[Factors], parts: Sequence[slice], spread: Any,
    ) -> None:  # fmt: skip
        """Move a stretch of parameters: each of ``parts`` by its factors.

        ``spread(factors)`` makes numbers of all parts, where they differ, an array by element.
        """
        self._in_pieces(context, weight, grad, state, scratch, spread(factors))

    # --- updates -------------------------------------------------------------------------------------------------

    def state_like(self, weight: Array) -> tuple[tuple[str, ...], Any]:
        """Names of the states of a parameter and their type."""
        if self._has_master(weight):
            return (*self.used_states(), "master"), numpy.dtype(numpy.float32)
        return self.used_states(), weight.dtype

    def state_shape(self, name: str, shape: tuple[int, ...]) -> tuple[int, ...]:
        """The shape of a state of a parameter of ``shape``."""
        return shape

    def starts_as_copy(self, name: str) -> bool:
        """Whether a state begins as the parameter, not as zeros."""
        return name == "master" or name in self.copies

    def create_state(self, key: Key, weight: Array) -> Any:
        """The states of a parameter at its first update, by name; of its shape and device."""
        context = context_of(weight)
        names, dtype = self.state_like(weight)
        state = {name: context.zeros(self.state_shape(name, weight.shape), dtype, "state") for name in names}
        for name, array in state.items():
            if self.starts_as_copy(name):
                copyto(array, weight)
        return state

    def update(self, key: Key, weight: Array, grad: Array, state: Any, scratch: Scratch | None = None) -> None:
        """Change a parameter and its state in place.

        Raises ShapeError where parameter and gradient differ.
        """
        self.check(key, weight, grad)
        (factors,) = self.next_factors([key])
        if factors is not None:
            self.step_one(weight, grad, state, scratch or Scratch(), factors)

    def check(self, key: Key, weight: Array, grad: Array) -> None:
        """Raise ShapeError where parameter and gradient differ."""
        if getattr(grad, "shape", None) != weight.shape:
            given = f"has {grad.shape}" if hasattr(grad, "shape") else f"is {grad!r}"
            raise ShapeError(
                f"{type(self).__name__}: the gradient of {self._name(key)!r} must have the shape "
                f"{weight.shape}, but it {given}"
            )

    def next_factors(self, keys: Sequence[Key]) -> list[Factors | None]:
        """Count an update of these parameters, one after the other, and give their factors.

        None for one that is frozen: its learning rate is multiplied by 0.
        """
        counts, known = self.update_counts, dict[tuple[float, float, int], Factors]()
        found: list[Factors | None] = []
        rate = self.lr
        own = type(self).__module__.partition(".")[0] == __name__.partition(".")[0]
        shares = self.keyless and own  # a user's class may look at the key
        for key in keys:
            self._update_count(key)
            if self.lr_scheduler is not None:
                rate = self.learning_rate
            lr, wd = rate * self._lr_multiplier(key), self._get_wd(key)
            if lr == 0.0 and (self.divides_by_rate or rate != 0.0):
                found.append(None)
                continue
            alike = lr, wd, counts[key]
            factors = known.get(alike) if shares else None
            if factors is None:
                factors = known[alike] = self.factors(key, lr, wd)
            found.append(factors)
        return found

    def step_one(self, weight: Array, grad: Array, state: State, scratch: Scratch, factors: Factors) -> None:
        """`step` of one parameter, whatever its layout."""
        whole: Any = [...]  # an array without dims, too
        self.step(weight, grad, state, scratch, [factors], whole, operator.itemgetter(0))

    def step(
        self, weight: Array, grad: Array, state: State, scratch: Scratch,
        factors: Sequence[Factors], parts: Sequence[slice], spread: Any,
    ) -> None:  # fmt: skip
        """`apply` on the device of the arrays, to the float32 master where there is one."""
        context = context_of(weight)
        with context.enter():
            if "master" not in state:
                self.apply(context, weight, grad, state, scratch, factors, parts, spread)
                return
            others = {name: array for name, array in state.items() if name != "master"}
            self.apply(context, state["master"], grad, others, scratch, factors, parts, spread)
            context.copy(weight, state["master"])

    def _in_pieces(
        self, context: Context, weight: Array, grad: Array, state: State, scratch: Scratch, factors: Factors
    ) -> None:
        xp = context.xp
        arrays = [weight, grad, *state.values()]
        small = xp is not numpy or weight.size <= _PIECE
        if small or not all(array.flags.c_contiguous for array in arrays):
            self._piece(context, weight, grad, state, scratch, factors)
            return
        weight, grad, *states = (array.reshape(-1) for array in arrays)
        arrays_among = {name: value for name, value in factors.items() if isinstance(value, numpy.ndarray)}
        for start in range(0, weight.size, _PIECE):
            piece = slice(start, start + _PIECE)
            pieces = {name: array[piece] for name, array in zip(state, states, strict=True)}
            here = factors | {name: value[piece] for name, value in arrays_among.items()} if arrays_among else factors
            self._piece(context, weight[piece], grad[piece], pieces, scratch, here)

    def _piece(
        self, context: Context, weight: Array, grad: Array, state: State, scratch: Scratch, factors: Factors
    ) -> None:
        xp, shape = context.xp, weight.shape
        if weight.dtype.kind not in "fV" or weight.dtype.itemsize > 2:
            self.rule(xp, weight, grad, state, *scratch.arrays(context, 2, shape, weight.dtype), **factors)
            return
        held = [weight, *state.values()]
        a, b, *wide = scratch.arrays(context, 2 + len(held), shape, numpy.dtype(numpy.float32))
        for source, target in zip(held, wide, strict=True):
            xp.copyto(target, source)
        self.rule(xp, wide[0], grad, dict(zip(state, wide[1:], strict=True)), a, b, **factors)
        for source, target in zip(wide, held, strict=True):
            xp.copyto(target, source, casting="same_kind")

    def _has_master(self, weight: Array) -> bool:
        return self.multi_precision and weight.dtype.itemsize == 2

    def _scaled(self, factor: float) -> float:
        """What `_rescaled` needs to multiply the gradient by ``factor``."""
        return factor if self._clips else factor * self.rescale_grad

    def _rescaled(self, xp: Any, g: Array, out: Array, scaled: Any) -> None:
        """``out = factor · clip(rescale_grad · g)`` for ``scaled = _scaled(factor)``, in the type of ``out``."""
        if self._clips:
            xp.multiply(g, self.rescale_grad, out=out, dtype=out.dtype)
            self._clip(xp, out)
            g = out
        xp.multiply(g, scaled, out=out, dtype=out.dtype)

    def _decayed(self, xp: Any, w: Array, g: Array, wd: Any, out: Array, b: Array) -> None:
        """``out = clip(rescale_grad · g + wd · w)``."""
        xp.multiply(g, self.rescale_grad, out=out, dtype=out.dtype)
        self._add_scaled(xp, out, w, wd, b)
        self._clip(xp, out)

    @staticmethod
    def _add_scaled(xp: Any, target: Array, array: Array, factor: Any, b: Array) -> None:
        """``target += factor · array``."""
        if used(factor):
            xp.multiply(array, factor, out=b)
            xp.add(target, b, out=target)

    @property
    def _clips(self) -> bool:
        return self.clip_gradient is not None and self.clip_gradient > 0

    def _clip(self, xp: Any, array: Array) -> None:
        limit = self.clip_gradient
        if limit is not None and limit > 0:
            xp.minimum(array, limit, out=array)
            xp.maximum(array, -limit, out=array)

    # --- counts, rates -------------------------------------------------------------------------------------------

    def _update_count(self, key: Key) -> None:
        self.update_counts[key] = self.update_counts.get(key, self.begin_num_update) + 1
        self.num_update = max(self.num_update, self.update_counts[key])

    @property
    def _index_update_count(self) -> dict[Key, int]:
        return self.update_counts  # what optimizers written for MXNet call it

    @property
    def learning_rate(self) -> float:
        """The learning rate now, without multipliers."""
        return self.lr if self.lr_scheduler is None else self.lr_scheduler(self.num_update)

    def set_learning_rate(self, lr: float) -> None:
        """Set the learning rate; raises AttributeValueError where a scheduler gives it."""
        if self.lr_scheduler is not None:
            raise AttributeValueError(
                f"{type(self).__name__}: the learning rate is that of its {type(self.lr_scheduler).__name__}, "
                "so it cannot be set; change lr_scheduler.base_lr"
            )
        self.lr = number(type(self).__name__, "learning_rate", lr)

    def set_lr_mult(self, multipliers: Mapping[Key, float]) -> None:
        """Multipliers of the learning rate by index or name; replaces those given before."""
        self.lr_mult = self._multipliers("lr_mult", multipliers)

    def set_wd_mult(self, multipliers: Mapping[Key, float]) -> None:
        """Multipliers of the weight decay by index or name; replaces those given before."""
        self.wd_mult = self._multipliers("wd_mult", multipliers)

    def _multipliers(self, option: str, given: Any) -> dict[Key, float]:
        """Those that the symbol's attributes say, and, stronger, those given."""
        found: dict[Key, float] = {}
        for name, attributes in self._sym_attrs.items():
            text = attributes.get(f"__{option}__")
            if text is not None:
                try:
                    found[name] = float(text)
                except ValueError:
                    fact = f"the attribute __{option}__ of '{name}' must be a number, but it is {text!r}"
                    raise AttributeValueError(f"{type(self).__name__}: {fact}") from None
        if not isinstance(given, Mapping):
            fact = f"set_{option} takes a dict of multipliers by index or name, but it was given {given!r}"
            raise AttributeValueError(f"{type(self).__name__}: {fact}")
        return found | {key: number(type(self).__name__, f"{option}[{key!r}]", value) for key, value in given.items()}

    def _name(self, key: Key) -> Key:
        return self.idx2name.get(key, key) if isinstance(key, int) else key

    def _multiplier(self, key: Key, given: Mapping[Key, float], attribute: str, default: float) -> float:
        for one in (key, self._name(key)):
            if one in self.param_dict:
                return float(getattr(self.param_dict[one], attribute))
            if one in given:
                return given[one]
        return default

    def _get_lr(self, key: Key) -> float:
        return self.learning_rate * self._lr_multiplier(key)

    def _lr_multiplier(self, key: Key) -> float:
        return self._multiplier(key, self.lr_mult, "lr_mult", 1.0) if self.lr_mult or self.param_dict else 1.0

    def _get_wd(self, key: Key) -> float:
        if not self.wd:
            return 0.0
        name = self._name(key)
        decays = not isinstance(name, str) or name.endswith(self.decays)
        if self.wd_mult or self.param_dict:
            return self.wd * self._multiplier(key, self.wd_mult, "wd_mult", float(decays))
        return self.wd if decays else 0.0


def norms(context: Context, arrays: Sequence[Array]) -> list[float]:
    """Euclidean lengths, which a device is asked for once."""
    if not arrays:
        return []
    squares = context.zeros((len(arrays),), numpy.float64, "state")
    for i, array in enumerate(arrays):
        flat = array.reshape(-1)
        if flat.dtype.itemsize == 2:
            flat = flat.astype(numpy.float32)
        squares[i : i + 1] = context.xp.dot(flat, flat)
    return [math.sqrt(square) for square in asnumpy(squares).tolist()]
