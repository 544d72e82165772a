"""Images: numbers recorded from MXNet 1.9.1, closed forms, the same bits whatever the threads and ranks."""

from __future__ import annotations

import ast
import io as streams
import json
from pathlib import Path

import numpy
import pytest

from arrayexec import files, image, recordio
from arrayexec.errors import AttributeValueError, FileFormatError, ShapeError
from arrayexec.train import image_codec, io, random


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    random.seed(0)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def picture(number=0, height=8, width=10):
    """Red: the number · 10; green: the column · 20; blue: the row · 20."""
    made = numpy.zeros((height, width, 3), numpy.uint8)
    made[..., 0] = number * 10
    made[..., 1] = numpy.arange(width) * 20
    made[..., 2] = (numpy.arange(height) * 20)[:, None]
    return made


def pack(count=7, kind=".npy", label=float, picture=picture):
    with recordio.MXIndexedRecordIO("i.idx", "i.rec", "w") as file:
        for i in range(count):
            file.write_idx(i, recordio.pack_img((0, label(i), i, 0), picture(i)[:, :, ::-1], 9, kind))


def records(**options):
    return io.ImageRecordIter(**{**dict(path_imgrec="i.rec", data_shape=(3, 8, 10), batch_size=3), **options})


def corners(iterator):
    """(red, green, blue of the first pixel of each image; labels; pad) of every batch."""
    return [(b.data[0][:, :, 0, 0].tolist(), b.label[0].tolist(), b.pad) for b in iterator]


FIRST = [
    ([[0, 0, 0], [10, 0, 0], [20, 0, 0]], [0, 1, 2], 0),
    ([[30, 0, 0], [40, 0, 0], [50, 0, 0]], [3, 4, 5], 0),
    ([[60, 0, 0], [0, 0, 0], [10, 0, 0]], [6, 0, 1], 2),
]


def test_batches_are_those_of_mxnet_in_the_first_epoch_and_in_every_other():
    pack()
    iterator = records()
    assert [tuple(desc) for desc in iterator.provide_data + iterator.provide_label] == [
        ("data", (3, 3, 8, 10)),
        ("softmax_label", (3,)),
    ]
    for _ in range(2):
        assert corners(iterator) == FIRST
        iterator.reset()
    assert corners(records(path_imgidx="i.idx", preprocess_threads=1, prefetch_buffer=0)) == FIRST


# The first pixels of the first batch, recorded from MXNet 1.9.1 on the same pictures.
@pytest.mark.parametrize(
    ("options", "pixel"),
    [
        (dict(data_shape=(3, 4, 6)), [0, 40, 40]),
        (dict(mean_r=1, mean_g=2, mean_b=3, std_r=2, std_g=2, std_b=4, scale=0.5), [-0.25, -0.5, -0.375]),
        (dict(mirror=True), [0, 180, 0]),
        (dict(data_shape=(3, 8, 10), pad=1), [0, 0, 0]),
    ],
)
def test_pixels_are_those_of_mxnet(options, pixel):
    pack()
    assert corners(records(**options))[0][0][0] == pixel


@pytest.mark.parametrize(
    ("options", "pixel"), [(dict(data_shape=(3, 4, 4), resize=4), [0, 10, 10]), (dict(data_shape=(3, 12, 12)), [0, 10, 0])]
)
def test_resized_pixels_are_those_of_mxnet(options, pixel):
    pytest.importorskip("PIL", reason="images are resized by Pillow")
    pack()
    assert corners(records(**options))[0][0][0] == pixel


def test_encoded_records_grey_and_whole_numbers():
    pytest.importorskip("PIL", reason="images are decoded by Pillow")
    pack(kind=".png")
    assert corners(records()) == FIRST
    grey = next(records(data_shape=(1, 8, 10))).data[0]
    assert grey.shape == (3, 1, 8, 10)
    weights = numpy.array([0.299, 0.587, 0.114])
    numpy.testing.assert_allclose(grey[2, 0], picture(2) @ weights, atol=0.51)
    assert next(records(dtype="uint8")).data[0].dtype == numpy.uint8
    assert corners(io.ImageRecordUInt8Iter("i.rec", (3, 8, 10), 3)) == FIRST
    signed = next(io.ImageRecordInt8Iter("i.rec", (3, 8, 10), 3))
    numpy.testing.assert_array_equal(signed.data[0][1].transpose(1, 2, 0), picture(1).astype(int) - 128)


