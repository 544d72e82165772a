"""Trainings fed from files and from Python: exact counts, and a resumed one that sees the identical batches."""

from __future__ import annotations

import numpy
import pytest

import arrayexec as ax
from arrayexec import recordio


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    ax.random.seed(0)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def net():
    x = ax.sym.Convolution(ax.sym.Variable("data"), kernel=(3, 3), num_filter=4, name="conv")
    x = ax.sym.Flatten(ax.sym.Activation(x, act_type="relu"))
    return ax.sym.SoftmaxOutput(ax.sym.FullyConnected(x, num_hidden=2, name="fc"), name="softmax")


def bars(count=50):
    """Images with an upright or a level bar, and which it is."""
    draw = numpy.random.default_rng(0)
    pixels = draw.integers(0, 60, (count, 8, 8, 3)).astype(numpy.uint8)
    for i, place in enumerate(draw.integers(2, 6, count)):
        pixels[(i, slice(None), place) if i % 2 else (i, place)] = 255
    return pixels, numpy.arange(count) % 2


def iterator(**options):
    with recordio.MXIndexedRecordIO("a.idx", "a.rec", "w") as file:
        for i, (pixels, label) in enumerate(zip(*bars(), strict=True)):
            file.write_idx(i, recordio.pack_img((0, float(label), i, 0), pixels, img_fmt=".npy"))
    return ax.io.ImageRecordIter(
        "a.rec", (3, 7, 7), 12, shuffle=True, rand_crop=True, brightness=0.1, scale=1 / 255, mean_r=40, **options
    )


def trained(data, epochs, **options):
    module = ax.mod.Module(net())
    rates = (("learning_rate", 0.1), ("momentum", 0.9))
    module.fit(data, num_epoch=epochs, initializer=ax.init.Xavier(), optimizer_params=rates, **options)
    return module


def test_images_are_learned_and_every_row_counts_once():
    data = iterator()
    module = trained(data, 12)
    (_, accuracy) = module.score(data, "acc")[0]
    assert accuracy > 0.9
    assert len(module.predict(data)) == 50
    assert accuracy * 50 == pytest.approx(round(accuracy * 50))  # 50 rows, not the 60 of five batches


@pytest.mark.parametrize("threads", [1, 3])
def test_a_training_on_images_goes_on_in_mid_epoch_to_the_bit(threads):
    def keeper():
        return ax.checkpoint.Checkpoints("kept", keep=None, every=3)

    whole = trained(iterator(), 3)

    class Stopped(Exception):
        pass

    def stop(param):
        if (param.epoch, param.nbatch) == (1, 3):
            raise Stopped

    ax.random.seed(0)
    with pytest.raises(Stopped):
        trained(iterator(), 3, checkpoint=keeper(), batch_end_callback=stop)
    ax.random.seed(99)
    resumed = trained(iterator(preprocess_threads=threads), 3, checkpoint=keeper(), resume=True)
    for name, value in whole.get_params()[0].items():
        numpy.testing.assert_array_equal(resumed.get_params()[0][name], value)


def test_a_generator_of_batches_trains():
    pixels, labels = bars()
    images = pixels.transpose(0, 3, 1, 2) / numpy.float32(255)

    def source(epoch):
        for rows in ax.io.ShardedSampler(50, 10, seed=epoch):
            yield images[rows], labels[rows]

    data = ax.io.PrefetchingIter(ax.io.IterableIter(source))
    assert trained(data, 12).score(data, "acc")[0][1] > 0.9
