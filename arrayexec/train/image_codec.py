"""Encoded images to arrays and back, and their sizes changed, through Pillow (the extra ``images``).

Images are arrays (height, width, channels) of uint8, channels in the order red, green, blue.
"""

from __future__ import annotations

import functools
import io
import math
import re
from typing import Any

import numpy

from ..errors import AttributeValueError, BackendUnavailableError, FileFormatError, ShapeError

Image = numpy.ndarray[Any, Any]

MAX_PIXELS = 1 << 26
"""An image whose header states more is refused before it is decoded."""

_FORMATS = {".jpg": "JPEG", ".jpeg": "JPEG", ".png": "PNG", ".bmp": "BMP", ".webp": "WEBP", ".ppm": "PPM"}
_NPY = b"\x93NUMPY"
_DIM = rb"([0-9]{1,9})"
_RAW = re.compile(
    rb"\x93NUMPY\x01\x00..\{'descr': '\|u1', 'fortran_order': False, 'shape': \(%b, %b(?:, %b)?\), \} *\n"
    % (_DIM, _DIM, _DIM),
    re.DOTALL,
)


@functools.cache
def _pillow() -> Any:
    try:
        import PIL.Image
    except ImportError as error:
        raise BackendUnavailableError(
            f"images are decoded, encoded and resized by Pillow, which cannot be imported here ({error}): "
            "install arrayexec[images]"
        ) from error
    PIL.Image.init()
    return PIL.Image


def decode(data: bytes, colour: bool = True, where: str = "image") -> Image:
    """The image (h, w, 3), or grey (h, w, 1), of encoded bytes or of a ``.npy`` of uint8.

    Raises FileFormatError for what is no whole image, BackendUnavailableError where Pillow is needed and missing.
    """
    if data[: len(_NPY)] == _NPY:
        return _decode_npy(data, where)
    pillow = _pillow()
    try:
        with pillow.open(io.BytesIO(data)) as image:
            width, height = image.size
            if width * height > MAX_PIXELS:
                raise FileFormatError(
                    f"{where}: an image may have {MAX_PIXELS} pixels, but the header states {width} x {height}"
                )
            array = numpy.asarray(image.convert("RGB" if colour else "L"))
    except FileFormatError:
        raise
    except Exception as error:  # whatever a decoder raises at damaged bytes
        raise FileFormatError(
            f"{where}: {len(data)} bytes that begin with {data[:8].hex(' ') or 'nothing'} must be an image that Pillow "
            f"decodes, but it says: {type(error).__name__}: {_without_address(error)}"
        ) from error
    return array if colour else array[:, :, None]


def _without_address(error: Exception) -> str:
    return str(error).partition(" <_io")[0]


def _decode_npy(data: bytes, where: str) -> Image:
    shape, fortran, kind, start = _raw_header(data) or _any_header(data, where)
    left = len(data) - start
    if kind != numpy.uint8 or len(shape) not in (2, 3) or fortran or math.prod(shape) != left:
        raise FileFormatError(
            f"{where}: a raw image must be uint8 (h, w) or (h, w, channels) with as many bytes, but it is {kind} "
            f"{shape} with {left} bytes"
        )
    image = numpy.frombuffer(data, numpy.uint8, offset=start).reshape(shape)
    return image if image.ndim == 3 else image[:, :, None]


_Header = tuple[tuple[int, ...], bool, Any, int]  # shape, order of Fortran, type, where the pixels begin


def _raw_header(data: bytes) -> _Header | None:
    """The header as NumPy writes that of an image; None if it is another.

    NumPy reads it with Python's parser, which in some versions of 3.11 and 3.12 fails where threads run it at once.
    """
    found = _RAW.match(data)
    if not found or int.from_bytes(data[8:10], "little") != found.end() - 10:
        return None
    return tuple(int(dim) for dim in found.groups() if dim is not None), False, numpy.dtype("uint8"), found.end()


def _any_header(data: bytes, where: str) -> _Header:
    file = io.BytesIO(data)
    try:
        major, _ = numpy.lib.format.read_magic(file)
        read = numpy.lib.format.read_array_header_1_0 if major == 1 else numpy.lib.format.read_array_header_2_0
        return (*read(file), file.tell())
    except Exception as error:  # ValueError, EOFError, what NumPy's tokenizer raises
        fact = f"an npy header of version 1 or 2 must begin a raw image, but: {error}"
        raise FileFormatError(f"{where}: {fact}") from error


