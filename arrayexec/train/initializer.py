"""First values of parameters.

An initialiser called with a described name (`InitDesc`) decides by that name: a variable's own
``__init__`` attribute first, then the end of the name (``_bias`` and ``_beta`` are zeros, ``_gamma`` ones,
``_weight`` follows the rule of the initialiser). `Initializer.init_array` applies the rule whatever the
name. Random values depend on the seed and the name alone.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import numpy

from .. import files
from ..context import Array, asnumpy, copyto
from ..errors import AttributeValueError, ShapeError, UnknownNameError, near_miss
from .options import expression, made, one_of
from .random import generator
from .rnn_layout import rnn_pieces

_LOG = logging.getLogger(__name__)
_registry: dict[str, type[Initializer]] = {}
_Class = TypeVar("_Class", bound="type[Initializer]")


def register(cls: _Class) -> _Class:
    """Make an initialiser known to `create` under its name in lower case."""
    _registry[cls.__name__.lower()] = cls
    return cls


def _alias(*names: str) -> Callable[[_Class], _Class]:
    def also(cls: _Class) -> _Class:
        _registry.update(dict.fromkeys(names, cls))
        return register(cls)

    return also


def create(description: str | Initializer, **options: Any) -> Initializer:
    """The initialiser of a registered name or of the text that `Initializer.dumps` gives.

    Raises AttributeValueError for unknown names and for texts that are not such.
    """
    if isinstance(description, Initializer):
        return description
    name = description
    if isinstance(description, str) and description.lstrip().startswith("["):
        try:
            name, options = json.loads(description)
            options = dict(**options)
        except (ValueError, TypeError, RecursionError):
            raise AttributeValueError(
                f"initializer: the text must be like '[\"zero\", {{}}]', but it is {description[:200]!r}"
            ) from None
    return made("initializer", name, _registry, **options)


class InitDesc(str):
    """The name of a variable with its attributes and the initialiser to fall back on."""

    attrs: Mapping[str, str]
    global_init: Initializer | None

    def __new__(
        cls, name: str, attrs: Mapping[str, str] | None = None, global_init: Initializer | None = None
    ) -> InitDesc:
        desc = super().__new__(cls, name)
        desc.attrs = attrs or {}
        desc.global_init = global_init
        return desc


class Initializer:
    """``initializer(desc, array)`` fills an array in place. A subclass gives its rule, `_init_weight`.

    It may give rules for other names, too: `_init_bias`, `_init_gamma`, `_init_beta`, and `_init_default` for the rest.

    Keyword arguments given to this class are what `dumps` writes.
    """

    def __init__(self, **options: Any) -> None:
        self._options = options

    def dumps(self) -> str:
        """Name and options as JSON, the text of an ``__init__`` attribute."""
        return json.dumps([type(self).__name__.lower(), self._options])

    def __repr__(self) -> str:
        options = ", ".join(f"{name}={value!r}" for name, value in self._options.items())
        return f"{type(self).__name__}({options})"

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and self.dumps() == other.dumps()

    def __hash__(self) -> int:
        return hash(self.dumps())

    def __call__(self, desc: str, array: Array) -> None:
        """Fill ``array`` by the rules of names (a plain ``str`` as desc has some more of them).

        Raises AttributeValueError for a name without a rule, ShapeError where the rule needs another shape.
        """
        if isinstance(desc, InitDesc):
            if desc.global_init is None:
                desc.global_init = self
            own = desc.attrs.get("__init__")
            if own:
                create(own)._init_weight(desc, array)
                return
            endings = _ENDINGS
        else:
            if desc.startswith("upsampling"):
                Bilinear().init_array(array)
                return
            if desc.startswith("stn_loc") and desc.endswith("bias"):
                copyto(array, numpy.array([1, 0, 0, 0, 1, 0], array.dtype))  # the identity as an affine map
                return
            if desc.startswith("stn_loc") and desc.endswith("weight"):
                array.fill(0)
                return
            endings = _PLAIN_ENDINGS
        for ending, rule in endings.items():
            if desc.endswith(ending):
                getattr(self, rule)(desc, array)
                return
        self._init_default(desc, array)

    def init_array(self, array: Array, name: str = "") -> None:
        """Fill ``array`` by this initialiser's own rule; the name only picks the random stream."""
        self._init_weight(InitDesc(name, global_init=self), array)

    def _init_weight(self, desc: str, array: Array) -> None:
        raise AttributeValueError(f"initializer {type(self).__name__}: the class must define _init_weight()")

    def _init_zero(self, desc: str, array: Array) -> None:
        array[...] = 0

    def _init_one(self, desc: str, array: Array) -> None:
        array[...] = 1

    _init_bias = _init_beta = _init_zero
    _init_gamma = _init_one

    def _init_default(self, desc: str, array: Array) -> None:
        endings = _ENDINGS if isinstance(desc, InitDesc) else _PLAIN_ENDINGS
        raise AttributeValueError(
            f"{type(self).__name__}: there is no rule for the name {str(desc)!r}: names end in "
            f"{', '.join(endings)}\n  give the variable its own, Variable({str(desc)!r}, init=...)"
        )


