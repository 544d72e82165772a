"""Handwritten digits: a small convolutional net, trained data-parallel. The main job of this repository.

    python examples/train.py                        # one device
    python examples/train.py --devices 2            # two replicas in threads, half the batch each
    mpirun -n 4 python examples/train.py            # four ranks, a quarter of the batch each

The data are the 1,797 images of 8×8 pixels that scikit-learn ships (``load_digits``). Shuffled with seed 0, the first
1,437 train and the last 360 are held out. The global batch is 96 images however many devices or ranks share it.
The last line is for programs: test_accuracy=… samples_per_s=… comm_s=… ranks=…
"""

from __future__ import annotations

import argparse
import time

import numpy as np
from sklearn.datasets import load_digits

import arrayexec as ax
from arrayexec import sym

BATCH, HELD_OUT = 96, 360


def network() -> sym.Symbol:
    """Two convolutions with batch norm, one hidden layer, ten classes."""
    net = sym.Variable("data")
    for number, filters in enumerate((16, 32)):
        net = sym.Convolution(net, kernel=(3, 3), pad=(1, 1), num_filter=filters, no_bias=True, name=f"conv{number}")
        net = sym.BatchNorm(net, fix_gamma=False, name=f"norm{number}")
        net = sym.Activation(net, act_type="relu", name=f"relu{number}")
        net = sym.Pooling(net, kernel=(2, 2), stride=(2, 2), pool_type="max", name=f"pool{number}")
    net = sym.FullyConnected(net, num_hidden=64, name="hidden")
    net = sym.Activation(net, act_type="relu", name="hidden_relu")
    net = sym.Dropout(net, p=0.3, name="drop")
    return sym.SoftmaxOutput(sym.FullyConnected(net, num_hidden=10, name="classes"), name="softmax")


def load() -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Training images (n, 1, 8, 8) in [0, 1] and labels, held-out images and labels."""
    digits = load_digits()
    order = np.random.default_rng(0).permutation(len(digits.target))
    images = digits.images[order, np.newaxis].astype(np.float32) / 16
    labels = digits.target[order].astype(np.float32)
    return images[:-HELD_OUT], labels[:-HELD_OUT], images[-HELD_OUT:], labels[-HELD_OUT:]


def accuracy(net: sym.Symbol, images: np.ndarray, labels: np.ndarray, params: dict, states: dict) -> float:
    """Share of images whose largest output is their label."""
    executor = net.simple_bind(ax.cpu(), grad_req="null", data=images.shape)
    executor.copy_params_from(params, states)
    metric = ax.metric.create("acc")
    metric.update([labels], executor.forward(data=images))
    return metric.get()[1]


def main() -> None:
    """Train, test, print."""
    parser = argparse.ArgumentParser(description="Train a small convolutional net on handwritten digits.")
    parser.add_argument("--devices", type=int, default=1, help="replicas of this process, run by threads")
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--context", default="cpu", help="cpu or gpu")
    options = parser.parse_args()

    comm = ax.comm.init()  # one rank unless started by mpirun
    ax.set_num_threads(1)  # products as small as this net's lose more than they win by a second thread
    ax.random.seed(1)
    images, labels, test_images, test_labels = load()
    net = network()

    # Every rank draws the same global batches and takes its own rows of them.
    train = ax.io.NDArrayIter(images, labels, BATCH, shuffle=True, num_shards=comm.size, shard_id=comm.rank)
    devices = [ax.Context(options.context, i) for i in range(options.devices)]
    manager = ax.executor_manager.DataParallelExecutorManager(net, devices, train, comm=comm, drop_pad=True)

    # Start values; those of rank 0 go to all ranks and devices.
    shapes, _, state_shapes = net.infer_shape(data=(BATCH, *images.shape[1:]))
    shape_of = dict(zip(net.list_arguments(), shapes, strict=True))
    params = {name: np.zeros(shape_of[name], np.float32) for name in manager.param_names}
    states = {n: np.zeros(s, np.float32) for n, s in zip(net.list_auxiliary_states(), state_shapes, strict=True)}
    initializer = ax.init.Xavier(rnd_type="gaussian", factor_type="in", magnitude=2)
    for name, array in {**params, **states}.items():
        initializer(ax.InitDesc(name, net.attr_dict().get(name)), array)
    manager.set_params(params, states)

    steps = options.epochs * train.num_batches
    schedule = ax.lr_scheduler.CosineScheduler(steps, base_lr=0.2, final_lr=0.002, warmup_steps=steps // 20)
    sgd = ax.optimizer.create("sgd", momentum=0.9, wd=1e-4, rescale_grad=1 / BATCH, lr_scheduler=schedule)
    updater = ax.optimizer.get_updater(sgd)

    metric, start = ax.metric.create("acc"), time.perf_counter()
    for epoch in range(options.epochs):
        metric.reset()
        for batch in train:
            manager.load_data_batch(batch)
            manager.forward(is_train=True)
            manager.backward()
            manager.update(updater)
            manager.update_metric(metric, batch.label)
        train.reset()
        if comm.rank == 0:
            print(f"epoch {epoch:2d}  rank 0 train accuracy {metric.get()[1]:.4f}", flush=True)
    seconds = time.perf_counter() - start

    manager.copy_to(params, states)  # states: the mean over devices and ranks
    if comm.rank == 0:
        result = accuracy(net, test_images, test_labels, params, states)
        speed = options.epochs * len(images) / seconds
        print(f"test_accuracy={result:.4f} samples_per_s={speed:.0f} comm_s={comm.seconds:.2f} ranks={comm.size}")


if __name__ == "__main__":
    main()