def encode(image: Image, kind: str = ".jpg", quality: int = 95) -> bytes:
    """The bytes of an image in the format of a file's ending; ``.npy`` (pixels as they are) needs no Pillow.

    ``quality``: of JPEG and WebP 1 to 100, of PNG the compression 0 to 9.
    """
    image = numpy.asarray(image)
    if image.dtype != numpy.uint8 or image.ndim not in (2, 3) or (image.ndim == 3 and image.shape[2] not in (1, 3)):
        raise ShapeError(
            f"an image to encode must be uint8 (h, w), (h, w, 1) or (h, w, 3), but it is {image.dtype} {image.shape}"
        )
    file = io.BytesIO()
    if kind == ".npy":
        numpy.lib.format.write_array(file, numpy.ascontiguousarray(image), (1, 0), allow_pickle=False)
        return file.getvalue()
    if kind.lower() not in _FORMATS:
        raise AttributeValueError(f"img_fmt must be one of {', '.join(_FORMATS)}, .npy, but it is {kind!r}")
    form = _FORMATS[kind.lower()]
    options = {"compress_level": min(quality, 9)} if form == "PNG" else {"quality": quality}
    flat = image[:, :, 0] if image.ndim == 3 and image.shape[2] == 1 else image
    _pillow().fromarray(flat).save(file, form, **options)
    return file.getvalue()


def resize(image: Image, width: int, height: int, interp: int = 1) -> Image:
    """The image in another size. ``interp``: 0 nearest, 1 bilinear, 2 cubic, 3 area, 4 Lanczos,
    9 area when it shrinks and cubic when it grows.

    Bilinear and cubic read the neighbours of each new pixel alone; area and Lanczos all that it covers.
    Raises ShapeError for sizes below 1, AttributeValueError for another method.
    """
    old_height, old_width = image.shape[:2]
    if min(width, height) < 1 or width * height > MAX_PIXELS:
        raise ShapeError(f"the new size must have 1 to {MAX_PIXELS} pixels, but it is {width} x {height}")
    if interp not in (0, 1, 2, 3, 4, 9):
        raise AttributeValueError(f"interp must be one of 0, 1, 2, 3, 4, 9, but it is {interp!r}")
    if (width, height) == (old_width, old_height):
        return image
    pillow = _pillow()
    if interp == 9:
        grows, shrinks = width > old_width and height > old_height, width < old_width and height < old_height
        interp = 2 if grows else 3 if shrinks else 1
    methods = pillow.Resampling

    def plane(pixels: Any) -> Image:
        source = pillow.fromarray(pixels)
        if interp in (3, 4):
            made = source.resize((width, height), methods.BOX if interp == 3 else methods.LANCZOS)
        else:
            method = (methods.NEAREST, methods.BILINEAR, methods.BICUBIC)[interp]
            made = source.transform((width, height), pillow.Transform.EXTENT, (0, 0, old_width, old_height), method)
        return numpy.asarray(made)

    if image.dtype == numpy.uint8 and image.shape[2] == 3:
        return plane(image)
    pixels = image if image.dtype == numpy.uint8 else image.astype(numpy.float32)
    return numpy.stack([plane(numpy.ascontiguousarray(pixels[:, :, i])) for i in range(image.shape[2])], axis=2)


def affine(image: Image, inverse: tuple[float, ...], width: int, height: int, fill: int) -> Image:
    """The uint8 image of which pixel (x, y) lies at (a x + b y + c, d x + e y + f) of the old one, bilinear."""
    pillow = _pillow()
    pixels = image[:, :, 0] if image.shape[2] == 1 else image
    made = pillow.fromarray(pixels).transform(
        (width, height), pillow.Transform.AFFINE, inverse, pillow.Resampling.BILINEAR,
        fillcolor=fill if image.shape[2] == 1 else (fill,) * 3,
    )  # fmt: skip
    array = numpy.asarray(made)
    return array[:, :, None] if image.shape[2] == 1 else array