_ENDINGS = {
    "weight": "_init_weight", "bias": "_init_bias", "gamma": "_init_gamma", "beta": "_init_beta",
    "min": "_init_zero", "max": "_init_one",
}  # fmt: skip
_PLAIN_ENDINGS = _ENDINGS | {
    "moving_mean": "_init_zero", "moving_var": "_init_one", "moving_inv_var": "_init_zero", "moving_avg": "_init_zero",
}  # fmt: skip


@_alias("zeros")
class Zero(Initializer):
    """Zeros."""

    def _init_weight(self, desc: str, array: Array) -> None:
        array.fill(0)


@_alias("ones")
class One(Initializer):
    """Ones."""

    def _init_weight(self, desc: str, array: Array) -> None:
        array.fill(1)


@register
class Constant(Initializer):
    """One value, or an array of the parameter's shape."""

    def __init__(self, value: Any) -> None:
        super().__init__(value=value if isinstance(value, (int, float)) else asnumpy(value).tolist())
        self.value = value

    def _init_weight(self, desc: str, array: Array) -> None:
        if isinstance(self.value, (int, float)):
            array.fill(self.value)
        else:
            copyto(array, self.value)


@register
class Uniform(Initializer):
    """Uniform in ±scale."""

    def __init__(self, scale: float = 0.07) -> None:
        super().__init__(scale=scale)
        self.scale = scale

    def _init_weight(self, desc: str, array: Array) -> None:
        copyto(array, _draw(desc).uniform(-self.scale, self.scale, array.shape))


@_alias("gaussian")
class Normal(Initializer):
    """Normal with mean 0 and standard deviation sigma."""

    def __init__(self, sigma: float = 0.01) -> None:
        super().__init__(sigma=sigma)
        self.sigma = sigma

    def _init_weight(self, desc: str, array: Array) -> None:
        copyto(array, _draw(desc).normal(0.0, self.sigma, array.shape))


@register
class Orthogonal(Initializer):
    """Rows (or columns, if there are more rows) orthogonal to each other, each of length scale.

    From the singular vectors of a random matrix: Saxe, McClelland, Ganguli, "Exact solutions to the
    nonlinear dynamics of learning in deep linear neural networks", 2013.
    """

    def __init__(self, scale: float = 1.414, rand_type: str = "uniform") -> None:
        super().__init__(scale=scale, rand_type=rand_type)
        self.scale = scale
        self.rand_type = one_of(type(self).__name__, "rand_type", rand_type, ("uniform", "normal"))

    def _init_weight(self, desc: str, array: Array) -> None:
        _needs_rank(self, desc, array)
        shape = (array.shape[0], int(numpy.prod(array.shape[1:])))
        draw = _draw(desc)
        matrix = draw.uniform(-1.0, 1.0, shape) if self.rand_type == "uniform" else draw.normal(size=shape)
        left, _, right = numpy.linalg.svd(matrix, full_matrices=False)
        copyto(array, (self.scale * (left if left.shape == shape else right)).reshape(array.shape))


