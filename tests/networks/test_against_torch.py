"""Known networks at full width in float64: outputs and every gradient are those of PyTorch on the CPU."""

from __future__ import annotations

import numpy as np
import pytest

import arrayexec as ax
from arrayexec import sym
from tests.networks.networks import NETWORKS, arrays

torch = pytest.importorskip("torch", reason="the long tier compares with PyTorch")
from tests.networks.torch_walker import walk  # noqa: E402

pytestmark = [pytest.mark.full, pytest.mark.timeout(900)]
NO_GRADIENT = ("data", "mask", "target_data")


@pytest.mark.parametrize("name", NETWORKS)
def test_outputs_and_gradients(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    network = NETWORKS[name]
    symbol, shapes = network.build(full=True), network.shapes(full=True)
    if name == "ssd":  # as far as the heads: what follows sorts boxes and has no gradient
        inside = symbol.get_internals()
        symbol = sym.Group([inside["multibox_cls_pred_output"], inside["multibox_loc_pred_output"]])
    args, aux = arrays(name, symbol, shapes, full=True)
    wanted = [key for key in args if key not in NO_GRADIENT and "label" not in key and "mask" not in key]
    tensors = {key: torch.from_numpy(value.copy()).requires_grad_(key in wanted) for key, value in {**args, **aux}.items()}
    losses: list = []
    found = walk(symbol.tojson(), tensors, losses)
    random = np.random.default_rng(5)
    heads = [random.normal(size=tuple(out.shape)) for out in found]
    if not losses:
        losses = [(out * torch.from_numpy(head)).sum() for out, head in zip(found, heads, strict=True)]
    sum(losses).backward()

    gradients = {key: np.empty_like(args[key]) for key in wanted}
    states = {key: value.copy() for key, value in aux.items()}
    requests = {key: "write" if key in wanted else "null" for key in args}
    executor = symbol.bind(ax.cpu(), args, gradients, requests, states)
    outputs = executor.forward(is_train=False)
    gaps = [gap(got, want.detach().numpy()) for got, want in zip(outputs, found, strict=True)]
    executor.backward(heads, is_train=False)
    # a gradient that cancels out, such as that of the bias of attention keys, is measured beside the others
    least = 1e-6 * max(float(np.abs(value).max()) for value in gradients.values())
    for key in wanted:
        want = tensors[key].grad
        gaps.append(gap(gradients[key], np.zeros_like(args[key]) if want is None else want.numpy(), least))
    with capsys.disabled():
        print(f"\n  {name}: {len(wanted)} gradients, {sum(v.size for v in gradients.values()):,} values, largest gap {max(gaps):.1e}")
    assert max(gaps) < 1e-7


def gap(got: np.ndarray, want: np.ndarray, least: float = 1e-30) -> float:
    """Largest difference over the largest value, which counts as ``least`` at least."""
    return float(np.abs(got - want).max() / max(np.abs(want).max(), least))
