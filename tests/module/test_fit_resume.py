"""``fit`` that is stopped anywhere and called again with ``resume=True`` gives what one call gives."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import arrayexec as ax
from arrayexec.errors import ArgumentError, CheckpointError
from arrayexec.module.checkpoint import Checkpoints
from tests.module.resuming import BATCH, RULES, dropout_net, norm_net, same


class Stopped(Exception):
    """What ends a training here."""


class Watch:
    """Remembers epoch, batch and metric of every batch; raises at one of them."""

    def __init__(self, stop: int | None = None) -> None:
        self.stop, self.seen = stop, list[Any]()

    def __call__(self, told: Any) -> None:
        self.seen.append((told.epoch, told.nbatch, told.eval_metric.get()[1]))
        if len(self.seen) == self.stop:
            raise Stopped


def images(seed: int = 3) -> Any:
    rng = np.random.default_rng(seed)
    data, labels = rng.normal(size=(50, 6)).astype("f4"), rng.integers(0, 3, 50).astype("f4")
    return ax.io.PrefetchingIter(ax.io.NDArrayIter(data, labels, BATCH, shuffle=True))


def fit(net: Any, devices: int, rule: str, watch: Watch, **options: Any) -> Any:
    ax.random.seed(options.pop("seed", 11))
    module = ax.mod.Module(net(), context=[ax.cpu(i) for i in range(devices)], **options.pop("module", {}))
    module.fit(
        images(), images(4), optimizer=RULES[rule](), initializer=ax.init.Xavier(), batch_end_callback=watch, num_epoch=3,
        **options,
    )  # fmt: skip
    return module


def held(module: Any) -> dict[str, Any]:
    arrays = {**module.get_params()[0], **module.get_params()[1]}
    states = module._updater.get_states()["states"]
    return arrays | {f"{key}.{name}": array for key, state in states.items() for name, array in state.items()}


@pytest.mark.parametrize(
    ("net", "devices", "rule", "module"),
    [
        (dropout_net, 1, "adam", {}), (norm_net, 2, "momentum", {}),
        (dropout_net, 2, "momentum", {"compression_params": {"type": "2bit", "threshold": 0.05}}),
    ],
)  # fmt: skip
@pytest.mark.parametrize("stop", [1, 4, 5, 6, 9])
def test_stopped_and_called_again(
    tmp_path: Path, net: Any, devices: int, rule: str, module: Any, stop: int
) -> None:
    options = {"module": module, "kvstore": "device"}
    whole = Watch()
    expected = held(fit(net, devices, rule, whole, **options))
    assert len(whole.seen) == 15
    first, second = Watch(stop), Watch()
    with pytest.raises(Stopped):
        fit(net, devices, rule, first, checkpoint=Checkpoints(tmp_path, every=2), resume=True, **options)
    kept = stop - 1  # the callback comes before the file
    done = kept // 5 * 5 + kept % 5 // 2 * 2
    options["seed"] = 12 if done else 11  # without a file training starts anew
    found = fit(net, devices, rule, second, checkpoint=Checkpoints(tmp_path, every=2), resume=True, **options)
    same(held(found), expected)
    assert first.seen == whole.seen[:stop] and second.seen == whole.seen[done:]


def test_a_training_that_is_over_goes_on_for_more_epochs(tmp_path: Path) -> None:
    whole = held(fit(dropout_net, 1, "adam", Watch()))
    ax.random.seed(11)
    module = ax.mod.Module(dropout_net())
    for epochs in (1, 1, 3):
        module.fit(
            images(), optimizer=RULES["adam"](), initializer=ax.init.Xavier(), num_epoch=epochs, checkpoint=str(tmp_path),
            resume=True,
        )  # fmt: skip
    same(held(module), whole)
    assert len(Checkpoints(tmp_path).paths()) == 3


def test_what_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match="resume=True needs checkpoint"):
        fit(dropout_net, 1, "adam", Watch(), resume=True)
    fit(dropout_net, 1, "adam", Watch(), checkpoint=tmp_path)
    with pytest.raises(CheckpointError, match="of the optimizer 'sgd', but they are of 'adam'"):
        fit(dropout_net, 1, "momentum", Watch(), checkpoint=tmp_path, resume=True)
    with pytest.raises(CheckpointError, match="'bn_gamma' must have the shape .16,., but it is not there"):
        fit(norm_net, 1, "adam", Watch(), checkpoint=tmp_path, resume=True)


def sentences() -> Any:
    rng = np.random.default_rng(0)
    lines = [list(rng.integers(1, 20, rng.integers(2, 9))) for _ in range(60)]
    return ax.io.BucketSentenceIter(lines, 6, buckets=[4, 8], invalid_label=0)


def sentence_net(length: int) -> Any:
    data, label = ax.sym.Variable("data"), ax.sym.Variable("softmax_label")
    x = ax.sym.Embedding(data, input_dim=20, output_dim=5, name="embed")
    x = ax.sym.Dropout(ax.sym.Reshape(x, shape=(-1, 5)), p=0.3, name="drop")
    x = ax.sym.FullyConnected(x, num_hidden=20, name="out" if length == 8 else "short")  # a parameter of its own
    return ax.sym.SoftmaxOutput(x, ax.sym.Reshape(label, shape=(-1,)), name="softmax"), ("data",), ("softmax_label",)


@pytest.mark.parametrize("stop", [3, 7])
def test_buckets_with_parameters_of_their_own(tmp_path: Path, stop: int) -> None:
    def train(watch: Watch, seed: int = 5, **options: Any) -> Any:
        ax.random.seed(seed)
        module = ax.mod.BucketingModule(sentence_net, 8, context=[ax.cpu(0), ax.cpu(1)])
        module.fit(
            sentences(), eval_metric="ce", optimizer=RULES["adam"](), initializer=ax.init.Xavier(), num_epoch=2,
            batch_end_callback=watch, **options,
        )  # fmt: skip
        return module

    whole = Watch()
    expected = held(train(whole))
    assert {"short_weight", "out_weight"} <= expected.keys()
    with pytest.raises(Stopped):
        train(Watch(stop), checkpoint=Checkpoints(tmp_path, every=1))
    again = Watch()
    same(held(train(again, 6, checkpoint=Checkpoints(tmp_path, every=1), resume=True)), expected)
    assert again.seen == whole.seen[stop - 1 :]


def test_inputs_that_are_kept_from_batch_to_batch(tmp_path: Path) -> None:
    data, state = ax.sym.Variable("data"), ax.sym.Variable("state")
    out = ax.sym.SoftmaxOutput(ax.sym.FullyConnected(data + state, num_hidden=3, name="fc"), name="softmax")

    def made() -> Any:
        module = ax.mod.Module(out, state_names=["state"], context=[ax.cpu(0), ax.cpu(1)])
        module.bind([("data", (4, 6)), ("state", (4, 6))][:1], [("softmax_label", (4,))])
        module.init_params()
        module.init_optimizer()
        return module

    first, second = made(), made()
    kept = np.arange(24, dtype=np.float32).reshape(4, 6)
    first.set_states([kept])
    ax.checkpoint.save(tmp_path / "a", first)
    ax.checkpoint.resume(tmp_path / "a", second)
    assert np.array_equal(second.get_states()[0], kept)


@pytest.mark.parametrize("stop", [3, 7])
def test_a_chain_of_modules(tmp_path: Path, stop: int) -> None:
    def train(watch: Watch, seed: int = 5, **options: Any) -> Any:
        ax.random.seed(seed)
        data = ax.sym.Variable("data")
        first = ax.sym.Dropout(ax.sym.FullyConnected(data, num_hidden=8, name="first"), p=0.3, name="drop")
        last = ax.sym.SoftmaxOutput(ax.sym.FullyConnected(data, num_hidden=3, name="last"), name="softmax")
        chain = ax.mod.SequentialModule()
        chain.add(ax.mod.Module(first, label_names=None)).add(ax.mod.Module(last), take_labels=True, auto_wiring=True)
        chain.fit(images(), optimizer=RULES["adam"](), num_epoch=2, batch_end_callback=watch, **options)
        return chain

    whole = train(Watch()).get_params()[0]
    with pytest.raises(Stopped):
        train(Watch(stop), checkpoint=Checkpoints(tmp_path, every=1))
    again = train(Watch(), 6, checkpoint=Checkpoints(tmp_path, every=1), resume=True)
    same(again.get_params()[0], whole)


def test_values_for_buckets_that_have_not_come_yet(tmp_path: Path) -> None:
    def made() -> Any:
        module = ax.mod.BucketingModule(sentence_net, 8)
        module.bind([("data", (6, 8))], [("softmax_label", (6, 8))])
        module.init_params(ax.init.Xavier())
        return module

    first, second = made(), made()
    arg_params, _ = first.get_params()
    short = {"short_weight": np.full((20, 5), 2, np.float32), "short_bias": np.full(20, 3, np.float32)}
    first.set_params({**arg_params, **short}, {})
    ax.checkpoint.save(tmp_path / "a", first)
    ax.checkpoint.resume(tmp_path / "a", second)
    second.switch_bucket(4, [("data", (6, 4))], [("softmax_label", (6, 4))])
    found = second.get_params()[0]
    assert all(np.array_equal(found[name], value) for name, value in {**arg_params, **short}.items())


def test_an_early_end_comes_as_early(tmp_path: Path) -> None:
    def train(watch: Watch, **options: Any) -> int:
        ax.random.seed(2)
        early = ax.callback.EarlyStopping(patience=2, mode="min")  # accuracy: it rises
        module = ax.mod.Module(dropout_net())
        module.fit(
            images(), images(4), optimizer=RULES["adam"](), initializer=ax.init.Xavier(), num_epoch=30, eval_metric="ce",
            validation_metric="acc", batch_end_callback=[watch], eval_end_callback=early, **options,
        )  # fmt: skip
        return int(early.best_epoch)

    whole = Watch()
    best = train(whole)
    last = whole.seen[-1][0]
    assert best <= last - 2 < 27
    with pytest.raises(Stopped):
        train(Watch(len(whole.seen) - 2), checkpoint=tmp_path)  # the best one is past
    again = Watch()
    assert train(again, checkpoint=tmp_path, resume=True) == best
    assert again.seen[-1] == whole.seen[-1]