@register
class Xavier(Initializer):
    """Random with variance magnitude / (3 · fan) (``uniform``) or magnitude / fan (``gaussian``).

    ``factor_type`` names the fan: ``in``, ``out`` or their mean, ``avg``. Glorot, Bengio, "Understanding
    the difficulty of training deep feedforward neural networks", 2010.
    """

    def __init__(self, rnd_type: str = "uniform", factor_type: str = "avg", magnitude: float = 3) -> None:
        super().__init__(rnd_type=rnd_type, factor_type=factor_type, magnitude=magnitude)
        self.rnd_type = one_of(type(self).__name__, "rnd_type", rnd_type, ("uniform", "gaussian"))
        self.factor_type = one_of(type(self).__name__, "factor_type", factor_type, ("in", "out", "avg"))
        self.magnitude = magnitude

    def _init_weight(self, desc: str, array: Array) -> None:
        _needs_rank(self, desc, array)
        window = float(numpy.prod(array.shape[2:]))
        fan_in, fan_out = array.shape[1] * window, array.shape[0] * window
        fan = {"in": fan_in, "out": fan_out, "avg": (fan_in + fan_out) / 2.0}[self.factor_type]
        scale = (self.magnitude / fan) ** 0.5
        rule = Uniform(scale) if self.rnd_type == "uniform" else Normal(scale)
        rule._init_weight(desc, array)


@register
class MSRAPrelu(Xavier):
    """Normal with variance 2 / ((1 + slope²) · fan), for rectifiers with that slope below zero.

    He, Zhang, Ren, Sun, "Delving deep into rectifiers", 2015.
    """

    def __init__(self, factor_type: str = "avg", slope: float = 0.25) -> None:
        super().__init__("gaussian", factor_type, 2.0 / (1.0 + slope**2))
        self._options = {"factor_type": factor_type, "slope": slope}


