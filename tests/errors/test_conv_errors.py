"""Every refusal of deconvolution, pooling, up-sampling and the other operators that move values between places.

The texts stand in ``texts_conv.txt``; how they are recorded: ``recorder.py``.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from arrayexec import cpu, sym
from tests.errors.recorder import PACKAGE, Recorder, checks_of

FILES = ("windows", "conv", "deconv", "resample", "separable", "resize", "deform", "correlation", "pool", "pool_legacy", "unfold")
RECORDER = Recorder(Path(__file__).parent / "texts_conv.txt", [PACKAGE / "ops" / f"{name}.py" for name in FILES])
cases = RECORDER.cases

Var = sym.Variable
A = Var("a")


def refused(symbol: Callable[[], Any], **known: Any) -> Callable[[], Any]:
    """A case: make the symbol, then say what is known of its variables."""
    return lambda: symbol().infer_shape(**known)


def deconvolution(**options: Any) -> Any:
    return sym.Deconvolution(A, name="n", **{"kernel": (3, 3), "num_filter": 4, **options})


cases(
    unfold_kernel=lambda: sym.im2col(A, kernel=(2, 2, 2, 2), name="n"),
    unfold_output=lambda: sym.col2im(A, output_size=(), kernel=(3, 3), name="n"),
    unfold_size=refused(lambda: sym.im2col(A, kernel=(3, 3), name="n"), a=(1, 2, 2, 4)),
    unfold_channels=refused(lambda: sym.col2im(A, output_size=(4, 4), kernel=(3, 3), name="n"), a=(1, 10, 4)),
)

cases(
    conv_groups=lambda: sym.Convolution(A, kernel=(3, 3), num_filter=4, num_group=3, name="n"),
    conv_tune=lambda: sym.Convolution(A, kernel=(3, 3), num_filter=4, cudnn_tune="fast", name="n"),
    conv_channels=refused(
        lambda: sym.Convolution(A, kernel=(3, 3), num_filter=4, num_group=2, name="n"), a=(2, 3, 8, 8)
    ),
    conv_size=refused(lambda: sym.Convolution(A, kernel=(3, 3), num_filter=4, name="n"), a=(2, 3, 8, 2)),
)

cases(
    deconvolution_kernel=lambda: deconvolution(kernel=(3, 0)),
    deconvolution_stride=lambda: deconvolution(stride=(1, 1, 1)),
    deconvolution_layout=lambda: deconvolution(layout="NCW"),
    deconvolution_adj=lambda: deconvolution(stride=(2, 2), adj=(1, 2)),
    deconvolution_target=lambda: deconvolution(target_shape=(4, 0)),
    deconvolution_groups=lambda: deconvolution(num_group=3),
    deconvolution_word=lambda: deconvolution(target=(4, 4)),
    deconvolution_channels=refused(lambda: deconvolution(num_group=2), a=(2, 3, 8, 8)),
    deconvolution_nothing=lambda: deconvolution().bind(
        cpu(), {"a": np.zeros((2, 3, 0, 2), np.float32), "n_weight": np.zeros((3, 4, 3, 3), np.float32)}
    ),
    deconvolution_too_short=refused(lambda: deconvolution(target_shape=(10, 11)), a=(2, 3, 8, 8)),
    deconvolution_nothing_left=refused(lambda: deconvolution(pad=(2, 0)), a=(2, 3, 2, 8)),
)


def upsampling(*inputs: Any, **options: Any) -> Any:
    return sym.UpSampling(*inputs, name="n", **{"scale": 2, "sample_type": "nearest", **options})


cases(
    upsampling_scale=lambda: upsampling(A, scale=0),
    upsampling_type=lambda: upsampling(A, sample_type="cubic"),
    upsampling_divides=refused(lambda: upsampling(A, Var("b")), a=(1, 6, 2, 3), b=(1, 6, 3, 3)),
    upsampling_channels=refused(lambda: upsampling(A, Var("b")) + Var("c"), b=(1, 6, 2, 2), c=(1, 6, 4, 4)),
    upsampling_nothing=lambda: upsampling(A).bind(cpu(), {"a": np.zeros((2, 3, 8, 0), np.float32)}),
    upsampling_filters=refused(lambda: upsampling(A, sample_type="bilinear", num_filter=3), a=(1, 6, 2, 3)),
    depth_to_space_block=lambda: sym.depth_to_space(A, block_size=0, name="n"),
    depth_to_space_channels=refused(lambda: sym.depth_to_space(A, block_size=2, name="n"), a=(1, 6, 2, 2)),
    space_to_depth_dim=refused(lambda: sym.space_to_depth(A, block_size=2, name="n"), a=(1, 6, 2, 3)),
)


def pooling(**options: Any) -> Any:
    return sym.Pooling(A, name="n", **{"kernel": (3, 3), **options})


cases(
    pool_kernel=lambda: pooling(kernel=()),
    pool_power=lambda: pooling(pool_type="lp"),
    pool_dims=refused(lambda: pooling(global_pool=True), a=(2, 3)),
    pool_size=refused(pooling, a=(2, 3, 8, 2)),
    pool_no_place=lambda: pooling(global_pool=True).bind(cpu(), {"a": np.zeros((2, 3, 8, 0), np.float32)}),
    pool_v1_kernel=lambda: sym.Pooling_v1(A, kernel=(2,), name="n"),
    pool_v1_stride=lambda: sym.Pooling_v1(A, kernel=(2, 2), stride=(0, 1), name="n"),
    pool_v1_word=lambda: sym.Pooling_v1(A, kernel=(2, 2), p_value=2, name="n"),
)


def resize(**options: Any) -> Any:
    return sym._contrib_BilinearResize2D(A, name="n", **options)


cases(
    resize_height=lambda: resize(height=0),
    resize_odd_scale=lambda: resize(mode="odd_scale", scale_height=2.0),
    resize_mode=lambda: resize(mode="simple"),
    resize_to_nothing=refused(lambda: resize(scale_height=0.2), a=(1, 1, 3, 3)),
    means_size=lambda: sym._contrib_AdaptiveAvgPooling2D(A, output_size=(1, 2, 3), name="n"),
)


def deformable(**options: Any) -> Any:
    return sym._contrib_DeformableConvolution(A, Var("o"), name="n", **{"kernel": (3, 3), "num_filter": 4, **options})


cases(
    deformable_kernel=lambda: deformable(kernel=(3,)),
    deformable_layout=lambda: deformable(layout="NHWC"),
    deformable_groups=lambda: deformable(num_deformable_group=0),
    deformable_channels=refused(lambda: deformable(num_group=2), a=(1, 3, 4, 4)),
    deformable_size=refused(deformable, a=(1, 3, 4, 2)),
    deformable_offset=refused(deformable, a=(1, 3, 4, 4), o=(1, 9, 2, 2)),
)

cases(
    correlation_kernel=lambda: sym.Correlation(A, Var("b"), kernel_size=2, name="n"),
    correlation_stride=lambda: sym.Correlation(A, Var("b"), stride2=0, name="n"),
    correlation_size=refused(lambda: sym.Correlation(A, Var("b"), name="n"), a=(1, 1, 3, 2)),
)

(
    found, test_text, test_no_text_is_left_over, test_every_refusal_is_reached,
    test_what_is_held_elsewhere_is_there,
) = checks_of(RECORDER)  # fmt: skip
