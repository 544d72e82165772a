"""Known networks with random weights: what the engine computes is what a plain walk over the symbol's JSON computes."""

from __future__ import annotations

import numpy as np
import pytest

import arrayexec as ax
from tests.networks.networks import NETWORKS, arrays
from tests.networks.walker import walk


@pytest.mark.parametrize("name", NETWORKS)
def test_outputs(name: str) -> None:
    network = NETWORKS[name]
    symbol, shapes = network.build(), network.shapes()
    args, aux = arrays(name, symbol, shapes)
    text = symbol.tojson()
    executor = symbol.bind(ax.cpu(), args, grad_req="null", aux_states={key: value.copy() for key, value in aux.items()})
    for is_train in (False, True):
        if is_train and "Dropout" in text:
            continue
        wanted = walk(text, {**args, **aux}, is_train)
        for title, found, want in zip(symbol.list_outputs(), executor.forward(is_train=is_train), wanted, strict=True):
            assert np.isfinite(want).all() and np.ptp(want) > 0, f"{title} says nothing"
            np.testing.assert_allclose(found, want, rtol=1e-8, atol=1e-9 * np.abs(want).max(), err_msg=title)