@register
class Bilinear(Initializer):
    """The kernel of bilinear interpolation in the last two axes, for upsampling by deconvolution."""

    def _init_weight(self, desc: str, array: Array) -> None:
        _needs_rank(self, desc, array)
        factor = -(-array.shape[-1] // 2)
        center = (2 * factor - 1 - factor % 2) / (2.0 * factor)
        y, x = (1.0 - abs(numpy.arange(size) / factor - center) for size in array.shape[-2:])
        copyto(array, numpy.broadcast_to(numpy.outer(y, x), array.shape))


@register
class LSTMBias(Initializer):
    """Zeros, but ``forget_bias`` for the forget gate: the second quarter of the vector."""

    def __init__(self, forget_bias: float = 1.0) -> None:
        super().__init__(forget_bias=forget_bias)
        self.forget_bias = forget_bias

    def _init_weight(self, desc: str, array: Array) -> None:
        if array.ndim != 1 or array.shape[0] % 4:
            raise ShapeError(f"LSTMBias: {str(desc)!r} must be a vector of four gates, but its shape is {array.shape}")
        gate = array.shape[0] // 4
        array.fill(0)
        array[gate : 2 * gate] = self.forget_bias


@register
class FusedRNN(Initializer):
    """The flat parameter vector of the fused RNN operator, every gate's piece by its own name.

    ``init`` (an initialiser, its `dumps` text, or None for the one used overall) fills the pieces; with
    mode ``lstm`` the forget gates' biases are ``forget_bias``. Raises ShapeError for a length that no
    number of inputs gives.
    """

    def __init__(
        self,
        init: Initializer | str | None,
        num_hidden: int,
        num_layers: int,
        mode: str,
        bidirectional: bool = False,
        forget_bias: float = 1.0,
    ) -> None:
        self.init = None if init is None else create(init)
        super().__init__(
            init=None if self.init is None else self.init.dumps(),
            num_hidden=num_hidden,
            num_layers=num_layers,
            mode=mode,
            bidirectional=bidirectional,
            forget_bias=forget_bias,
        )
        self.num_hidden = num_hidden
        self.num_layers = num_layers
        self.mode = mode
        self.bidirectional = bidirectional
        self.forget_bias = forget_bias

    def _init_weight(self, desc: str, array: Array) -> None:
        overall = self.init or getattr(desc, "global_init", None)
        if overall is None or overall is self:
            raise AttributeValueError(
                f"FusedRNN: an initialiser for the pieces of {str(desc)!r} must be given as init=, but there is none"
            )
        prefix = desc.removesuffix("parameters")
        host = numpy.zeros(array.shape, array.dtype)
        pieces = rnn_pieces(host.size, self.num_hidden, self.num_layers, self.mode, self.bidirectional)
        for name, where, shape in pieces:
            piece = host[where].reshape(shape)
            if self.mode == "lstm" and name.endswith("_f_bias"):
                piece.fill(self.forget_bias)
            else:
                overall(InitDesc(prefix + name, global_init=overall), piece)
        copyto(array, host)


class Mixed(Initializer):
    """For every name the initialiser of the first pattern (a regular expression) that matches its beginning.

    Raises AttributeValueError for a name that no pattern matches.
    """

    def __init__(self, patterns: Sequence[str], initializers: Sequence[Initializer]) -> None:
        if len(patterns) != len(initializers):
            raise AttributeValueError(
                f"Mixed: there must be one initialiser for each pattern, but there are {len(patterns)} "
                f"patterns and {len(initializers)} initialisers"
            )
        super().__init__(patterns=list(patterns), initializers=[init.dumps() for init in initializers])
        self.map = [(expression("Mixed", "a pattern", p), init) for p, init in zip(patterns, initializers, strict=True)]

    def __call__(self, desc: str, array: Array) -> None:
        """Fill ``array`` by the first initialiser whose pattern matches."""
        for pattern, init in self.map:
            if pattern.match(desc):
                init(desc, array)
                return
        patterns = ", ".join(repr(pattern.pattern) for pattern, _ in self.map)
        raise AttributeValueError(
            f"Mixed: a pattern must match the name {str(desc)!r}, but there are only {patterns}\n"
            "  add the pattern '.*' as the last one"
        )


class Load(Initializer):
    """Values from a dict name → array or a parameter file; ``default_init`` for the names that it lacks.

    Prefixes ``arg:`` and ``aux:`` are taken off; ``verbose`` logs where every value comes from. Raises
    ShapeError where shapes differ, UnknownNameError for a name without value and default.
    """

    def __init__(
        self, param: str | Mapping[str, Array], default_init: Initializer | None = None, verbose: bool = False
    ) -> None:
        super().__init__()
        loaded = param if isinstance(param, Mapping) else files.load(param)
        if not isinstance(loaded, Mapping):
            raise AttributeValueError(f"Load: the arrays in {param!r} must have names, but they have none")
        self.param = {re.sub("^(arg|aux):", "", name): array for name, array in loaded.items()}
        self.default_init = default_init
        self.verbose = verbose

    def __call__(self, desc: str, array: Array) -> None:
        """Fill ``array`` with the value of that name."""
        value = self.param.get(str(desc))
        if value is None:
            if self.default_init is None:
                raise UnknownNameError(
                    f"Load: there must be a value or a default for {str(desc)!r}" + near_miss(desc, self.param)
                )
            self.default_init(desc, array)
            self._log(desc, "the default")
            return
        if value.shape != array.shape:
            raise ShapeError(
                f"Load: the value of {str(desc)!r} must have the shape {array.shape}, but it has {value.shape}"
            )
        copyto(array, value)
        self._log(desc, "the values given")

    def _log(self, desc: str, source: str) -> None:
        if self.verbose:
            _LOG.info("%s: initialised from %s", desc, source)


def _draw(desc: str) -> numpy.random.Generator:
    return generator("parameter", str(desc))


def _needs_rank(init: Initializer, desc: str, array: Array) -> None:
    if array.ndim < 2:
        raise ShapeError(
            f"{type(init).__name__}: {str(desc)!r} must have at least 2 axes, but its shape is {array.shape}"
        )
