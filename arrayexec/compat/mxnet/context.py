"""``mx.context``: where arrays lie."""

from __future__ import annotations

from ...context import Context, cpu, cpu_pinned, current_context, gpu, num_gpus

__all__ = ["Context", "cpu", "cpu_pinned", "current_context", "gpu", "gpu_memory_info", "num_gpus"]


def gpu_memory_info(device_id: int = 0) -> tuple[int, int]:
    """Free and total bytes of a GPU. Raises BackendUnavailableError where it cannot be used."""
    with gpu(device_id).enter():
        free, total = gpu(device_id).xp.cuda.runtime.memGetInfo()
    return int(free), int(total)
