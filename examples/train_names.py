"""A character model of surnames: an LSTM, unrolled to as many steps as a name is long, trained data-parallel.

    python examples/train_names.py                  # 120 seconds, two replicas in threads, half of every batch each
    python examples/train_names.py --seconds 30     # fewer
    mpirun -n 4 python examples/train_names.py      # four ranks, a quarter of every batch each

The data are the 88,799 surnames of the US census of 1990 (package ``names``); a tenth is held out. Names of one length
make a bucket with a graph of its own; all graphs have the same parameters. The bar is what counting reaches, the n-gram
of order 4 in ``ngram.py``. The last line is for programs: nats_per_char=… ngram4=… seconds=…
"""

from __future__ import annotations

import argparse
import math
import time

import ngram
import numpy as np

import arrayexec as ax
from arrayexec import sym

BATCH, HIDDEN, RATE = 128, 128, 0.01
CLASSES = len(ngram.CHARACTERS)  # number 0 ends a name, and begins it
PADDING = CLASSES  # fills up what is shorter than its bucket; never asked for
LENGTHS = [5, *range(6, 12), 15]  # of a name with both its ends


def network(length: int) -> sym.Symbol:
    """Characters (n, length) in; for every one of them the probabilities of the next."""
    data, label = sym.Variable("data"), sym.Variable("softmax_label")
    inputs = sym.Embedding(data, input_dim=CLASSES + 1, output_dim=32, name="embed")
    cell = ax.rnn.SequentialRNNCell()
    cell.add(ax.rnn.LSTMCell(HIDDEN))
    cell.add(ax.rnn.DropoutCell(0.2))
    outputs, _ = cell.unroll(length, inputs, merge_outputs=True)
    outputs = sym.Reshape(outputs, shape=(-1, HIDDEN))
    scores = sym.FullyConnected(outputs, num_hidden=CLASSES, name="scores")
    return sym.SoftmaxOutput(
        scores, sym.Reshape(label, shape=(-1,)), use_ignore=True, ignore_label=PADDING, name="softmax"
    )


def batches(names: list[str], comm: ax.comm.Communicator, shuffle: bool) -> ax.io.BucketSentenceIter:
    """Names as numbers, by length; the label of a character is the one after it."""
    sentences = [[ngram.CHARACTERS.index(c) for c in ngram.END + name + ngram.END] for name in names]
    return ax.io.BucketSentenceIter(
        sentences, BATCH, LENGTHS, invalid_label=PADDING, last_batch="pad", shuffle=shuffle,
        num_shards=comm.size, shard_id=comm.rank,
    )  # fmt: skip


def start_values(net: sym.Symbol, length: int) -> dict[str, np.ndarray]:
    """First values of all parameters; an LSTM's cell brings its own for the forget gate."""
    inputs = {"data": (BATCH, length), "softmax_label": (BATCH, length)}
    shapes, initializer = net.infer_shape(**inputs)[0], ax.init.Xavier()
    params = {n: np.zeros(s, np.float32) for n, s in zip(net.list_arguments(), shapes, strict=True) if n not in inputs}
    for name, array in params.items():
        initializer(ax.InitDesc(name, net.attr_dict().get(name)), array)
    return params


def main() -> None:
    """Train until the time is over, test, print."""
    parser = argparse.ArgumentParser(description="Train a character LSTM on surnames.")
    parser.add_argument("--seconds", type=float, default=120, help="time to train, without the test at the end")
    options = parser.parse_args()

    start = time.perf_counter()
    comm = ax.comm.init()  # one rank unless started by mpirun
    ax.random.seed(1)
    train_names, test_names = ngram.load()
    train, test = batches(train_names, comm, shuffle=True), batches(test_names, comm, shuffle=False)

    # One executor a bucket and device, made when the first batch of that length comes; memory is that of the longest.
    devices = [ax.cpu(i) for i in range(2 if comm.size == 1 else 1)]
    manager = ax.executor_manager.DataParallelExecutorManager(None, devices, train, sym_gen=network, comm=comm)
    manager.set_params(start_values(manager.symbol, train.default_bucket_key))
    adam = ax.optimizer.create("adam", learning_rate=RATE, rescale_grad=1 / BATCH)
    updater = ax.optimizer.get_updater(adam)
    metric = ax.metric.create("perplexity", ignore_label=PADDING)

    progress, step = np.zeros(1), 0  # progress: the share of the time that is over, by the clock of rank 0
    while progress[0] < 1:
        for batch in train:
            if step % 20 == 0:
                progress[0] = (time.perf_counter() - start) / options.seconds
                comm.broadcast(progress)
                if progress[0] >= 1:
                    break
                adam.lr = RATE * (0.5 + 0.5 * math.cos(math.pi * progress[0]))
            manager.load_data_batch(batch)
            manager.forward(is_train=True)
            manager.backward()
            manager.update(updater)
            manager.update_metric(metric, batch.label)
            step += 1
            if step % 500 == 0 and comm.rank == 0:
                print(f"step {step:5d}  {math.log(metric.get()[1]):.3f} nats per character", flush=True)
                metric.reset()
        train.reset()

    # Every rank tests its rows; then the sums are summed.
    metric.reset()
    for batch in test:
        manager.load_data_batch(batch)
        manager.forward()
        manager.update_metric(metric, batch.label)
    sums = np.array([metric.sum_metric, metric.num_inst], np.float64)
    comm.allreduce(sums)
    if comm.rank == 0:
        counted = ngram.NGram(train_names, 4).nats_per_char(test_names)
        seconds = time.perf_counter() - start
        print(f"nats_per_char={sums[0] / sums[1]:.3f} ngram4={counted:.3f} seconds={seconds:.0f}")


if __name__ == "__main__":
    main()
