"""Optimizers: rules that change parameters in place, and the updater that keeps their state.

Everything is named by index or by parameter name. A rule is elementwise, writes through ``out=`` and works
in cache-sized pieces with two small scratch arrays, so an update allocates nothing after the first.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar, TypeVar

import numpy

from ..context import Array, Context, asnumpy, context_of, copyto
from ..errors import AttributeValueError, CheckpointError, ShapeError
from ..executor import note_write
from .loss_scale import DynamicLossScale
from .lr_scheduler import LRScheduler
from .options import made

Key = int | str
State = dict[str, Array]

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

    The gradient is multiplied by ``rescale_grad`` and cut to ±``clip_gradient``. The learning rate is that
    of ``lr_scheduler`` (as a function of the largest count of updates), else ``learning_rate`` (default
    0.01), times the parameter's multiplier; weight decay is ``wd`` times its multiplier, which is 0 for
    named parameters except those that end in ``_weight`` or ``_gamma``. Names of indices come from
    ``param_idx2name``. Multipliers come, the later the stronger, from ``sym`` (its attributes
    ``__lr_mult__`` and ``__wd_mult__``), `set_lr_mult` and `set_wd_mult`, ``param_dict`` (objects with
    ``lr_mult`` and ``wd_mult``). Rules compute in float32 for 16-bit parameters; ``multi_precision`` also keeps a
    float32 master of each, and float32 states: without, what is smaller than a parameter's last bit is lost.

    A subclass names its `state_names` and gives `rule`.
    """

    state_names: ClassVar[tuple[str, ...]] = ()
    default_lr: ClassVar[float] = 0.01

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
    ) -> None:
        self.rescale_grad = rescale_grad
        self.lr = self.default_lr if learning_rate is None else learning_rate
        self.wd = wd
        self.clip_gradient = clip_gradient
        self.lr_scheduler = lr_scheduler
        if lr_scheduler is not None and learning_rate is not None and not lr_scheduler.base_lr_given:
            lr_scheduler.base_lr = learning_rate
        self.idx2name = dict(param_idx2name or {})
        self.param_dict = dict(param_dict or {})
        self.begin_num_update = begin_num_update
        self.num_update = begin_num_update
        self.multi_precision = multi_precision
        self.update_counts: dict[Key, int] = {}
        self._sym_attrs: dict[str, dict[str, str]] = {} if sym is None else sym.attr_dict()
        self.set_lr_mult({})
        self.set_wd_mult({})

    # -- what a subclass gives

    def rule(self, xp: Any, w: Array, g: Array, state: State, a: Array, b: Array, **factors: float) -> None:
        """Change ``w`` and ``state`` in place by gradient ``g``; ``a``, ``b`` are scratch of their shape."""
        raise AttributeValueError(f"optimizer {type(self).__name__}: the class must define rule()")

    def factors(self, key: Key, lr: float, wd: float) -> dict[str, float]:
        """What `rule` gets by name: numbers that are the same for all elements of the parameter."""
        return {"lr": lr, "wd": wd}

    def has_state(self) -> bool:
        """Whether `rule` uses `state_names` with the options given."""
        return bool(self.state_names)

    # -- updates

    def create_state(self, key: Key, weight: Array) -> State:
        """Zeros for every name of the state, of the shape, type and device of the parameter."""
        context = context_of(weight)
        dtype = numpy.dtype(numpy.float32) if self._has_master(weight) else weight.dtype
        names = self.state_names if self.has_state() else ()
        state = {name: context.zeros(weight.shape, dtype, "state") for name in names}
        if self._has_master(weight):
            state["master"] = context.empty(weight.shape, dtype, "state")
            copyto(state["master"], weight)
        return state

    def update(self, key: Key, weight: Array, grad: Array, state: State, scratch: Scratch | None = None) -> None:
        """Change a parameter and its state in place.

        Raises ShapeError where parameter and gradient differ.
        """
        if getattr(grad, "shape", None) != weight.shape:
            given = f"has {grad.shape}" if hasattr(grad, "shape") else f"is {grad!r}"
            raise ShapeError(
                f"{type(self).__name__}: the gradient of {self._name(key)!r} must have the shape "
                f"{weight.shape}, but it {given}"
            )
        self._count(key)
        factors = self.factors(key, self._get_lr(key), self._get_wd(key))
        scratch = scratch or Scratch()
        context = context_of(weight)
        with context.enter():
            if self._has_master(weight):
                state = dict(state)
                master = state.pop("master")
                self._in_pieces(context, master, grad, state, scratch, factors)
                context.copy(weight, master)
            else:
                self._in_pieces(context, weight, grad, state, scratch, factors)

    def _in_pieces(
        self,
        context: Context,
        weight: Array,
        grad: Array,
        state: State,
        scratch: Scratch,
        factors: dict[str, float],
    ) -> None:
        xp = context.xp
        arrays = [weight, grad, *state.values()]
        small = xp is not numpy or weight.size <= _PIECE
        if small or not all(array.flags.c_contiguous for array in arrays):
            self._piece(context, weight, grad, state, scratch, factors)
            return
        weight, grad, *states = (array.reshape(-1) for array in arrays)
        for start in range(0, weight.size, _PIECE):
            piece = slice(start, start + _PIECE)
            pieces = {name: array[piece] for name, array in zip(state, states, strict=True)}
            self._piece(context, weight[piece], grad[piece], pieces, scratch, factors)

    def _piece(
        self,
        context: Context,
        weight: Array,
        grad: Array,
        state: State,
        scratch: Scratch,
        factors: dict[str, float],
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

    def _rescaled(self, xp: Any, g: Array, out: Array, factor: float = 1.0) -> None:
        """``out = factor · clip(rescale_grad · g)``, computed in the type of ``out``."""
        if self.clip_gradient is None:
            xp.multiply(g, factor * self.rescale_grad, out=out, dtype=out.dtype)
            return
        xp.multiply(g, self.rescale_grad, out=out, dtype=out.dtype)
        self._clip(xp, out)
        xp.multiply(out, factor, out=out)

    def _clip(self, xp: Any, array: Array) -> None:
        if self.clip_gradient is not None:
            xp.minimum(array, self.clip_gradient, out=array)
            xp.maximum(array, -self.clip_gradient, out=array)

    # -- counts, rates

    def _count(self, key: Key) -> None:
        self.update_counts[key] = self.update_counts.get(key, self.begin_num_update) + 1
        self.num_update = max(self.num_update, self.update_counts[key])

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
        self.lr = lr

    def set_lr_mult(self, multipliers: Mapping[Key, float]) -> None:
        """Multipliers of the learning rate by index or name; replaces those given before."""
        self.lr_mult = self._symbol_multipliers("__lr_mult__") | dict(multipliers)

    def set_wd_mult(self, multipliers: Mapping[Key, float]) -> None:
        """Multipliers of the weight decay by index or name; replaces those given before."""
        self.wd_mult = self._symbol_multipliers("__wd_mult__") | dict(multipliers)

    def _symbol_multipliers(self, attribute: str) -> dict[Key, float]:
        return {n: float(attrs[attribute]) for n, attrs in self._sym_attrs.items() if attribute in attrs}

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
        return self.learning_rate * self._multiplier(key, self.lr_mult, "lr_mult", 1.0)

    def _get_wd(self, key: Key) -> float:
        name = self._name(key)
        decays = not isinstance(name, str) or name.endswith(("_weight", "_gamma"))
        return self.wd * self._multiplier(key, self.wd_mult, "wd_mult", float(decays))


@register
class SGD(Optimizer):
    """``m = momentum·m − lr·(clip(g) + wd·w)``, ``w += m``."""

    state_names = ("momentum",)

    def __init__(self, momentum: float = 0.0, **options: Any) -> None:
        super().__init__(**options)
        self.momentum = momentum

    def has_state(self) -> bool:
        """There is none without momentum."""
        return self.momentum != 0.0

    def rule(self, xp: Any, w: Array, g: Array, state: State, a: Array, b: Array, **factors: float) -> None:
        """One step of the formula of the class."""
        lr, wd = factors["lr"], factors["wd"]
        self._rescaled(xp, g, a, lr)
        if not self.has_state():
            if wd:
                xp.multiply(w, 1.0 - lr * wd, out=w)
            xp.subtract(w, a, out=w)
            return
        m = state["momentum"]
        xp.multiply(m, self.momentum, out=m)
        if wd:
            xp.multiply(w, lr * wd, out=b)
            xp.subtract(m, b, out=m)
        xp.subtract(m, a, out=m)
        xp.add(w, m, out=w)


@register
class NAG(SGD):
    """Looks ahead: with ``d = lr·(clip(g) + wd·w)``, ``m = momentum·m − d`` and ``w += momentum·m − d``."""

    def rule(self, xp: Any, w: Array, g: Array, state: State, a: Array, b: Array, **factors: float) -> None:
        """One step of the formula of the class."""
        if not self.has_state():
            super().rule(xp, w, g, state, a, b, **factors)
            return
        m = state["momentum"]
        self._rescaled(xp, g, a, factors["lr"])
        if factors["wd"]:
            xp.multiply(w, factors["lr"] * factors["wd"], out=b)
            xp.add(a, b, out=a)
        xp.multiply(m, self.momentum, out=m)
        xp.subtract(m, a, out=m)
        xp.multiply(m, self.momentum, out=b)
        xp.subtract(b, a, out=b)
        xp.add(w, b, out=w)


@register
class Adam(Optimizer):
    """``g = clip(g + wd·w)``, ``m = β1·m + (1−β1)·g``, ``v = β2·v + (1−β2)·g²``, ``w −= lr_t·m / (√v + ε)``.

    ``lr_t = lr·√(1−β2^t) / (1−β1^t)``, t being the parameter's own count of updates.
    """

    state_names = ("mean", "var")
    default_lr = 0.001

    def __init__(
        self,
        learning_rate: float | None = None,
        beta1: float = 0.9,
        beta2: float = 0.999,
        epsilon: float = 1e-8,
        **options: Any,
    ) -> None:
        super().__init__(learning_rate=learning_rate, **options)
        self.beta1 = beta1
        self.beta2 = beta2
        self.epsilon = epsilon

    def factors(self, key: Key, lr: float, wd: float) -> dict[str, float]:
        """The learning rate with the correction of the first steps' bias."""
        t = self.update_counts[key]
        return {"lr": lr * math.sqrt(1.0 - self.beta2**t) / (1.0 - self.beta1**t), "wd": wd}

    def rule(self, xp: Any, w: Array, g: Array, state: State, a: Array, b: Array, **factors: float) -> None:
        """One step of the formula of the class."""
        m, v = state["mean"], state["var"]
        xp.multiply(g, self.rescale_grad, out=a, dtype=a.dtype)
        if factors["wd"]:
            xp.multiply(w, factors["wd"], out=b)
            xp.add(a, b, out=a)
        self._clip(xp, a)
        xp.multiply(m, self.beta1, out=m)
        xp.multiply(a, 1.0 - self.beta1, out=b)
        xp.add(m, b, out=m)
        xp.multiply(v, self.beta2, out=v)
        xp.multiply(b, a, out=b)
        xp.multiply(b, (1.0 - self.beta2) / (1.0 - self.beta1), out=b)
        xp.add(v, b, out=v)
        xp.sqrt(v, out=a)
        xp.add(a, self.epsilon, out=a)
        xp.divide(m, a, out=a)
        xp.multiply(a, factors["lr"], out=a)
        xp.subtract(w, a, out=w)


class Updater:
    """Applies an optimizer and keeps the state of every parameter; ``updater(key, grad, weight)``.

    With a ``loss_scale`` gradients are divided by it, and `accepts` says whether an update may be made at all.
    """

    def __init__(self, optimizer: Optimizer, loss_scale: DynamicLossScale | None = None) -> None:
        self.optimizer = optimizer
        self.loss_scale = loss_scale
        self.states: dict[Key, State] = {}
        self._loaded: dict[Key, Mapping[str, Any]] = {}
        self._scratch = Scratch()

    def __call__(self, key: Key, grad: Array, weight: Array) -> None:
        """Update one parameter in place; key is its index or its name."""
        state = self.states.get(key)
        if state is None:
            state = self.states[key] = self._first_state(key, weight)
        factor = self.optimizer.rescale_grad
        if self.loss_scale is not None:
            self.optimizer.rescale_grad = factor / self.loss_scale.used
        try:
            self.optimizer.update(key, weight, grad, state, self._scratch)
        finally:
            self.optimizer.rescale_grad = factor
        note_write(weight, "the update")

    def accepts(self, grads: Iterable[Array]) -> bool:
        """Whether an update by all these gradients of one step may be made; once a step, before the first of them.

        Moves the loss scale; always true without one.
        """
        return self.loss_scale is None or self.loss_scale.accepts(grads)

    def update_all(self, keys: Iterable[Key], grads: Sequence[Array], weights: Sequence[Array]) -> None:
        """Update all parameters of a step in place, or none where the gradients are not accepted."""
        if self.accepts(grads):
            for key, grad, weight in zip(keys, grads, weights, strict=True):
                self(key, grad, weight)

    def get_states(self) -> dict[str, Any]:
        """Everything that resuming needs: the states as NumPy copies, the counts of updates."""
        states = {
            key: {name: numpy.array(asnumpy(array)) for name, array in state.items()}
            for key, state in self.states.items()
        }
        return {
            "optimizer": type(self.optimizer).__name__.lower(),
            "num_update": self.optimizer.num_update,
            "counts": dict(self.optimizer.update_counts),
            "states": self._loaded | states,
            **({} if self.loss_scale is None else {"loss_scale": self.loss_scale.get_state()}),
        }

    def set_states(self, saved: Mapping[str, Any]) -> None:
        """Go on from what `get_states` gave.

        Raises CheckpointError where it is not that, or belongs to another optimizer. Shapes are checked when
        a parameter is next updated.
        """
        if not isinstance(saved, Mapping):
            raise CheckpointError(
                f"updater: the saved states must be a dict of get_states(), but they are {type(saved).__name__}"
            )
        mine = type(self.optimizer).__name__.lower()
        missing = [name for name in ("optimizer", "num_update", "counts", "states") if name not in saved]
        if missing:
            raise CheckpointError(f"updater: the saved states must have {missing[0]!r}, but they have {list(saved)}")
        if saved["optimizer"] != mine:
            raise CheckpointError(
                f"updater: the saved states must be of the optimizer {mine!r}, but they are of {saved['optimizer']!r}"
            )
        self.optimizer.num_update = saved["num_update"]
        self.optimizer.update_counts = dict(saved["counts"])
        self.states = {}
        self._loaded = dict(saved["states"])
        if self.loss_scale is not None and "loss_scale" in saved:
            self.loss_scale.set_state(saved["loss_scale"])

    def _first_state(self, key: Key, weight: Array) -> State:
        state = self.optimizer.create_state(key, weight)
        saved = self._loaded.pop(key, None)
        if saved is None:
            return state
        if sorted(saved) != sorted(state):
            raise CheckpointError(
                f"updater: the saved state of {key!r} must have {sorted(state)}, but it has {sorted(saved)}"
            )
        for name, array in state.items():
            if saved[name].shape != array.shape:
                raise CheckpointError(
                    f"updater: the saved {name} of {key!r} must have the shape {array.shape}, "
                    f"but it has {saved[name].shape}"
                )
            copyto(array, saved[name])
        return state


def get_updater(optimizer: Optimizer, loss_scale: DynamicLossScale | None = None) -> Updater:
    """A function ``updater(key, grad, weight)`` that keeps the optimizer's states."""
    return Updater(optimizer, loss_scale)
