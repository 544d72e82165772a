"""What `ImageRecordIter` does to every image, under MXNet's names of options."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy

from ..errors import AttributeValueError, near_miss
from .augment import (
    PCA_VALUES,
    PCA_VECTORS,
    ColorJitterAug,
    LightingAug,
    SequentialAug,
    fixed_crop,
    imresize,
    random_size_crop,
    resize_short,
    stream,
)
from .image_codec import Image, affine

_HINTS = ("aug_seq", "ctx", "device_id", "shuffle_chunk_seed", "shuffle_chunk_size", "verbose")
"""Options that change nothing here: they are for other machinery."""


@dataclasses.dataclass
class _Options:
    resize: int = -1
    rand_crop: bool = False
    random_resized_crop: bool = False
    max_rotate_angle: int = 0
    rotate: int = -1
    max_aspect_ratio: float = 0.0
    min_aspect_ratio: float | None = None
    max_shear_ratio: float = 0.0
    max_crop_size: int = -1
    min_crop_size: int = -1
    max_random_scale: float = 1.0
    min_random_scale: float = 1.0
    max_random_area: float = 1.0
    min_random_area: float = 1.0
    max_img_size: float = 1e10
    min_img_size: float = 0.0
    brightness: float = 0.0
    contrast: float = 0.0
    saturation: float = 0.0
    pca_noise: float = 0.0
    fill_value: int = 255
    inter_method: int = 1
    pad: int = 0
    mirror: bool = False
    rand_mirror: bool = False
    mean_r: float = 0.0
    mean_g: float = 0.0
    mean_b: float = 0.0
    std_r: float = 1.0
    std_g: float = 1.0
    std_b: float = 1.0
    scale: float = 1.0
    max_random_contrast: float = 0.0
    max_random_illumination: float = 0.0


_KNOWN = [field.name for field in dataclasses.fields(_Options)]


class RecordAugment:
    """Resize, turn, pad, crop, colour, mirror and normalise an image, in this order.

    ``resize`` gives the shorter edge a length. ``max_rotate_angle`` or ``rotate`` (degrees), ``max_shear_ratio``,
    ``min_/max_random_scale``, ``min_/max_aspect_ratio`` turn and stretch it, with ``fill_value`` around.
    ``pad`` puts a border on. The crop has the size of ``data_shape``: in the middle, at random
    (``rand_crop``), a square of ``min_/max_crop_size`` resized, or (``random_resized_crop``) a share
    ``min_/max_random_area`` resized; an image that is too small is enlarged before. ``brightness``,
    ``contrast``, ``saturation`` and ``pca_noise`` change colours, ``mirror`` and ``rand_mirror`` the
    sides. At last ``(image · c + i - mean) · scale / std`` with ``mean_r … std_b`` and c, i drawn from
    1 ± ``max_random_contrast``, ± ``max_random_illumination``. uint8 and int8 (less 128) are not normalised.

    Raises AttributeValueError for options that are unknown or that the type does not have.
    """

    def __init__(self, who: str, data_shape: tuple[int, int, int], dtype: numpy.dtype[Any], **options: Any) -> None:
        self.channels, self.height, self.width = data_shape
        self.dtype = dtype
        if dtype.name not in ("float32", "float16", "float64", "uint8", "int8"):
            raise AttributeValueError(f"{who}: dtype must be a float, uint8 or int8, but it is {dtype}")
        for name in options:
            if name not in _KNOWN and name not in _HINTS:
                raise AttributeValueError(f"{who}: there is no option {name!r}{near_miss(name, _KNOWN)}")
        self.options = o = _Options(**{name: value for name, value in options.items() if name not in _HINTS})
        means, stds = (o.mean_r, o.mean_g, o.mean_b), (o.std_r, o.std_g, o.std_b)
        if not all(stds):
            raise AttributeValueError(f"{who}: std_r, std_g and std_b must not be 0, but they are {stds}")
        self.mean: Any = numpy.array(means[: self.channels], numpy.float32) if any(means) else None
        self.factor = numpy.float32(o.scale) / numpy.array(stds[: self.channels], numpy.float32)
        self._illuminated = bool(o.max_random_contrast or o.max_random_illumination)
        self._normalised = self.mean is not None or bool((self.factor != 1).any()) or self._illuminated
        if self._normalised:
            self.needs_float(who)
        self._warped = bool(
            o.max_rotate_angle or o.rotate > 0 or o.max_shear_ratio
            or (o.max_aspect_ratio and not o.random_resized_crop)
            or (not o.random_resized_crop and (o.min_random_scale, o.max_random_scale) != (1.0, 1.0))
        )  # fmt: skip
        jitter = ColorJitterAug(o.brightness, o.contrast, o.saturation)
        self._colours = SequentialAug([jitter] if jitter.ts else [])
        if o.pca_noise and self.channels == 3:
            self._colours.ts.append(LightingAug(o.pca_noise, PCA_VALUES, PCA_VECTORS))

    def needs_float(self, who: str) -> None:
        """Refuse a mean, a scale and the like for images of whole numbers."""
        if self.dtype.kind != "f":
            raise AttributeValueError(
                f"{who}: images of {self.dtype} are not normalised: leave mean, std and scale away"
            )

    def __call__(self, image: Image) -> Any:
        """The image (height, width, channels) of ``data_shape``, normalised."""
        o = self.options
        if o.resize > 0:
            image = resize_short(image, o.resize, o.inter_method)
        if self._warped:
            image = self._warp(image)
        if o.pad > 0:
            image = numpy.pad(image, ((o.pad, o.pad), (o.pad, o.pad), (0, 0)), constant_values=o.fill_value)
        image = self._cropped(image)
        if self._colours.ts:
            image = numpy.clip(self._colours(image.astype(numpy.float32)), 0, 255)
            image = image if self.dtype.kind == "f" else numpy.rint(image).astype(numpy.uint8)
        if o.mirror or (o.rand_mirror and stream().random() < 0.5):
            image = image[:, ::-1]
        if self.dtype == numpy.int8:
            return image.view(numpy.int8) ^ numpy.int8(-128)  # less 128
        return image if self.mean is None and not self._normalised else self._normal(image)

    def _normal(self, image: Image) -> Any:
        o = self.options
        out = image.astype(numpy.float32)
        if self._illuminated:
            draw = stream()
            out *= numpy.float32(1 + draw.uniform(-o.max_random_contrast, o.max_random_contrast))
            out += numpy.float32(draw.uniform(-o.max_random_illumination, o.max_random_illumination))
        if self.mean is not None:
            out -= self.mean
        out *= self.factor
        return out

    def _aspect(self) -> tuple[float, float]:
        o = self.options
        if o.min_aspect_ratio is None:
            return max(1 - o.max_aspect_ratio, 1e-3), 1 + o.max_aspect_ratio
        return o.min_aspect_ratio, max(o.max_aspect_ratio, o.min_aspect_ratio)

    def _warp(self, image: Image) -> Image:
        o, draw = self.options, stream()
        height, width = image.shape[:2]
        shear = draw.uniform(-o.max_shear_ratio, o.max_shear_ratio)
        angle = o.rotate if o.rotate > 0 else draw.integers(-o.max_rotate_angle, o.max_rotate_angle + 1)
        cos, sin = numpy.cos(numpy.deg2rad(angle)), numpy.sin(numpy.deg2rad(angle))
        scale = 1.0 if o.random_resized_crop else draw.uniform(o.min_random_scale, o.max_random_scale)
        ratio = 1.0 if o.random_resized_crop or not o.max_aspect_ratio else draw.uniform(*self._aspect())
        tall = 2 * scale / (1 + ratio)
        wide = ratio * tall
        forward = numpy.array(
            [[tall * cos - shear * sin * wide, tall * sin + shear * cos * wide], [-sin * wide, cos * wide]]
        )
        new = [max(1, int(max(o.min_img_size, min(o.max_img_size, scale * side)))) for side in (width, height)]
        back = numpy.linalg.inv(forward)
        shift = (numpy.array([width, height]) - back @ numpy.array(new)) / 2  # middle stays in the middle
        inverse = (back[0, 0], back[0, 1], shift[0], back[1, 0], back[1, 1], shift[1])
        return affine(image, tuple(map(float, inverse)), new[0], new[1], o.fill_value)

    def _cropped(self, image: Image) -> Image:
        o, size = self.options, (self.width, self.height)
        if o.random_resized_crop:
            area = (o.min_random_area, o.max_random_area)
            return random_size_crop(image, size, area, self._aspect(), o.inter_method)[0]
        height, width = image.shape[:2]
        if o.max_crop_size > 0 or o.min_crop_size > 0:
            least, most = max(o.min_crop_size, 1), min(max(o.max_crop_size, o.min_crop_size), height, width)
            side = int(stream().integers(min(least, most), most + 1))
            x0, y0 = self._corner(width - side, height - side)
            return fixed_crop(image, x0, y0, side, side, size, o.inter_method)
        if height < self.height or width < self.width:
            grown = max(self.height / height, self.width / width)
            width, height = max(round(width * grown), self.width), max(round(height * grown), self.height)
            image = imresize(image, width, height, o.inter_method)
        x0, y0 = self._corner(width - self.width, height - self.height)
        return fixed_crop(image, x0, y0, self.width, self.height)

    def _corner(self, spare_width: int, spare_height: int) -> tuple[int, int]:
        if self.options.rand_crop:
            draw = stream()
            return int(draw.integers(spare_width + 1)), int(draw.integers(spare_height + 1))
        return spare_width // 2, spare_height // 2