def test_records_may_be_the_pixels_themselves():
    with recordio.MXRecordIO("i.rec", "w") as file:
        for i in range(4):
            file.write(recordio.pack((0, i, i, 0), picture(i).tobytes()))
    batch = next(records(batch_size=4))
    numpy.testing.assert_array_equal(batch.data[0], [picture(i).transpose(2, 0, 1) for i in range(4)])


def test_labels_of_several_numbers_and_from_a_list():
    pack(label=lambda i: [i, i / 2])
    assert next(records(label_width=2)).label[0].tolist() == [[0, 0], [1, 0.5], [2, 1]]
    with pytest.raises(ShapeError, match="with label_width=1 the image must have as many labels, but it has 2"):
        next(records())
    with open("i.lst", "w") as file:
        file.writelines(f"{i}\t{100 + i}\timage{i}.png\n" for i in range(7))
    assert next(records(path_imglist="i.lst")).label[0].tolist() == [100, 101, 102]


def test_mean_image_is_made_once_and_read_then():
    pack()
    wanted = numpy.mean([picture(i) for i in range(7)], axis=0).transpose(2, 0, 1)
    first = next(records(mean_img="mean.params")).data[0]
    numpy.testing.assert_allclose(first[2], picture(2).transpose(2, 0, 1) - wanted, atol=1e-4)
    numpy.testing.assert_allclose(files.load("mean.params")["mean_img"], wanted, rtol=1e-6)
    files.save("mean.params", {"mean_img": numpy.ones((3, 8, 10), numpy.float32)})
    assert corners(records(mean_img="mean.params"))[0][0][1] == [9, -1, -1]


JITTER = dict(
    data_shape=(3, 5, 6), shuffle=True, rand_crop=True, rand_mirror=True, brightness=0.2, contrast=0.2, saturation=0.2,
    pca_noise=0.1, max_random_contrast=0.1, max_random_illumination=5, mean_g=3, scale=0.5,
)  # fmt: skip


def epochs(iterator, count=2):
    found = []
    for _ in range(count):
        found += [(batch.data[0].copy(), batch.label[0].tolist()) for batch in iterator]
        iterator.reset()
    return found


def same(left, right):
    return len(left) == len(right) and all(a[1] == b[1] and (a[0] == b[0]).all() for a, b in zip(left, right, strict=True))


def test_bits_depend_on_seed_epoch_and_image_alone():
    pack(23)
    wanted = epochs(records(**JITTER, batch_size=6, seed=4))
    assert same(epochs(records(**JITTER, batch_size=6, seed=4, preprocess_threads=1, prefetch_buffer=0)), wanted)
    random.seed(4)
    assert same(epochs(records(**JITTER, batch_size=6)), wanted)
    assert not same(epochs(records(**JITTER, batch_size=6, seed=5)), wanted)
    half = len(wanted) // 2
    assert not same(wanted[:half], wanted[half:])
    parts = [epochs(records(**JITTER, batch_size=3, seed=4, num_parts=2, part_index=i)) for i in range(2)]
    joined = [(numpy.concatenate([a[0], b[0]]), a[1] + b[1]) for a, b in zip(*parts, strict=True)]
    assert same(joined, wanted)


@pytest.mark.parametrize("taken", [0, 2])
def test_reading_goes_on_from_a_state(taken):
    pack(11)
    iterator, other = records(**JITTER, seed=4), records(**JITTER, seed=9)
    list(iterator)
    iterator.reset()
    for _ in range(taken):
        next(iterator)
    other.set_state(iterator.get_state())
    assert same(epochs(other), epochs(iterator))


def test_parts_have_the_same_number_of_batches():
    pack(7)
    parts = [corners(records(batch_size=1, num_parts=3, part_index=i)) for i in range(3)]
    assert [[(label[0], pad) for _, label, pad in part] for part in parts] == [
        [(0, 0), (3, 0), (6, 0)],
        [(1, 0), (4, 0), (0, 1)],
        [(2, 0), (5, 0), (1, 1)],
    ]


