"""Every refusal of an operator, and of operators written as CustomOp and CustomOpProp: its whole text.

The texts stand in ``texts_ops.txt``; how they are recorded: ``recorder.py``.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import arrayexec as ax
from arrayexec import operator, sym
from arrayexec.errors import TypeInferenceError
from arrayexec.ops import elemwise, transposed
from tests.errors.recorder import PACKAGE, Faults, Recorder, checks_of

# Families whose refusals stand in a file of texts of their own.
OTHER_FILES = set("pad order select gather cumsum constant index reduce moments rnn_parameters".split())
OTHER_FILES |= set("conv deconv deform correlation pool pool_legacy unfold resample resize separable windows".split())  # test_conv_errors.py
OTHER_FILES |= set("boxes multibox box_overlap proposal psroi roi roi_align sampler".split())  # test_detection_errors.py
OTHER_FILES |= set("linalg linalg_factor random_draw random_number random_sample".split())  # test_linalg_errors.py
OTHER_FILES |= set("group_norm local_norm ctc heads sequence attention amp rnn rnn_cells".split())
RECORDER = Recorder(
    Path(__file__).parent / "texts_ops.txt",
    [*sorted(p for p in (PACKAGE / "ops").glob("*.py") if p.stem not in OTHER_FILES), PACKAGE / "operator.py"],
    elsewhere={
        "ops/expression.py": {
            "is not in the language of elementwise formulas": "a wrong row of this package's own tables: "
            "tests/ops/test_elemwise.py::test_rows_are_compiled_when_their_names_are_used"
        },
    },
)
case, cases = RECORDER.case, RECORDER.cases

CPU = ax.cpu()
Var = sym.Variable
A, B = Var("a"), Var("b")
DEFORMED = {"spatial_scale": 1, "output_dim": 2, "group_size": 2, "pooled_size": 2}


def bound(symbol: Callable[[], Any], **dims: Any) -> Callable[[], Any]:
    """A case: make the symbol and bind arrays of these dims, which may be 0 or none there."""
    return lambda: symbol().bind(CPU, {name: np.zeros(shape, np.float32) for name, shape in dims.items()})


def refused(symbol: Callable[[], Any], *, types: bool = False, **known: Any) -> Callable[[], Any]:
    """A case: make the symbol, then say what is known of its variables."""
    return lambda: (symbol().infer_type if types else symbol().infer_shape)(**known)


# --- elementwise, broadcasting and reduction -------------------------------------------------------------------------

cases(
    activation_gamma_dims=refused(lambda: sym.LeakyReLU(A, Var("g"), act_type="prelu", name="n"), a=(2, 3), g=(1, 3)),
    elemwise_shapes=refused(lambda: sym.elemwise_add(A, B, name="n"), a=(2, 3), b=(2, 4)),
    batch_moments_rank=refused(lambda: sym._batch_moments(A, name="n"), a=(3,)),
    target_sizes=lambda: sym.GridGenerator(A, transform_type="affine", name="n"),
    sampled_pixels=bound(lambda: sym.BilinearSampler(A, B, name="n"), a=(1, 2, 3, 0), b=(1, 2, 3, 3)),
    elemwise_power=lambda: sym._power(A, B, name="n").bind(
        CPU, {"a": np.array([2], np.int32), "b": np.array([-1], np.int32)}, grad_req="null"
    ).forward(),
    elemwise_type=refused(lambda: sym.sigmoid(A, name="n"), types=True, a="int32"),
    elemwise_bool=refused(lambda: sym.negative(A, name="n"), types=True, a="bool"),
    activation_type=refused(lambda: sym.Activation(A, act_type="tanh", name="n"), types=True, a="int32"),
    elemwise_factor_too_large=refused(lambda: sym._mul_scalar(A, scalar=1e6, name="n"), types=True, a="float16"),
    elemwise_factor_too_small=refused(lambda: sym._div_scalar(A, scalar=1e-9, name="n"), types=True, a="float16"),
    clip_bounds=lambda: sym.clip(A, a_min=2, a_max=0, name="n"),
    density_parameters=refused(lambda: sym._random_pdf_normal(A, B, Var("c"), name="n"), a=(4,), b=(4, 3)),
    dirichlet_parameters=refused(lambda: sym._random_pdf_dirichlet(A, B, name="n"), a=(4,), b=(3, 4)),
    deformed_pooling_channels=refused(
        lambda: sym._contrib_DeformablePSROIPooling(A, B, **DEFORMED, no_trans=True, name="n"), a=(1, 5, 4, 4)
    ),
    deformed_pooling_moves=refused(
        lambda: sym._contrib_DeformablePSROIPooling(A, B, Var("t"), **DEFORMED, name="n"), a=(1, 8, 4, 4), t=(3, 3, 2, 2)
    ),
    histogram_without_range=lambda: sym._histogram(A, bin_cnt=3, name="n"),
    histogram_edges=refused(lambda: sym._histogram(A, B, name="n"), a=(2, 3), b=(1,)),
    ifft_pairs=refused(lambda: sym._contrib_ifft(A, name="n"), a=(2, 3)),
    elemwise_no_class=lambda: elemwise.relv,
    broadcast_dims=refused(lambda: sym.broadcast_add(A, B, name="n"), a=(2, 3), b=(2, 4)),
    broadcast_to_dim=refused(lambda: sym.broadcast_to(A, shape=(2, 4), name="n"), a=(2, 3)),
    broadcast_to_negative=lambda: sym.broadcast_to(A, shape=(2, -1), name="n"),
    broadcast_axis_negative=lambda: sym.broadcast_axis(A, axis=0, size=-1, name="n"),
    broadcast_axis_beyond=refused(lambda: sym.broadcast_axis(A, axis=5, size=2, name="n"), a=(2, 1)),
    broadcast_axis_sizes=refused(lambda: sym.broadcast_axis(A, axis=(0, 1), size=(2,), name="n"), a=(1, 1)),
    sum_like_dims=refused(lambda: sym._sum_like(A, B, name="n"), a=(2, 3), b=(2, 1, 3)),
    gradient_with_a_bias=lambda: sym._gradient_FullyConnected_data(A, num_hidden=3, name="n"),
    gradient_no_class=lambda: transposed.relv,
    unconcat_short=refused(lambda: sym._unconcat(A, B, Var("c"), num_args=2, name="n"), a=(2, 3), b=(2, 4)),
    broadcast_like_one_side=refused(lambda: sym.broadcast_like(A, B, lhs_axes=(0,), name="n"), a=(1, 3), b=(2, 3)),
    broadcast_like_counts=refused(
        lambda: sym.broadcast_like(A, B, lhs_axes=(0,), rhs_axes=(0, 1), name="n"), a=(1, 3), b=(2, 3)
    ),
    reduce_axis=refused(lambda: sym.sum(A, axis=2, name="n"), a=(2, 3)),
    reduce_nothing=bound(lambda: sym.max(A, axis=1, name="n"), a=(2, 0)),
)

# --- constants and random numbers ------------------------------------------------------------------------------------

cases(
    arange_empty=lambda: sym._arange(start=1, stop=0, name="n"),
    arange_repeat=refused(lambda: A + sym._arange(start=0, repeat=2, infer_range=True, name="n"), a=(3,)),
    dropout_probability=lambda: sym.Dropout(A, p=1.5, name="n"),
    dropout_axes=refused(lambda: sym.Dropout(A, axes=(2,), name="n"), a=(2, 3)),
)

# --- layers ----------------------------------------------------------------------------------------------------------


def convolution(**options: Any) -> Any:
    return sym.Convolution(A, name="n", **{"kernel": (3, 3), "num_filter": 4, **options})


def pooling(**options: Any) -> Any:
    return sym.Pooling(A, name="n", **{"kernel": (3, 3), **options})


cases(
    convolution_kernel=lambda: convolution(kernel=(3, 0)),
    convolution_stride_count=lambda: convolution(stride=(1, 1, 1)),
    convolution_pad_value=lambda: convolution(pad=(0, -1)),
    convolution_layout=lambda: convolution(layout="NCW"),
    convolution_groups=lambda: convolution(num_group=3),
    convolution_channels=refused(lambda: convolution(num_group=2), a=(2, 3, 8, 8)),
    convolution_size=refused(convolution, a=(2, 3, 8, 2)),
    pooling_kernel=lambda: pooling(kernel=()),
    pooling_power=lambda: pooling(pool_type="lp"),
    pooling_dims=refused(lambda: pooling(global_pool=True), a=(2, 3)),
    pooling_size=refused(pooling, a=(2, 3, 8, 2)),
    dense_units=lambda: sym.FullyConnected(A, num_hidden=0, name="n"),
    dense_features=refused(
        lambda: sym.FullyConnected(A, Var("w"), no_bias=True, num_hidden=2, name="n"), a=(4, 3, 0), w=(2, 7)
    ),
    batch_dot_dims=refused(lambda: sym.batch_dot(A, B, name="n"), a=(2, 3), b=(2, 3, 4)),
    norm_axis=refused(lambda: sym.BatchNorm(A, axis=2, name="n"), a=(2, 3)),
    embedding_sizes=lambda: sym.Embedding(A, input_dim=0, output_dim=3, name="n"),
    softmax_temperature=lambda: sym.softmax(A, temperature=0, name="n"),
    softmax_type=refused(lambda: sym.softmax(A, dtype="int32", name="n"), types=True, a="float32"),
    softmax_nothing=bound(lambda: sym.softmax(A, name="n"), a=(2, 0)),
    log_softmax_length=lambda: sym.log_softmax(A, use_length=True, name="n"),
    softmax_output_ignored=lambda: sym.SoftmaxOutput(A, B, ignore_label=float("inf"), name="n"),
    softmax_output_label=refused(lambda: sym.SoftmaxOutput(A, B, name="n"), a=(4, 3), b=(4, 1, 1)),
    softmax_output_column=refused(lambda: sym.SoftmaxOutput(A, B, name="n"), a=(4, 3), b=(4, 1)),
    softmax_output_classes=refused(lambda: sym.SoftmaxOutput(A, B, name="n"), a=(4, 3, 2), b=(4, 2)),
    regression_label_dims=bound(lambda: sym.LinearRegressionOutput(A, B, name="n"), a=(4, 3), b=()),
    regression_label_values=refused(lambda: sym.LinearRegressionOutput(A, B, name="n"), a=(4, 3), b=(4, 2)),
)


@pytest.mark.parametrize(
    "symbol",
    [
        sym.Activation(A, act_type="sigmoid"), sym.LeakyReLU(A), sym.BatchNorm(A), sym.Dropout(A), sym.softmax(A),
        sym.log_softmax(A), sym.SoftmaxActivation(A), sym.SoftmaxOutput(A), sym.softmax_cross_entropy(A, B),
        sym.LinearRegressionOutput(A), sym.LogisticRegressionOutput(A), sym.Pooling(A, kernel=(2,), pool_type="avg"),
    ],
    ids=lambda symbol: symbol._heads[0][0].op.form.name,
)  # fmt: skip
def test_what_gives_fractions_refuses_whole_numbers(symbol: Any) -> None:
    with pytest.raises(TypeInferenceError, match="data 'a' must be of a floating type, but it is int8"):
        symbol.infer_type(a="int8")


# --- indices and shapes ----------------------------------------------------------------------------------------------

cases(
    pick_nothing=bound(lambda: sym.pick(A, B, name="n"), a=(2, 0), b=(2,)),
    pick_vector=refused(lambda: sym.pick(A, B, name="n"), a=(3,)),
    take_nothing=bound(lambda: sym.take(A, B, name="n"), a=(0, 2), b=(3,)),
    one_hot_depth=lambda: sym.one_hot(A, depth=0, name="n"),
    one_hot_value=lambda: sym.one_hot(A, depth=3, off_value=-1, dtype="uint8", name="n"),
    reshape_codes=lambda: sym.Reshape(A, shape=(-1, -1), name="n"),
    reshape_dims=refused(lambda: sym.Reshape(A, shape=(0, 0, -1), name="n"), a=(2,)),
    reshape_values=refused(lambda: sym.Reshape(A, shape=(4, 2), name="n"), a=(2, 3)),
    flatten_number=bound(lambda: sym.Flatten(A, name="n"), a=()),
    flatten_values=refused(lambda: sym.Flatten(A, name="n") + B, a=(2, 3, 0), b=(2, 13)),
    expand_dims_axis=refused(lambda: sym.expand_dims(A, axis=3, name="n"), a=(2, 3)),
    transpose_axes=lambda: sym.transpose(A, axes=(0, 0), name="n"),
    transpose_axes_beyond=lambda: sym.transpose(A, axes=(0, 5), name="n"),
    transpose_dims=refused(lambda: sym.transpose(A, axes=(1, 0), name="n"), a=(2, 3, 4)),
    swap_axis=refused(lambda: sym.swapaxes(A, dim1=0, dim2=2, name="n"), a=(2, 3)),
    slice_bounds=lambda: sym.slice(A, begin=(0, 0), end=(1,), name="n"),
    slice_step=lambda: sym.slice(A, begin=(0,), end=(1,), step=(0,), name="n"),
    slice_dims=refused(lambda: sym.slice(A, begin=(0, 0), end=(1, 1), name="n"), a=(2,)),
    slice_nothing=refused(lambda: sym.slice_axis(A, axis=1, begin=3, end=5, name="n"), a=(2, 3)),
    crop_attributes=lambda: sym.Crop(A, num_args=1, offset=(0, -1), name="n"),
    crop_size=lambda: sym.Crop(A, num_args=1, h_w=(-1, 2), name="n"),
    crop_window=refused(lambda: sym.Crop(A, num_args=1, offset=(4, 0), h_w=(2, 2), name="n"), a=(2, 1, 5, 4)),
    concat_axis=refused(lambda: sym.Concat(A, B, dim=2, name="n"), a=(2, 3), b=(2, 3)),
    concat_count=lambda: sym.Concat(A, num_args=0, name="n"),
    concat_out=refused(lambda: sym.Concat(A, B, dim=1, name="n") + Var("c"), a=(2, 3), c=(2, 2)),
    split_outputs=lambda: sym.SliceChannel(A, num_outputs=0, name="n"),
    split_squeezed_dims=refused(
        lambda: sym.SliceChannel(A, num_outputs=2, axis=0, squeeze_axis=True, name="n"), a=(2,)
    ),
    split_parts=refused(lambda: sym.SliceChannel(A, num_outputs=2, name="n"), a=(2, 3)),
    split_axis=refused(lambda: sym.SliceChannel(A, num_outputs=2, axis=2, name="n"), a=(2, 3)),
    split_axis_of_output=refused(lambda: sym.SliceChannel(A, num_outputs=2, axis=2, name="n")[0] + B, b=(2, 3)),
)

# --- operators of users ----------------------------------------------------------------------------------------------


class Copy(operator.CustomOp):
    """Out = data."""

    def forward(self, is_train: Any, req: Any, in_data: Any, out_data: Any, aux: Any) -> None:
        self.assign(out_data[0], req[0], in_data[0])


class CopyProp(operator.CustomOpProp):
    """Describes Copy."""

    def create_operator(self, ctx: Any, in_shapes: Any, in_dtypes: Any) -> Any:
        return Copy()


def custom(run: bool = True, **members: Any) -> Callable[[], Any]:
    """A case: a custom operator of which some members are others."""

    def call() -> Any:
        operator.register("odd")(type("Odd", (CopyProp,), members))
        try:
            symbol = sym.Custom(A, op_type="odd", name="n")
            return symbol.simple_bind(CPU, a=(2, 3)).forward(True)
        finally:
            del operator._REGISTERED["odd"]

    return call


def replaced(self: Any, is_train: Any, req: Any, in_data: Any, out_data: Any, aux: Any) -> None:
    out_data[0] = in_data[0] * 2


def assigned(self: Any, is_train: Any, req: Any, in_data: Any, out_data: Any, aux: Any) -> None:
    self.assign(out_data[0], "wrte", in_data[0])


def made(kind: Any) -> Callable[..., Any]:
    return lambda self, ctx, in_shapes, in_dtypes: kind()


cases(
    custom_unknown=lambda: sym.Custom(A, op_type="arrayexec.Scael", name="n"),
    custom_keyword=lambda: sym.Custom(A, op_type="arrayexec.Scale", bias=2, name="n"),
    custom_no_class=lambda: operator.register("odd")(Copy),
    custom_names=custom(list_outputs=lambda self: ["data"]),
    custom_shapes=custom(infer_shape=lambda self, shapes: (shapes, [])),
    custom_types=custom(infer_type=lambda self, types: types),
    custom_no_operator=custom(create_operator=operator.CustomOpProp.create_operator),
    custom_other_operator=custom(create_operator=made(dict)),
    custom_no_forward=custom(create_operator=made(operator.CustomOp)),
    custom_replaced=custom(create_operator=made(type("Replacing", (Copy,), {"forward": replaced}))),
    custom_request=custom(create_operator=made(type("Assigning", (Copy,), {"forward": assigned}))),
)

# --- the tests -------------------------------------------------------------------------------------------------------


def refused() -> Faults:
    faults = RECORDER.run()
    assert "odd" not in operator.get_all_registered()
    return faults


(
    found, test_text, test_no_text_is_left_over, test_every_refusal_is_reached,
    test_what_is_held_elsewhere_is_there,
) = checks_of(RECORDER, refused)  # fmt: skip
