"""What managers refuse under ranks: each case on all ranks; rank 0 prints what each rank was told, as JSON."""

import json
import sys
from pathlib import Path

import numpy

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

import arrayexec as ax
from arrayexec import comm
from arrayexec.parallel.executor_manager import DataParallelExecutorManager
from arrayexec.train.io import DataBatch
from tests.parallel.networks import Described, lstm, mlp

RANKS = comm.init()
ODD = RANKS.rank == 1
FLAT = {"data": (4, 6)}, {"softmax_label": (4,)}
WORDS = {"data": (4, 5)}, {"softmax_label": (4, 5)}


def manager(symbol=None, described=None, **options):
    return DataParallelExecutorManager(symbol, ax.cpu(), described or Described(*FLAT), comm=RANKS, **options)


def bucketed(build, **options):
    described = Described(*WORDS, default_bucket_key=5)
    return manager(None, described, sym_gen=build, bucket_keys=options.pop("bucket_keys", [3, 5]), **options)


def batch(*shape, key=None):
    return DataBatch([numpy.zeros(shape, numpy.float32)], [numpy.zeros(shape, numpy.float32)], bucket_key=key)


def unannounced():
    bucketed(lstm(1, 4, 7)).load_data_batch(batch(4, 4, key=4))


def reduced():
    one = manager(mlp(), grad_req="add")
    one.load_data_batch(DataBatch([numpy.zeros((4, 6))], [numpy.zeros(4)]))
    one.forward(is_train=True)
    one.backward()
    one.update(lambda name, gradient, parameter: None)
    one.backward()


def optimizer():
    one = manager(mlp())
    one.load_data_batch(DataBatch([numpy.zeros((4, 6))], [numpy.zeros(4)]))
    one.forward(is_train=True)
    one.backward()
    rate = 0.2 if ODD else 0.1
    one.update(ax.optimizer.get_updater(ax.optimizer.create("sgd", learning_rate=rate)))


def seed():
    ax.random.seed(RANKS.rank)
    try:
        manager(mlp(dropout=0.5))
    finally:
        ax.random.seed(0)


def square(key):
    """A bucket whose parameter has the shape of its data."""
    return ax.sym.MakeLoss(ax.sym.Variable("data") * ax.sym.Variable(f"weight_{key}"))


def stranger():
    bucketed(lstm(1, 4, 7)).set_params({"l0_i2h_wight": numpy.zeros(3)})


CASES = {
    "model": lambda: manager(mlp(hidden=9 if ODD else 8)),
    "input": lambda: manager(mlp(), Described(*FLAT, dtype="f8" if ODD else "f4")),
    "operator": lambda: manager(mlp(norm=ODD)),
    "attribute": lambda: manager(mlp(dropout=0.5 if ODD else 0.25)),
    "gradient request": lambda: manager(mlp(), grad_req="add" if ODD else "write"),
    "seed": seed,
    "optimizer": optimizer,
    "steps": lambda: manager(mlp(), Described(*FLAT, num_batches=RANKS.rank + 7)),
    "bucket keys": lambda: bucketed(lstm(1, 4, 7), bucket_keys=[3, 4, 5] if ODD else [3, 5]),
    "another bucket": lambda: bucketed(lstm(1, 4, 7, own=(3,) if ODD else ())),
    "not announced": lambda: bucketed(lstm(1, 4, 7), bucket_keys=None),
    "unannounced key": unannounced,
    "unknown shape": lambda: bucketed(square),
    "reduced": reduced,
    "unknown parameter": stranger,
}


def main() -> None:
    found = {}
    for name, case in CASES.items():
        try:
            with ax.name.NameManager():
                case()
            text = "nothing"
        except Exception as error:
            text = f"{type(error).__name__}: {error}"
        found[name] = RANKS.allgather_object(text)
    if RANKS.rank == 0:
        print(json.dumps(found))


if len(sys.argv) > 1:
    CASES[sys.argv[1]]()
else:
    main()