def test_random_crops_reach_every_corner_and_mirrors_both_sides():
    pack(200, picture=lambda i: picture(0, 4, 4))
    batch = next(records(batch_size=200, data_shape=(3, 2, 2), rand_crop=True, rand_mirror=True)).data[0]
    assert {tuple(sorted(row)) for row in batch[:, 1, 0].tolist()} == {(0, 20), (20, 40), (40, 60)}
    assert set(batch[:, 2, 0, 0].tolist()) == {0, 20, 40}
    mirrored = (batch[:, 1, 0, 0] > batch[:, 1, 0, 1]).mean()
    assert 0.35 < mirrored < 0.65


def test_turned_and_stretched():
    pytest.importorskip("PIL", reason="images are turned by Pillow")
    pack(1, picture=lambda i: picture(0, 8, 8))
    (turned,) = next(records(batch_size=1, data_shape=(3, 8, 8), rotate=180)).data[0]
    numpy.testing.assert_allclose(turned.transpose(1, 2, 0), picture(0, 8, 8)[::-1, ::-1], atol=1)
    (smaller,) = next(
        records(batch_size=1, data_shape=(3, 4, 4), max_random_scale=0.5, min_random_scale=0.5)
    ).data[0]
    numpy.testing.assert_allclose(smaller[1, 0], [10, 50, 90, 130], atol=1)
    (around,) = next(records(batch_size=1, data_shape=(3, 8, 8), rotate=45, fill_value=7)).data[0]
    assert around[:, 0, 0].tolist() == [7, 7, 7]
    squares = next(records(batch_size=1, data_shape=(3, 8, 8), min_crop_size=4, max_crop_size=4)).data[0]
    numpy.testing.assert_allclose(squares[0][1, 0].mean(), 70, atol=2)
    area = next(records(batch_size=1, data_shape=(3, 4, 4), random_resized_crop=True, min_random_area=0.25)).data[0]
    assert area.shape == (1, 3, 4, 4)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (dict(rand_corp=True), "there is no option 'rand_corp'; did you mean 'rand_crop'?"),
        (dict(random_h=3), "there is no option 'random_h'"),
        (dict(data_shape=(2, 8, 10)), "data_shape must be .channels, height, width. with 1 or 3 channels"),
        (dict(dtype="uint8", mean_r=3), "images of uint8 are not normalised"),
        (dict(dtype="int32"), "dtype must be a float, uint8 or int8"),
        (dict(std_r=0), "must not be 0"),
        (dict(batch_size=0), "batch_size must be"),
    ],
)
def test_refusals(options, text):
    pack(1)
    with pytest.raises(AttributeValueError, match=text):
        records(**options)


def test_damaged_records():
    pytest.importorskip("PIL", reason="images are decoded by Pillow")
    pack(4, ".png")
    data = bytearray(Path("i.rec").read_bytes())
    offsets = [int(line.split("\t")[1]) for line in Path("i.idx").read_text().splitlines()]
    data[offsets[2] + 60] ^= 0xFF
    Path("i.rec").write_bytes(data)
    with pytest.raises(FileFormatError, match=rf"'i.rec', byte {offsets[2]}: .* must be an image that Pillow decodes"):
        list(records(batch_size=1))
    Path("i.rec").write_bytes(data[:-8])
    with pytest.raises(FileFormatError, match=r"truncated\?"):
        records()
    Path("i.rec").write_bytes(b"<html></html>")
    with pytest.raises(FileFormatError, match="byte 0: a record must begin with 0a 23 d7 ce, but here is 3c 68 74 6d"):
        records()
    Path("i.rec").write_bytes(b"")
    with pytest.raises(FileFormatError, match="at least one image"):
        records()


# --- functions and augmenters ----------------------------------------------------------------------------------------


def test_sizes_and_places_are_those_of_mxnet():
    src = picture(3)
    assert image.scale_down((10, 8), (20, 16)) == (10, 8)
    assert image.scale_down((640, 480), (720, 120)) == (640, 106)
    part, place = image.center_crop(src, (6, 4))
    assert (place, part[0, 0].tolist()) == ((2, 2, 6, 4), [30, 40, 40])
    assert image.center_crop(src, (5, 3))[1] == (2, 2, 5, 3)
    numpy.testing.assert_array_equal(image.fixed_crop(src, 1, 2, 3, 4), src[2:6, 1:4])
    with pytest.raises(ShapeError, match="must lie inside the image of 10 x 8"):
        image.fixed_crop(src, 8, 0, 3, 3)


