"""Every operator body on the strict device: the path that CuPy takes, without a card.

A body that mixes host arrays in, reads a value back, or uses a function that CuPy lacks, fails here.
"""

from __future__ import annotations

import pytest

from arrayexec.registry import Op
from tests.gpu.compare import compare, difference, examples
from tests.strict_device import strict

EXAMPLES = list(examples())
# Samplers that reject numbers: the host draws, and must know the parameters.
DRAWN_BY_THE_HOST = {
    f"_sample_{law}" for law in ("gamma", "poisson", "negative_binomial", "generalized_negative_binomial")
}
# An index that is no place is refused: the host looks. Parts of a batch are joined by the numbers of their rows.
SEEN_BY_THE_HOST = {"gather_nd", "scatter_nd", "_scatter_set_nd", "_contrib_index_copy", "_joined_moments"}


@pytest.mark.parametrize(("cls", "example"), [item[1:] for item in EXAMPLES], ids=[item[0] for item in EXAMPLES])
def test_body_runs_on_a_device(cls: type[Op], example: dict) -> None:
    context = strict(0)
    errors = compare(cls, example, context, "float32")
    assert {name: error for name, error in errors.items() if error > 1e-6} == {}
    # bodies stop the host nowhere: it only waits where `compare` fetches results
    if cls.form.name not in DRAWN_BY_THE_HOST | SEEN_BY_THE_HOST:
        assert context.device.count("to_host") == len(errors)
    assert context.device.count("synchronize") == 0


def test_the_measure_sees_differences() -> None:
    import numpy as np

    one = np.array([1.0, np.nan, np.inf])
    assert difference(one, one) == 0
    assert difference(one, np.array([1.5, np.nan, np.inf])) == 0.5
    assert difference(one, np.array([1.0, 0, np.inf])) == np.inf
    assert difference(one, np.array([1.0, np.nan, -np.inf])) == np.inf
    assert difference(one, np.array([np.nan, np.nan, np.inf])) == np.inf
    assert difference(np.array([1e6]), np.array([1e6 + 1])) == 1e-6
    assert difference(one, one.astype(np.float32)) == np.inf
