"""Gradients that are rows of a table: gathered from all devices and ranks, then applied to the rows that were read."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from ..context import asnumpy, copyto
from .device_net import DeviceNet

Array = Any
Rows = tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]
"""Numbers of rows of a table (n,), and a gradient for each (n, d); a row may be there several times."""


def gather_rows(devices: Sequence[DeviceNet], table: str, comm: Any) -> Rows:
    """What all devices of all ranks read of a table, ranks in their order, devices in theirs; collective."""
    found: list[Rows] = []
    for device in devices:
        for tap in device.net.taps.values():
            if tap.table == table:
                indices = asnumpy(device.blob(tap.indices)).reshape(-1).astype(np.int64)
                found.append((indices, asnumpy(device.blob(f"{tap.name}_grad")).reshape(indices.size, -1)))
    size = devices[0].params[table].shape[0]
    indices = np.clip(np.concatenate([rows for rows, _ in found]), 0, size - 1)
    values = np.concatenate([part for _, part in found])
    if comm is None:
        return indices, values
    counts = comm.allgather_object(len(indices), f"rows of {table}")
    start = sum(counts[: comm.rank])
    every = (np.zeros(sum(counts), np.int64), np.zeros((sum(counts), values.shape[1]), values.dtype))
    for whole, own in zip(every, (indices, values), strict=True):
        whole[start : start + len(own)] = own
        comm.allreduce(whole)  # zeros of all others: exact
    return every


def merged(rows: Rows) -> Rows:
    """Every row once, with the sum of its gradients in their order."""
    numbers, place = np.unique(rows[0], return_inverse=True)
    total = np.zeros((len(numbers), rows[1].shape[1]), rows[1].dtype)
    np.add.at(total, place, rows[1])
    return numbers, total


def rounds(rows: Rows) -> Iterator[Rows]:
    """Parts in which a row is there once at most: first all first occurrences, then all second ones, …"""
    indices, values = rows
    order = np.argsort(indices, kind="stable")
    starts = np.flatnonzero(np.diff(indices[order], prepend=-1))
    turn = np.arange(len(order)) - np.repeat(starts, np.diff(starts, append=len(order)))
    for number in range(int(turn.max(initial=-1)) + 1):
        part = order[turn == number]
        yield indices[part], values[part]


def update_rows(device: DeviceNet, table: str, rows: Rows, optimizer: Any, step: int, rate: float) -> None:
    """Let the optimizer move the rows of a table, one occurrence after another (or their sum: ``sparse_dedup``)."""
    weight = device.params[table]
    states = {name: device.state_of(name, table) for name in optimizer.used_states()}
    xp, context = device.context.xp, device.context
    for indices, values in [merged(rows)] if optimizer.sparse_dedup_aggregator else rounds(rows):
        with context.enter():
            place = xp.asarray(indices)
            held = {name: array[place] for name, array in states.items()}
            moved, grad = weight[place], context.empty(values.shape, weight.dtype, "gradient")
            copyto(grad, values)
            optimizer.apply(context, step, moved, grad, held, rate)
            weight[place] = moved
            for name, array in states.items():
                array[place] = held[name]