def test_resized_values_are_those_of_mxnet():
    pytest.importorskip("PIL", reason="images are resized by Pillow")
    src = picture(3)
    halved = image.imresize(src, 5, 4)
    assert halved[..., 1].tolist() == [[10, 50, 90, 130, 170]] * 4
    assert halved[:, 0, 2].tolist() == [10, 50, 90, 130]
    grown = image.imresize(src, 15, 8)[0, :, 1]
    numpy.testing.assert_allclose(grown, [0, 10, 23, 37, 50, 63, 77, 90, 103, 117, 130, 143, 157, 170, 180], atol=1)
    assert image.resize_short(src, 4).shape == (4, 5, 3)
    assert image.resize_short(src.transpose(1, 0, 2), 4).shape == (5, 4, 3)
    assert image.center_crop(src, (20, 16))[0].shape == (16, 20, 3)
    area = image.imresize(src, 5, 4, interp=3)
    numpy.testing.assert_array_equal(area, src.reshape(4, 2, 5, 2, 3).mean(axis=(1, 3)))
    floats = image.imresize(src.astype(numpy.float32), 5, 4)
    numpy.testing.assert_allclose(floats, halved, atol=0.5)
    for interp in (0, 2, 4, 9, 10):
        assert image.imresize(src, 7, 5, interp).shape == (5, 7, 3)
    with pytest.raises(AttributeValueError, match="interp must be one of"):
        image.imresize(src, 7, 5, 8)


def test_random_crops_come_from_the_seed():
    src = picture(0, 40, 40)

    def places():
        return [image.random_crop(src, (6, 6))[1] for _ in range(5)]

    random.seed(1)
    first = places()
    assert places() != first
    random.seed(2)
    assert places() != first
    random.seed(1)
    assert places() == first
    assert all(w == h == 6 and 0 <= x0 <= 34 and 0 <= y0 <= 34 for x0, y0, w, h in first)


def test_colours():
    src = picture(3).astype(numpy.float32)
    numpy.testing.assert_allclose(
        image.color_normalize(picture(3), [30, 1, 2], [2, 1, 4])[1, 2], [0, 39, 4.5], rtol=1e-6
    )
    grey = image.RandomGrayAug(1.0)(src)
    numpy.testing.assert_allclose(grey[..., 0], src @ [0.299, 0.587, 0.114], rtol=1e-5)
    assert (grey[..., 0] == grey[..., 2]).all()
    assert image.RandomGrayAug(0.0)(src) is src
    for amount, aug in ((0.3, image.BrightnessJitterAug(0.3)), (0.3, image.ContrastJitterAug(0.3))):
        spread = aug(src).std() / src.std()
        assert 1 - amount <= spread <= 1 + amount and spread != 1
    assert abs(image.ContrastJitterAug(0.5)(grey).mean() - grey.mean()) < 1e-2
    numpy.testing.assert_allclose(image.SaturationJitterAug(0.5)(grey), grey, rtol=1e-3)
    turned = image.HueJitterAug(0.5)(src)
    numpy.testing.assert_allclose(turned @ [0.299, 0.587, 0.114], src @ [0.299, 0.587, 0.114], atol=0.2)
    lit = image.LightingAug(0.1, numpy.array([55.46, 4.794, 1.148]), numpy.eye(3))(src) - src
    assert numpy.ptp(lit, axis=(0, 1)).max() < 1e-3 and abs(lit).max() > 0
    numpy.testing.assert_array_equal(image.HorizontalFlipAug(1.0)(src), src[:, ::-1])


