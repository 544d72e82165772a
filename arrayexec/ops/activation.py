"""Activations."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any, ClassVar, Literal

from ..dims import ANY
from ..errors import format_shape
from ..registry import Op, Sample, Temp, register_op
from ..streams import width
from .bounds import at_least, at_most
from .checks import check_floating, check_numbers
from .error_function import erf, pieces
from .precision import wide
from .softmax import class_view, keep_where, sigmoid


@register_op
class Activation(Op):
    """``out`` = act_type(data), each value alone.

    relu max(x, 0), with slope 0 at 0; sigmoid 1 / (1 + e⁻ˣ); tanh; softrelu log(1 + eˣ); softsign x / (1 + |x|);
    log_sigmoid -log(1 + e⁻ˣ); mish x tanh(log(1 + eˣ)). NaN goes through, in relu too, with slope 1.
    """

    act_type: Literal["relu", "sigmoid", "tanh", "softrelu", "softsign", "log_sigmoid", "mish"]
    inplace: ClassVar[Mapping[str, str]] = {"out": "data", "ddata": "dout"}
    rows = "parallel"
    examples = tuple(
        {"data": Sample((2, 3, 4), low, high), "act_type": kind}
        for kind, low, high in (
            ("relu", 0.1, 2), ("relu", -2, -0.1), ("sigmoid", -4, 4), ("tanh", -2, 2), ("softrelu", -4, 4),
            ("softsign", 0.1, 2), ("softsign", -2, -0.1), ("log_sigmoid", -4, 4), ("mish", -4, 4),
        )
    )  # fmt: skip

    def unused(self) -> Iterable[str]:
        return ("out",) if self.act_type == "mish" else ("data",)

    def infer(self, s: Any) -> None:
        s.out = s.data
        s.data = s.out

    def types(self, t: Any) -> None:
        t.same()
        (check_numbers if self.act_type == "relu" else check_floating)(t, "data")

    def temps(self, s: Any) -> dict[str, Any]:
        kind = "bool" if self.act_type == "relu" else s.dtype("data")
        plain = self.act_type in ("relu", "sigmoid", "tanh")
        return {
            "size": ((0,) if plain else s.data, kind), "slope": (s.data, kind),
            "gates": ((2, *s.data) if self.act_type == "mish" else (0,), kind),
        }  # fmt: skip

    def forward(self, xp: Any, data: Any, out: Any, size: Temp) -> None:
        match self.act_type:
            case "relu":
                at_least(xp, data, 0, out)
            case "sigmoid":
                sigmoid(xp, data, out)
            case "tanh":
                xp.tanh(data, out=out)
            case "softrelu":
                _overshoot(xp, data, size)
                at_least(xp, data, 0, out)
                xp.add(out, size, out=out)
            case "softsign":
                xp.abs(data, out=size)
                xp.add(size, 1, out=size)
                xp.divide(data, size, out=out)
            case "log_sigmoid":
                _overshoot(xp, data, size)
                at_most(xp, data, 0, out)
                xp.subtract(out, size, out=out)
            case "mish":
                _soft_gate(xp, data, size)
                xp.multiply(data, size, out=out)

    def backward(self, xp: Any, dout: Any, data: Any, out: Any, ddata: Any, slope: Temp, gates: Temp) -> None:
        match self.act_type:
            case "relu":
                xp.not_equal(out, 0, out=slope)  # out is above 0, or NaN, which passes
                keep_where(xp, dout, slope, ddata)
                return
            case "sigmoid":  # y (1 - y)
                xp.subtract(1, out, out=slope)
                xp.multiply(slope, out, out=slope)
            case "tanh":  # 1 - y²
                xp.multiply(out, out, out=slope)
                xp.subtract(1, slope, out=slope)
            case "softrelu":  # 1 - e⁻ʸ
                xp.negative(out, out=slope)
                xp.expm1(slope, out=slope)
                xp.negative(slope, out=slope)
            case "softsign":  # (1 - |y|)²
                xp.abs(out, out=slope)
                xp.subtract(1, slope, out=slope)
                xp.multiply(slope, slope, out=slope)
            case "log_sigmoid":  # 1 - eʸ
                xp.expm1(out, out=slope)
                xp.negative(slope, out=slope)
            case "mish":  # t + x σ(x) (1 - t²)
                _soft_gate(xp, data, slope)
                xp.multiply(slope, slope, out=gates[0])
                xp.subtract(1, gates[0], out=gates[0])
                sigmoid(xp, data, gates[1])
                xp.multiply(gates[0], gates[1], out=gates[0])
                xp.multiply(gates[0], data, out=gates[0])
                xp.add(slope, gates[0], out=slope)
        xp.multiply(dout, slope, out=ddata)

    def gradient(self, sym: Any, dout: Any, data: Any, out: Any) -> Mapping[str, Any]:
        match self.act_type:
            case "relu":
                slope = out != 0
            case "sigmoid":
                slope = (1 - out) * out
            case "tanh":
                slope = 1 - sym.square(out)
            case "softrelu":
                slope = -sym.expm1(-out)
            case "softsign":
                slope = sym.square(1 - abs(out))
            case "log_sigmoid":
                slope = -sym.expm1(out)
            case "mish":
                gate = sym.tanh(sym.Activation(data, act_type="softrelu"))
                slope = gate + data * sym.sigmoid(data) * (1 - sym.square(gate))
        return {"data": dout * slope}


def _overshoot(xp: Any, data: Any, out: Any) -> None:
    """``out`` = log(1 + e^-|data|): what softrelu is above max(data, 0)."""
    xp.abs(data, out=out)
    xp.negative(out, out=out)
    xp.exp(out, out=out)
    xp.log1p(out, out=out)


def _soft_gate(xp: Any, data: Any, out: Any) -> None:
    """``out`` = tanh(log(1 + e^data))."""
    xp.logaddexp(data, 0, out=out)
    xp.tanh(out, out=out)


_SELU_SCALE, _SELU_ALPHA = 1.0507009873554804934193349852946, 1.6732632423543772848170429916717


@register_op
class LeakyReLU(Op):
    """``out`` = data where it is above 0, below it what act_type says; gelu is x Φ(x) everywhere.

    leaky slope · x; elu slope · (eˣ - 1); selu λ α (eˣ - 1), above 0 λ x, with λ = 1.0507, α = 1.6733; prelu gamma · x,
    gamma (c,) one a channel (axis 1) or (1,); rrelu r · x with r uniform in [lower_bound, upper_bound) in training,
    the middle otherwise. The slope at 0 is the one below 0; NaN stays NaN. As in MXNet, selu's gradient below 0 is λ
    (out + α): the derivative would be out + λ α.
    """

    act_type: Literal["leaky", "elu", "prelu", "rrelu", "selu", "gelu"] = "leaky"
    slope: float = 0.25
    lower_bound: float = 0.125
    upper_bound: float = 0.334
    examples = tuple(
        {"data": Sample((2, 3, 4), low, high), **more}
        for more in (
            {}, {"slope": 2.0}, {"slope": -0.5}, {"act_type": "elu", "slope": 0.7}, {"act_type": "elu", "slope": -0.7},
            {"act_type": "selu"}, {"act_type": "gelu"}, {"act_type": "prelu", "gamma": Sample((3,), 0.1, 0.9)},
            {"act_type": "rrelu"}, {"act_type": "rrelu", "lower_bound": 0.3, "upper_bound": 0.5},
        )
        for low, high in ((-2, -0.1), (0.1, 2))
        if low > 0 or more.get("act_type") != "selu"
    )  # fmt: skip

    def inputs(self) -> tuple[str, ...]:
        return ("data", "gamma") if self.act_type == "prelu" else ("data",)

    def hidden(self) -> tuple[str, ...]:
        return ("mask",) if self.act_type == "rrelu" else ()

    @property
    def inplace(self) -> Mapping[str, str]:  # type: ignore[override]
        return {} if self.act_type == "gelu" else {"out": "data", "ddata": "dout"}

    @property
    def rows(self) -> str:  # type: ignore[override]
        return "sum" if self.act_type == "prelu" else "parallel"

    def keeps(self, want: frozenset[str]) -> Iterable[str]:
        if self.act_type == "rrelu":
            return ("dout", "mask")
        if self.act_type == "prelu":
            return ("dout", "data", "gamma") if "data" in want else ("dout", "data")
        turned = self.slope < 0 and self.act_type in ("leaky", "elu")  # out no longer tells the sign of data
        values = ("data",) if self.act_type == "gelu" else ("data", "out") if turned else ("out",)
        return ("dout", *values)

    def variable_attributes(self, argument: str) -> Mapping[str, str]:
        return {"__init__": '["Constant", {"value": 0.25}]'} if argument == "gamma" else {}

    def infer(self, s: Any) -> None:
        s.out = s.data
        s.data = s.mask = s.out
        if self.act_type != "prelu" or s.data is ANY:
            return
        channels = s.data[1] if len(s.data) > 1 else 1
        if s.gamma is ANY:
            s.gamma = (channels,)
        elif len(s.gamma) != 1:
            s.fail("gamma", f"must have one dim, but it is {format_shape(s.gamma)}")
        elif s.gamma[0] != 1:
            s.gamma = (channels,)

    def types(self, t: Any) -> None:
        t.same()
        check_floating(t, "data")

    def temps(self, s: Any) -> dict[str, Any]:
        kind, random = s.dtype("data"), self.act_type == "rrelu"
        noise = (s.data[0], width(math.prod(s.data[1:]))) if random else (0, 0)
        gelu = s.data if self.act_type == "gelu" else (0,)
        exact = wide(kind) if self.act_type == "gelu" else kind  # erf loses two bits of 16 on the way
        return {
            "below": (s.data, exact), "above": (s.data, "bool"), "noise": (noise, "float32"),
            "root": (gelu, exact), "scratch": (gelu, exact), "spare": (gelu, exact),
            "terms": (s.data if self.act_type == "prelu" and wide(kind) != kind else (0,), wide(kind)),
        }  # fmt: skip

    def forward(
        self, xp: Any, is_train: bool, rng: Any, data: Any, gamma: Any, out: Any, mask: Any, below: Temp, above: Temp,
        noise: Temp, root: Temp, scratch: Temp, spare: Temp,
    ) -> None:  # fmt: skip
        match self.act_type:
            case "gelu":
                for x, y, part, *room in pieces(xp, (data, out), (below, root, spare, scratch)):
                    xp.multiply(x, math.sqrt(0.5), out=room[0])
                    erf(xp, room[0], part, *room[1:])
                    xp.add(part, 1, out=part)
                    xp.multiply(part, x, out=part)
                    xp.multiply(part, 0.5, out=y, casting="same_kind")
                return
            case "leaky":  # the line of slope lies above or below the diagonal on the right side of 0
                xp.multiply(data, self.slope, out=below)
                (xp.maximum if self.slope <= 1 else xp.minimum)(data, below, out=out)
                return
            case "prelu":
                at_most(xp, data, 0, below)
                xp.multiply(below, _channels(gamma, data), out=below)
            case "rrelu":
                self._draw(xp, rng if is_train else None, data, mask, above, noise)
                xp.multiply(data, mask, out=out)
                return
            case _:
                at_most(xp, data, 0, below)
                xp.expm1(below, out=below)
                xp.multiply(below, _SELU_ALPHA if self.act_type == "selu" else self.slope, out=below)
        at_least(xp, data, 0, out)
        xp.add(out, below, out=out)
        if self.act_type == "selu":
            xp.multiply(out, _SELU_SCALE, out=out)

    def _draw(self, xp: Any, rng: Any, data: Any, mask: Any, above: Any, noise: Any) -> None:
        """``mask`` = the slope of every value: 1 above 0, else drawn (or the middle without ``rng``)."""
        if rng is None:
            mask.fill((self.lower_bound + self.upper_bound) / 2)
        else:
            rng.uniform(noise)
            drawn = mask.reshape(noise.shape[0], math.prod(mask.shape[1:]))
            xp.multiply(noise[:, : drawn.shape[1]], self.upper_bound - self.lower_bound, out=drawn)
            xp.add(mask, self.lower_bound, out=mask)
        self._combine(xp, data, mask, above)

    def _combine(self, xp: Any, sign: Any, slope: Any, above: Any) -> None:
        """Set ``slope`` to 1 where ``sign`` is above 0, exactly; ``above`` is scratch."""
        xp.greater(sign, 0, out=above)
        xp.logical_not(above, out=above)
        keep_where(xp, slope, above, slope)
        xp.logical_not(above, out=above)
        xp.add(slope, above, out=slope)

    def backward(
        self, xp: Any, dout: Any, data: Any, out: Any, gamma: Any, mask: Any, ddata: Any, dgamma: Any, below: Temp,
        above: Temp, root: Temp, scratch: Temp, spare: Temp, terms: Temp,
    ) -> None:  # fmt: skip
        if dgamma is not None:
            at_most(xp, data, 0, below)
            terms = terms if terms.size else below  # 16-bit terms of the sum are not rounded
            xp.multiply(below, dout, out=terms, dtype=terms.dtype)
            rows, channels, places = class_view(data.shape, dgamma.size > 1)
            parts = terms.reshape((rows, channels, places) if dgamma.size > 1 else (rows * channels, 1, places))
            dgamma[...] = xp.sum(parts, axis=(0, 2), dtype=terms.dtype)
        if ddata is None:
            return
        match self.act_type:
            case "rrelu":
                xp.multiply(dout, mask, out=ddata)
                return
            case "gelu":
                for x, arriving, leaving, *room in pieces(xp, (data, dout, ddata), (below, root, scratch, spare)):
                    _gelu_slope(xp, x, *room)
                    xp.multiply(arriving, room[0], out=leaving, casting="same_kind")
                return
            case "leaky":
                below.fill(self.slope)
                self._combine(xp, data if self.slope < 0 else out, below, above)
            case "prelu":
                xp.copyto(below, _channels(gamma, data))
                self._combine(xp, data, below, above)
            case "elu":
                xp.add(out, self.slope, out=below)
                self._combine(xp, out if self.slope >= 0 else data, below, above)
            case "selu":
                xp.add(out, _SELU_ALPHA, out=below)
                self._combine(xp, out, below, above)
                xp.multiply(below, _SELU_SCALE, out=below)
        xp.multiply(dout, below, out=ddata)

    def gradient(self, sym: Any, dout: Any, data: Any, out: Any) -> Mapping[str, Any] | None:
        match self.act_type:
            case "leaky":
                slope = (data > 0) * (1 - self.slope) + self.slope
            case "elu":
                slope = (data > 0) + (data <= 0) * (out + self.slope)
            case "gelu":
                density = sym.exp(sym.square(data) * -0.5) * math.sqrt(0.5 / math.pi)
                slope = (sym.erf(data * math.sqrt(0.5)) + 1) * 0.5 + data * density
            case _:
                return None
        return {"data": dout * slope}


def _gelu_slope(xp: Any, data: Any, slope: Any, root: Any, scratch: Any, spare: Any) -> None:
    """``slope`` = Φ(x) + x φ(x)."""
    xp.multiply(data, math.sqrt(0.5), out=root)
    erf(xp, root, slope, spare, scratch)
    xp.add(slope, 1, out=slope)
    xp.multiply(root, root, out=scratch)
    xp.negative(scratch, out=scratch)
    xp.exp(scratch, out=scratch)
    xp.multiply(scratch, data, out=scratch)
    xp.multiply(scratch, math.sqrt(2 / math.pi), out=scratch)
    xp.add(slope, scratch, out=slope)
    xp.multiply(slope, 0.5, out=slope)


def _channels(gamma: Any, data: Any) -> Any:
    """``gamma`` in the shape in which it multiplies data (n, c, …)."""
    return gamma.reshape(1, -1, *(1,) * (data.ndim - 2)) if data.ndim > 1 else gamma
