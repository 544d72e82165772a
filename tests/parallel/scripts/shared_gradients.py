"""Gradients in a shared window: this rank's segment lies in it, and another rank on the host reads the same bytes."""

from __future__ import annotations

import hashlib

import numpy as np

import arrayexec as ax
from arrayexec import sym

comm = ax.comm.init()
net = sym.FullyConnected(sym.Variable("data"), num_hidden=300, name="fc")
context = ax.cpu()
with context.allocator(comm.allocate):
    executor = net.simple_bind(context, grad_req={"fc_weight": "write", "fc_bias": "write"}, data=(4, 20))
rng = np.random.default_rng(comm.rank)
data, head = (rng.standard_normal(shape).astype(np.float32) for shape in ((4, 20), (4, 300)))
executor.forward(True, data=data)
executor.backward(head)
weight = executor.grad_dict["fc_weight"]
assert np.allclose(weight, head.T @ data, atol=1e-5)
comm.barrier()

# The window of the other rank, as this one sees it: its gradients are there without a message.
window = comm._windows[-1]
memory, _ = window.Shared_query((comm.rank + 1) % comm.size)
seen = np.frombuffer(memory, np.float32)
mine = np.frombuffer(window.Shared_query(comm.rank)[0], np.float32)
assert any(np.shares_memory(mine, gradient) for gradient in executor.grad_dict.values() if gradient is not None)
digests = comm.allgather_object(hashlib.sha256(mine.tobytes()).hexdigest())
assert digests[(comm.rank + 1) % comm.size] == hashlib.sha256(seen.tobytes()).hexdigest()
assert len(set(digests)) == comm.size

# Summed in rank order from where the gradients lie, every rank has the same bits.
every = [np.frombuffer(window.Shared_query(rank)[0], np.float32) for rank in range(comm.size)]
total = every[0].copy()
for other in every[1:]:
    total += other
comm.barrier()
expected = mine.copy()
comm.allreduce(expected)
assert np.allclose(total, expected, atol=1e-5)
assert len(set(comm.allgather_object(hashlib.sha256(total.tobytes()).hexdigest()))) == 1
if comm.rank == 0:
    print("gradients in a shared window: right")
