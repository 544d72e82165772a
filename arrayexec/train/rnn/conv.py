"""The cells on images: both affine maps are convolutions, so states keep their height and width."""

from __future__ import annotations

import functools
from typing import Any

from ... import symbol as sym
from ...errors import AttributeValueError
from ...symbol import Symbol
from .base import RNNParams, StateInfo
from .cells import Activation, GatedCell, GRUCell, LSTMCell, RNNCell

Size = tuple[int, ...]
_leaky = functools.partial(sym.LeakyReLU, act_type="leaky", slope=0.2)


class _ConvCell(GatedCell):
    """Base of the cells on images: input (n, channels, …) of ``input_shape``, output and states (n, num_hidden, …).

    ``h2h_kernel`` must be odd, so that the state keeps its size; the ``i2h_…`` attributes are those of `Convolution`.
    Raises AttributeValueError for an even kernel or a layout that does not begin with NC.
    """

    _default_prefix = ""

    def __init__(
        self, input_shape: Size, num_hidden: int, h2h_kernel: Size = (3, 3), h2h_dilate: Size = (1, 1),
        i2h_kernel: Size = (3, 3), i2h_stride: Size = (1, 1), i2h_pad: Size = (1, 1), i2h_dilate: Size = (1, 1),
        i2h_weight_initializer: Any = None, h2h_weight_initializer: Any = None, i2h_bias_initializer: Any = None,
        h2h_bias_initializer: Any = None, activation: Activation = _leaky, prefix: str | None = None,
        params: RNNParams | None = None, conv_layout: str = "NCHW",
    ) -> None:  # fmt: skip
        who = type(self).__name__
        if any(size % 2 == 0 for size in h2h_kernel):
            raise AttributeValueError(f"{who}: h2h_kernel must be odd, but it is {h2h_kernel}")
        if not conv_layout.startswith("NC"):
            raise AttributeValueError(f"{who}: conv_layout must begin with NC, but it is {conv_layout!r}")
        init = {
            "i2h_weight": i2h_weight_initializer, "h2h_weight": h2h_weight_initializer,
            "i2h_bias": i2h_bias_initializer, "h2h_bias": h2h_bias_initializer,
        }  # fmt: skip
        prefix = self._default_prefix if prefix is None else prefix
        GatedCell.__init__(self, num_hidden, prefix, params, activation, init)  # past the plain cell's own
        self._layout = conv_layout
        pad = tuple(d * (k - 1) // 2 for d, k in zip(h2h_dilate, h2h_kernel, strict=True))
        self._maps = {
            "i2h": {"kernel": i2h_kernel, "stride": i2h_stride, "pad": i2h_pad, "dilate": i2h_dilate},
            "h2h": {"kernel": h2h_kernel, "stride": (1,) * len(h2h_kernel), "pad": pad, "dilate": h2h_dilate},
        }
        out = self._affine("i2h", sym.Variable("data"), "i2h").infer_shape_partial(data=input_shape)[1][0]
        self._state = (0, num_hidden, *out[2:])

    @property
    def state_info(self) -> list[StateInfo]:
        """States (n, num_hidden, …)."""
        return [{"shape": self._state, "__layout__": self._layout} for _ in range(self._num_states)]

    def _affine(self, group: str, data: Symbol, name: str) -> Symbol:
        weight, bias = self._params.get(f"{group}_weight"), self._params.get(f"{group}_bias")
        filters = self._num_hidden * len(self._gate_names)
        made = sym.Convolution(
            data, weight, bias, num_filter=filters, layout=self._layout, name=name, **self._maps[group]
        )
        return made  # type: ignore[no-any-return]


class ConvRNNCell(_ConvCell, RNNCell):
    """The plain cell on images."""

    _default_prefix = "ConvRNN_"


class ConvLSTMCell(_ConvCell, LSTMCell):
    """The LSTM cell on images: Shi et al., "Convolutional LSTM network", 2015, without its peepholes."""

    _default_prefix = "ConvLSTM_"


class ConvGRUCell(_ConvCell, GRUCell):
    """The GRU cell on images."""

    _default_prefix = "ConvGRU_"
