"""The threads of NumPy's BLAS: set, limited, and found among those of other packages."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from arrayexec import threads
from arrayexec.errors import ArgumentError


def test_cores() -> None:
    assert 1 <= threads.cores() <= (os.cpu_count() or 1)


@pytest.mark.skipif(threads.blas_threads() is None, reason="NumPy's BLAS here is no OpenBLAS whose threads can be set")
def test_limited_inside_only() -> None:
    before = threads.blas_threads()
    with threads.limited_blas(1) as limited:
        assert limited
        assert threads.blas_threads() == 1
    assert threads.blas_threads() == before


def test_the_library_is_numpys_own(subprocess_env: dict[str, str]) -> None:
    """SciPy brings an OpenBLAS of its own, loaded first here; what is set is what NumPy's products use."""
    pytest.importorskip("scipy", reason="SciPy is not installed")
    controller = pytest.importorskip("threadpoolctl", reason="threadpoolctl is not installed")
    assert controller
    code = (
        "import scipy.linalg, scipy.special, numpy, threadpoolctl\n"
        "from arrayexec import threads\n"
        "assert threads.set_num_threads(1)\n"
        "found = {i['filepath']: i['num_threads'] for i in threadpoolctl.threadpool_info() if i['user_api'] == 'blas'}\n"
        "assert [n for path, n in found.items() if 'numpy.libs' in path] == [1], found\n"
    )
    done = subprocess.run([sys.executable, "-c", code], env=subprocess_env, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("count", [0, -1, 1.5, True, "2"])
def test_counts_that_are_none(count: object) -> None:
    with pytest.raises(ArgumentError) as caught:
        threads.set_num_threads(count)  # type: ignore[arg-type]
    assert str(caught.value) == (
        f"set_num_threads: the count must be a whole number of at least 1, but it is {count!r}"
    )


@pytest.mark.skipif(threads.cores() < 2 or threads.blas_threads() is None, reason="needs two cores and OpenBLAS")
def test_small_products_use_one_thread_unless_somebody_has_chosen(subprocess_env) -> None:
    program = """
import arrayexec as ax, numpy
from arrayexec import threads
seen = []
@ax.operator.register("seen")
class Seen(ax.operator.CustomOpProp):
    def create_operator(self, ctx, shapes, dtypes):
        class Op(ax.operator.CustomOp):
            def forward(self, is_train, req, in_data, out_data, aux):
                seen.append(threads.blas_threads())
                self.assign(out_data[0], req[0], in_data[0])
        return Op()
def run(rows):
    net = ax.sym.Custom(ax.sym.FullyConnected(ax.sym.Variable("data"), num_hidden=512), op_type="seen")
    net.simple_bind(ax.cpu(), grad_req="null", data=(rows, 512)).forward()
threads.share_threads(2)
run(8), run(1024)
def train(filters, size):
    net = ax.sym.Convolution(ax.sym.Variable("data"), num_filter=filters, kernel=(3, 3), name="conv")
    net = ax.sym.Pooling(ax.sym.Custom(net, op_type="seen"), global_pool=True, kernel=(1, 1), pool_type="max")
    net.simple_bind(ax.cpu(), data=(16, 8, size, size)).forward(is_train=True)
train(16, 64), train(256, 64)
assert threads.blas_threads() == 2
ax.set_num_threads(2)
run(8)
print(seen)
"""
    found = subprocess.run([sys.executable, "-c", program], env=subprocess_env, capture_output=True, text=True, timeout=60)
    assert found.stdout == "[1, 2, 1, 2, 2]\n", found.stderr