def test_augmenters_say_what_they_are():
    made = image.CreateAugmenter(
        (3, 4, 4), resize=5, rand_crop=True, rand_mirror=True, mean=True, std=True, brightness=0.1, contrast=0.1,
        saturation=0.1, hue=0.1, pca_noise=0.1, rand_gray=0.1,
    )  # fmt: skip
    names = [type(one).__name__ for one in made]
    assert names == (
        "ResizeAug RandomCropAug HorizontalFlipAug CastAug ColorJitterAug HueJitterAug LightingAug RandomGrayAug "
        "ColorNormalizeAug"
    ).split()
    assert json.loads(made[1].dumps()) == ["randomcropaug", {"size": [4, 4], "interp": 2}]
    assert json.loads(made[4].dumps())[1][0] == '["brightnessjitteraug", {"brightness": 0.1}]'
    assert json.loads(made[-1].dumps())[1]["std"] == [58.395, 57.12, 57.375]
    with pytest.raises(AttributeValueError, match="rand_resize must come with rand_crop"):
        image.CreateAugmenter((3, 4, 4), rand_resize=True)
    with pytest.raises(AttributeValueError, match="an augmenter must define __call__"):
        image.Augmenter()(picture())


def test_image_iterator_over_files_and_records():
    pil = pytest.importorskip("PIL.Image", reason="images are decoded by Pillow")
    pack(5, ".png")
    for i in range(5):
        pil.fromarray(picture(i)).save(f"p{i}.png")
    with open("i.lst", "w") as file:
        file.writelines(f"{i}\t{i}\tp{i}.png\n" for i in range(5))
    common = dict(batch_size=2, data_shape=(3, 4, 4), shuffle=True, seed=3, rand_crop=True, brightness=0.1)
    found = [
        epochs(image.ImageIter(**common, **source))
        for source in (
            dict(path_imgrec="i.rec", path_imgidx="i.idx"),
            dict(path_imglist="i.lst", path_root="."),
            dict(imglist=[[float(i), f"p{i}.png"] for i in range(5)], preprocess_threads=3),
        )
    ]
    assert same(found[0], found[1]) and same(found[1], found[2])
    assert found[0][0][0].shape == (2, 3, 4, 4)
    own = image.ImageIter(2, (3, 8, 10), imglist=[[1, "p1.png"]], aug_list=[lambda src: src // 10])
    assert next(own).data[0][0, 0, 0, 0] == 1
    with pytest.raises(ShapeError, match="augmented, the image must be .4, 4, 3., but it is .8, 10, 3."):
        next(image.ImageIter(1, (3, 4, 4), imglist=[[1, "p1.png"]], aug_list=[]))
    with pytest.raises(AttributeValueError, match="path_imgrec, path_imglist or imglist must be given"):
        image.ImageIter(1, (3, 4, 4))
    with pytest.raises(AttributeValueError, match="with aug_list there must be no further options"):
        image.ImageIter(1, (3, 4, 4), imglist=[[1, "p1.png"]], aug_list=[], resize=3)


def test_a_list_of_another_form():
    pack(1)
    Path("i.lst").write_text("0\t1\ta.png\nx\t1\tb.png\n")
    with pytest.raises(FileFormatError, match=r"line 2 \(byte 10\): there must be an id, labels and a path"):
        records(path_imglist="i.lst")
    Path("i.lst").write_text("5\t1\ta.png\n")
    with pytest.raises(FileFormatError, match="the list must have the image 0, but it has not"):
        next(records(path_imglist="i.lst", batch_size=1))


@pytest.mark.parametrize("shape", [(8, 10, 3), (5, 7), (100, 1, 1)])
def test_raw_images_that_numpy_wrote_are_read_without_pythons_parser(shape, monkeypatch):
    # which is not for several threads in some versions of Python 3.11 and 3.12
    made = numpy.random.default_rng(0).integers(0, 256, shape, numpy.uint8)
    kinds = {version: streams.BytesIO() for version in ((1, 0), (2, 0))}
    for version, stream in kinds.items():
        numpy.lib.format.write_array(stream, made, version)
    plain, longer = (stream.getvalue() for stream in kinds.values())
    numpy.testing.assert_array_equal(image_codec.decode(longer).reshape(shape), made)
    monkeypatch.setattr(ast, "literal_eval", None)
    numpy.testing.assert_array_equal(image_codec.decode(plain).reshape(shape), made)
    with pytest.raises(FileFormatError, match="an npy header"):
        image_codec.decode(longer)
