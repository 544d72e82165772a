"""Contexts: values, memory by role, copies."""

from __future__ import annotations

import pickle
import threading

import numpy as np
import pytest

from arrayexec import context as ctx_module
from arrayexec.context import (
    ROLES,
    Context,
    add_to,
    asnumpy,
    context_of,
    copyto,
    cpu,
    cpu_pinned,
    current_context,
    gpu,
    namespace,
    num_gpus,
    register_device,
)
from arrayexec.errors import (
    ArrayExecError,
    BackendUnavailableError,
    ContextError,
    ShapeError,
    TypeInferenceError,
)


def test_context_is_a_value() -> None:
    assert cpu() == cpu(0) == Context("cpu") == Context(cpu(0))
    assert cpu(0) != cpu(1)
    assert cpu(0) != gpu(0)
    assert cpu(0) != "cpu(0)"
    assert len({cpu(0), Context("cpu", 0), cpu(1), gpu(1), cpu_pinned(1)}) == 4
    assert (str(cpu(3)), repr(gpu(1)), str(cpu_pinned())) == ("cpu(3)", "gpu(1)", "cpu_pinned(0)")
    assert Context(gpu(2)).device_type == "gpu"
    assert Context(gpu(2)).device_id == 2
    assert cpu(np.int64(2)) == cpu(2)
    assert pickle.loads(pickle.dumps(cpu(5))) == cpu(5)
    assert [one.device_typeid for one in (cpu(1), gpu(0), cpu_pinned(2))] == [1, 2, 3]


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("cpo",), "Context: the device type must be a registered one, but it is 'cpo'; did you mean 'cpu'?"),
        (("cpu", -1), "Context: the device number must be an integer >= 0, but it is -1"),
        (("cpu", 1.0), "Context: the device number must be an integer >= 0, but it is 1.0"),
        (("cpu", True), "Context: the device number must be an integer >= 0, but it is True"),
    ],
)
def test_wrong_context(arguments: tuple[object, ...], text: str) -> None:
    with pytest.raises(ContextError) as caught:
        Context(*arguments)  # type: ignore[arg-type]
    assert str(caught.value) == text
    assert isinstance(caught.value, ArrayExecError)
    assert isinstance(caught.value, ValueError)


def test_current_context_is_a_stack_per_thread() -> None:
    seen = []
    assert current_context() == cpu(0)
    with cpu(1), gpu(2):
        assert current_context() == gpu(2)
        thread = threading.Thread(target=lambda: seen.append(current_context()))
        thread.start()
        thread.join()
    with cpu(3):
        with pytest.raises(KeyError), cpu(4):
            raise KeyError
        assert current_context() == cpu(3)
    assert current_context() == cpu(0)
    assert seen == [cpu(0)]


@pytest.mark.parametrize("nbytes", [0, 1, 63, 64, 65, 1000])
def test_memory_is_exact_and_aligned(nbytes: int) -> None:
    for role in ROLES:
        block = cpu().allocate(nbytes, role, zero=True)
        assert (block.dtype, block.shape) == (np.uint8, (nbytes,))
        assert nbytes == 0 or block.ctypes.data % 64 == 0
        assert not block.any()


def test_views_share_the_buffer() -> None:
    buffer = cpu().allocate(256, "arena", zero=True)
    first = cpu().view(buffer, 0, (2, 3), np.float32)
    second = cpu().view(buffer, 64, (4,), "int16")
    first[:] = 1.5
    second[:] = 7
    assert buffer[:24].view(np.float32).tolist() == [1.5] * 6
    assert buffer[64:72].view(np.int16).tolist() == [7] * 4
    assert not buffer[72:].any()
    assert first.flags.c_contiguous
    assert cpu().view(buffer, 256, (0, 5), np.float64).shape == (0, 5)
    with pytest.raises(ContextError) as caught:
        cpu().view(buffer, 200, (4, 4), np.float32)
    assert str(caught.value) == "cpu(0): float32 (4, 4) at byte 200 needs a buffer of 264 bytes, but it has 256"


def test_empty_and_zeros() -> None:
    assert cpu(1).empty((2, 5), np.float16, "output").shape == (2, 5)
    zeros = cpu(1).zeros((3,), np.int64, "aux")
    assert zeros.dtype == np.int64
    assert zeros.tolist() == [0, 0, 0]


def test_wrong_role() -> None:
    with pytest.raises(ContextError) as caught:
        cpu().allocate(8, "arean")
    expected = "cpu(0): memory must be asked for by a known role, but it is 'arean'; did you mean 'arena'?"
    assert str(caught.value) == expected


def test_allocator_takes_the_roles_it_wants() -> None:
    segment = np.full(256, 9, np.uint8)
    segment = segment[-segment.ctypes.data % 64 :]
    asked: list[tuple[int, str]] = []

    def allocate(nbytes: int, role: str) -> np.ndarray | None:
        asked.append((nbytes, role))
        return segment[:nbytes] if role == "gradient" else None

    with cpu(7).allocator(allocate):
        gradient = Context("cpu", 7).zeros((4,), np.float32, "gradient")
        other = cpu(7).empty((4,), np.float32, "arena")
        foreign = cpu(8).zeros((4,), np.float32, "gradient")
    after = cpu(7).zeros((4,), np.float32, "gradient")
    assert asked == [(16, "gradient"), (16, "arena")]
    assert np.shares_memory(gradient, segment)
    assert gradient.tolist() == [0] * 4
    assert not any(np.shares_memory(array, segment) for array in (other, foreign, after))


def test_allocator_that_breaks_its_promise() -> None:
    block = np.zeros(200, np.uint8)
    block = block[-block.ctypes.data % 64 :]
    for wrong, found in ((block[:8], "uint8 (8,)"), (block[1:17], f"address {block.ctypes.data + 1:#x}")):
        with cpu(7).allocator(lambda nbytes, role, wrong=wrong: wrong), pytest.raises(ContextError) as caught:
            cpu(7).allocate(16, "state")
        assert str(caught.value) == (
            "cpu(7): the allocator must give a contiguous uint8 array (16,) at a multiple of 64 bytes "
            f"for role 'state', but gave {found}"
        )
    former = cpu(7).set_allocator(lambda nbytes, role: [0] * nbytes)
    assert former is None
    with pytest.raises(ContextError, match="a list, which is not an array of cpu"):
        cpu(7).allocate(16, "state")
    cpu(7).set_allocator(None)


def test_copyto_casts_and_checks() -> None:
    target = np.zeros((2, 2), np.float32)
    copyto(target, [[1, 2], [3, 4]])
    assert target.tolist() == [[1, 2], [3, 4]]
    copyto(target, np.array([[5, 6], [7, 8]], np.int64).T)
    assert target.tolist() == [[5, 7], [6, 8]]
    integers = np.zeros(2, np.int32)
    copyto(integers, np.array([1.9, -1.9]))
    assert integers.tolist() == [1, -1]
    one = np.zeros(())
    copyto(one, 3)
    assert one == 3


def test_add_to_adds_in_place() -> None:
    total, part = np.array([1, 2], np.float32), np.array([0.5, 1], np.float32)
    add_to(total, part)
    assert total.tolist() == [1.5, 3] and part.tolist() == [0.5, 1]


def test_copyto_refuses() -> None:
    target = np.zeros((2, 2), np.float32)
    cases = [
        (target, [1, 2], ShapeError, "copyto: the source must have the shape (2, 2), but it has (2,)"),
        (target, 1.0, ShapeError, "copyto: the source must have the shape (2, 2), but it has ()"),
        (target, [[1], [1, 2]], ShapeError, "copyto: the rows of the nested sequence must have equal lengths"),
        (target, [["a", "b"]] * 2, TypeInferenceError, "copyto: the source must hold real numbers, but its type is <U1"),
        (target, "text", ContextError, "a str is not an array of any known device"),
        ([0], [1], ContextError, "a list is not an array of any known device"),
    ]
    for dst, src, kind, text in cases:
        with pytest.raises(kind) as caught:
            copyto(dst, src)
        assert str(caught.value).startswith(text)
    target.flags.writeable = False
    with pytest.raises(ContextError) as caught:
        copyto(target, target.copy())
    assert str(caught.value) == "copyto: the destination float32 (2, 2) is read-only"
    assert not target.any()


def test_subclasses_of_numpy_come_as_plain_arrays() -> None:
    odd = np.array([[1.0, 2.0]]).view(np.matrix)  # whose product is not elementwise
    assert type(asnumpy(odd)) is np.ndarray and np.shares_memory(asnumpy(odd), odd)
    target = np.zeros((1, 2))
    copyto(target, odd)
    assert target.tolist() == [[1, 2]]


def test_asnumpy_and_namespace() -> None:
    array = np.arange(3)
    assert asnumpy(array) is array
    assert asnumpy([1, 2]).tolist() == [1, 2]
    assert asnumpy(np.float32(2)).dtype == np.float32
    assert namespace(array) is np
    assert context_of(array) == cpu(0)
    with pytest.raises(ContextError):
        asnumpy(object())


def test_gpu_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ctx_module, "_devices", {})
    monkeypatch.setenv("ARRAYEXEC_DEVICE", "cpu")
    assert num_gpus() == 0
    device = gpu(1)  # a description costs nothing and needs nothing
    for use in (
        lambda: device.zeros((2,), np.float32, "arena"),
        lambda: device.xp,
        lambda: device.enter(),
        lambda: device.set_allocator(None),
    ):
        with pytest.raises(BackendUnavailableError) as caught:
            use()
        assert str(caught.value) == (
            "gpu(1) cannot be used: GPUs are switched off by ARRAYEXEC_DEVICE=cpu\n"
            "  needed:  CuPy 14 and an NVIDIA driver that opens the device\n"
            '  install: pip install "arrayexec[cuda12]" for a CUDA 12 driver, pip install "arrayexec[cuda13]" '
            "for CUDA 13\n"
            "  or run on the processor: arrayexec.cpu()"
        )


def test_gpu_number_past_the_last(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ARRAYEXEC_DEVICE", raising=False)
    monkeypatch.setattr(ctx_module, "_devices", {})
    monkeypatch.setattr(ctx_module, "_probe_gpus", lambda: ((0, 1), ""))
    assert num_gpus() == 2
    with pytest.raises(BackendUnavailableError) as caught:
        gpu(2).synchronize()
    first = str(caught.value).partition("\n")[0]
    assert first == "gpu(2) cannot be used: the devices that can be used here are gpu(0), gpu(1)"


def test_device_type_is_registered_once() -> None:
    with pytest.raises(ContextError) as caught:
        register_device("cpu", ctx_module.Device)  # type: ignore[arg-type]
    assert str(caught.value) == "register_device: the device type 'cpu' exists already"
