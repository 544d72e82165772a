"""Rows of the operator benchmark: shapes, indices, reductions, orders, constants, sequences, linear algebra."""

from __future__ import annotations

import numpy as np
from operator_row import ACT, BOXES, WORDS, R, Sample

MATRICES = (64, 64, 64)
IMAGES = (8, 3, 224, 224)
BIASES = (1, 64, 1, 1)
TRIANGLES = "np.tril(A)"
STEPS, LENGTHS = (30, 32, 200), Sample((32,), 1, 30, True)
SCORES = np.random.default_rng(1).permutation(8 * BOXES).reshape(8, BOXES) / 1e5  # no two alike

SHAPES = [
    R("Flatten", "ResNet-50 head", dict(data=(8, 2048, 7, 7))),
    R("Reshape", "ResNet-50 head", dict(data=(8, 2048, 7, 7), shape=(0, -1))),
    R("expand_dims", "ResNet-50 stage 1", dict(data=ACT, axis=1)),
    R("squeeze", "ResNet-50 head", dict(data=(8, 2048, 1, 1))),
    R("reshape_like", "ResNet-50 head", dict(lhs=(8, 2048), rhs=(8, 2048, 1, 1))),
    R("transpose", "SSD-300 head", dict(data=(8, 126, 38, 38), axes=(0, 2, 3, 1)),
      "data.transpose(0, 2, 3, 1).copy()", "dout.transpose(0, 3, 1, 2).copy()",
      "data.permute(0, 2, 3, 1).contiguous()"),
    R("SwapAxis", "LSTM-200", dict(data=(32, 30, 200), dim1=0, dim2=1),
      "data.swapaxes(0, 1).copy()", "dout.swapaxes(0, 1).copy()", "data.swapaxes(0, 1).contiguous()"),
    R("slice", "ResNet-50 input", dict(data=(8, 3, 256, 256), begin=(None, None, 16, 16), end=(None, None, 240, 240)),
      "data[:, :, 16:240, 16:240].copy()",
      "(lambda full: (full.__setitem__((..., np.s_[16:240], np.s_[16:240]), dout), full)[1])(np.zeros_like(data))",
      "data[:, :, 16:240, 16:240].contiguous()"),
    R("slice_axis", "LSTM-200 gates", dict(data=(960, 800), axis=1, begin=200, end=400),
      "data[:, 200:400].copy()", "np.pad(dout, ((0, 0), (200, 400)))", "data[:, 200:400].contiguous()"),
    R("slice_like", "FCN head", dict(data=(8, 21, 256, 256), shape_like=(8, 21, 224, 224)),
      "data[:, :, :224, :224].copy()", "np.pad(dout, ((0, 0), (0, 0), (0, 32), (0, 32)))"),
    R("Crop", "FCN head", dict(arg0=(8, 21, 256, 256), arg1=(8, 21, 224, 224), num_args=2, offset=(16, 16)),
      "arg0[:, :, 16:240, 16:240].copy()", "np.pad(dout, ((0, 0), (0, 0), (16, 16), (16, 16))), np.zeros_like(arg1)"),
    R("_slice_assign", "ResNet-50 input", dict(lhs=(8, 3, 256, 256), rhs=IMAGES, begin=(None, None, 16, 16),
      end=(None, None, 240, 240)),
      "(lambda full: (full.__setitem__((..., np.s_[16:240], np.s_[16:240]), rhs), full)[1])(lhs.copy())",
      "(lambda full: (full.__setitem__((..., np.s_[16:240], np.s_[16:240]), 0), full)[1])(dout.copy()), "
      "dout[:, :, 16:240, 16:240].copy()"),
    R("_slice_assign_scalar", "ResNet-50 input", dict(data=(8, 3, 256, 256), begin=(None, None, 16, 16),
      end=(None, None, 240, 240), scalar=1.0),
      "(lambda full: (full.__setitem__((..., np.s_[16:240], np.s_[16:240]), 1), full)[1])(data.copy())",
      "(lambda full: (full.__setitem__((..., np.s_[16:240], np.s_[16:240]), 0), full)[1])(dout.copy())"),
    R("Concat", "Inception-v3", dict(arg0=(8, 64, 35, 35), arg1=(8, 64, 35, 35), arg2=(8, 96, 35, 35), num_args=3),
      "np.concatenate([arg0, arg1, arg2], 1)", "tuple(part.copy() for part in np.split(dout, [64, 128], 1))",
      "torch.cat([arg0, arg1, arg2], 1)"),
    R("_unconcat", "Inception-v3", dict(head=(8, 224, 35, 35), arg0=(8, 64, 35, 35), arg1=(8, 64, 35, 35),
      arg2=(8, 96, 35, 35), num_args=3), "tuple(part.copy() for part in np.split(head, [64, 128], 1))"),
    R("SliceChannel", "LSTM-200 gates", dict(data=(32, 800), num_outputs=4),
      "tuple(part.copy() for part in np.split(data, 4, 1))"),
    R("_split_v2", "LSTM-200 gates", dict(data=(960, 800), axis=1, indices=(0, 200, 400, 600)),
      "tuple(part.copy() for part in np.split(data, [200, 400, 600], 1))"),
    R("Pad", "ResNet-50 stage 1", dict(data=ACT, mode="constant", pad_width=(0, 0, 0, 0, 1, 1, 1, 1)),
      "np.pad(data, ((0, 0), (0, 0), (1, 1), (1, 1)))", "dout[:, :, 1:-1, 1:-1].copy()", "F.pad(data, (1, 1, 1, 1))"),
    R("Pad", "style transfer", dict(data=ACT, mode="reflect", pad_width=(0, 0, 0, 0, 1, 1, 1, 1)),
      "np.pad(data, ((0, 0), (0, 0), (1, 1), (1, 1)), mode='reflect')", torch="F.pad(data, (1, 1, 1, 1), 'reflect')"),
    R("tile", "SSD-300 anchors", dict(data=(1, BOXES, 4), reps=(8, 1, 1)), "np.tile(data, (8, 1, 1))",
      "dout.sum(0, keepdims=True)", "data.repeat(8, 1, 1)"),
    R("repeat", "FPN on ResNet-50", dict(data=(1, 256, 50, 68), repeats=2, axis=3), "data.repeat(2, 3)",
      "dout.reshape(1, 256, 50, 68, 2).sum(-1)", "data.repeat_interleave(2, 3)"),
    R("reverse", "ResNet-50 input", dict(data=IMAGES, axis=(3,)), "data[..., ::-1].copy()", "dout[..., ::-1].copy()",
      "data.flip(3)"),
    R("stack", "LSTM-200", dict(arg0=(32, 6000), arg1=(32, 6000), num_args=2, axis=1),
      "np.stack([arg0, arg1], 1)", "dout[:, 0].copy(), dout[:, 1].copy()", "torch.stack([arg0, arg1], 1)"),
    R("where", "SSD-300 offsets", dict(condition=Sample((8, 4 * BOXES), 0, 1, True), x=(8, 4 * BOXES),
      y=(8, 4 * BOXES)), "np.where(condition, x, y)", "dout * (condition != 0), dout * (condition == 0)",
      "torch.where(condition != 0, x, y)"),
    R("diag", "transformer base", dict(data=(2048, 2048)), "np.diag(data).copy()",
      "(lambda full: (np.fill_diagonal(full, dout), full)[1])(np.full((2048, 2048), 0, np.float32))"),
    R("Cast", "ResNet-50 stage 1", dict(data=ACT, dtype="float16"), "data.astype(np.float16)",
      "dout.astype(np.float32)", "data.half()"),
    R("amp_cast", "ResNet-50 stage 1", dict(data=ACT, dtype="float16"), "data.astype(np.float16)",
      "dout.astype(np.float32)", "data.half()"),
    R("amp_multicast", "ResNet-50 stage 1", dict(data_0=ACT, data_1=ACT, num_outputs=2),
      "data_0.copy(), data_1.copy()"),
    R("all_finite", "ResNet-50 stage 1", dict(data=ACT), "np.isfinite(data).all()", torch="torch.isfinite(data).all()"),
    R("multi_all_finite", "ResNet-50 weights", dict(array_0=(512, 512, 3, 3), array_1=(2048, 512), num_arrays=2),
      "np.isfinite(array_0).all() and np.isfinite(array_1).all()"),
    R("_scale_gradient", "ResNet-50 stage 1", dict(data=ACT), "data.copy()", "dout * scale"),
    R("cast_storage", "ResNet-50 stage 1", dict(data=ACT, stype="default")),
    R("add_n", "DenseNet-121", dict(arg0=ACT, arg1=ACT, arg2=ACT, num_args=3), "arg0 + arg1 + arg2",
      torch="arg0 + arg1 + arg2"),
    R("broadcast_to", "ResNet-50 stage 1", dict(data=BIASES, shape=ACT), f"np.broadcast_to(data, {ACT}).copy()",
      "dout.sum((0, 2, 3), keepdims=True)", f"data.expand({ACT}).contiguous()"),
    R("broadcast_axis", "ResNet-50 stage 1", dict(data=(1, 64, 56, 56), axis=(0,), size=(8,)),
      f"np.broadcast_to(data, {ACT}).copy()", "dout.sum(0, keepdims=True)", f"data.expand({ACT}).contiguous()"),
    R("broadcast_like", "ResNet-50 stage 1", dict(lhs=BIASES, rhs=ACT), "np.broadcast_to(lhs, rhs.shape).copy()"),
    R("_sum_like", "ResNet-50 stage 1", dict(data=ACT, like=BIASES), "data.sum((0, 2, 3), keepdims=True)",
      f"np.broadcast_to(dout, {ACT}).copy()"),
    R("_identity_with_attr_like_rhs", "ResNet-50 stage 1", dict(lhs=ACT, rhs=ACT)),
    R("zeros_like", "ResNet-50 stage 1", dict(data=ACT), "np.full_like(data, 0)", torch="torch.zeros_like(data)"),
    R("ones_like", "ResNet-50 stage 1", dict(data=ACT), "np.ones_like(data)", torch="torch.ones_like(data)"),
    R("_zeros", "ResNet-50 stage 1", dict(shape=ACT), f"np.full({ACT}, 0, np.float32)"),
    R("_zeros_without_dtype", "ResNet-50 stage 1", dict(shape=ACT), f"np.full({ACT}, 0, np.float32)"),
    R("_ones", "ResNet-50 stage 1", dict(shape=ACT), f"np.ones({ACT}, np.float32)"),
    R("_full", "ResNet-50 stage 1", dict(shape=ACT, value=2.5), f"np.full({ACT}, 2.5, np.float32)"),
    R("_arange", "LSTM-200 vocabulary", dict(start=0.0, stop=100000.0), "np.arange(0.0, 100000.0).astype(np.float32)"),
    R("_contrib_arange_like", "transformer base", dict(data=(1024, 512)),
      "np.arange(1024.0 * 512).astype(np.float32).reshape(1024, 512)"),
    R("_linspace", "LSTM-200 vocabulary", dict(start=0.0, stop=1.0, num=100000),
      "np.linspace(0, 1, 100000, dtype=np.float32)"),
    R("_eye", "transformer base", dict(N=1024),
      "(lambda full: (np.fill_diagonal(full, 1), full)[1])(np.full((1024, 1024), 0, np.float32))"),
    R("shape_array", "ResNet-50 stage 1", dict(data=ACT), "np.array(data.shape)"),
    R("size_array", "ResNet-50 stage 1", dict(data=ACT), "np.array([data.size])"),
]  # fmt: skip


def _reduction(name: str, numpy: str, back: str = "", torch: str = "", low: float = -1.0) -> list[R]:
    """A reduction over images and places, one over classes, one over all."""
    rows = []
    for use, shape, axis in (
        ("ResNet-50 stage 1", ACT, (0, 2, 3)), ("ResNet-50 head", (8, 2048, 7, 7), (2, 3)),
        ("LSTM-200 output", WORDS, (1,)), ("ResNet-50 stage 1, all", ACT, None),
    ):  # fmt: skip
        texts = [text.format(axis=axis, wide="dout" if axis is None else f"np.expand_dims(dout, {axis})",
                             out="out" if axis is None else f"np.expand_dims(out, {axis})", shape=shape)
                 for text in (numpy, back, torch)]  # fmt: skip
        values = dict(data=Sample(shape, low, 1.0)) | ({} if axis is None else dict(axis=axis))
        rows.append(R(name, use, values, *texts))
    return rows


SPREAD = "np.broadcast_to({wide}, data.shape)"
REDUCTIONS = [
    *_reduction("sum", "data.sum({axis})", SPREAD + ".copy()", "data.sum({axis})"),
    *_reduction("mean", "data.mean({axis})", SPREAD + " * (dout.size / data.size)", "data.mean({axis})"),
    *_reduction("prod", "data.prod({axis})", "{wide} * {out} / data", low=0.9),
    *_reduction("nansum", "np.nansum(data, {axis})", SPREAD + " * ~np.isnan(data)", "data.nansum({axis})"),
    *_reduction("nanprod", "np.nanprod(data, {axis})", "np.nan_to_num({wide} * {out} / data)", low=0.9),
    *_reduction("max", "data.max({axis})", "{wide} * (data == {out})", "data.amax({axis})"),
    *_reduction("min", "data.min({axis})", "{wide} * (data == {out})", "data.amin({axis})"),
    *_reduction("norm", "np.sqrt((data * data).sum({axis}))", "{wide} / {out} * data",
                "torch.linalg.vector_norm(data, 2, {axis})"),
    *_reduction("_square_sum", "(data * data).sum({axis})", "2 * data * {wide}"),
    R("argmax", "LSTM-200 output", dict(data=WORDS, axis=1), "data.argmax(1)", torch="data.argmax(1)"),
    R("argmin", "LSTM-200 output", dict(data=WORDS, axis=1), "data.argmin(1)", torch="data.argmin(1)"),
    R("argmax", "SSD-300 classes", dict(data=(8, 21, BOXES), axis=1), "data.argmax(1)", torch="data.argmax(1)"),
    R("argmax_channel", "SSD-300 classes", dict(data=(8, 21, BOXES)), "data.argmax(1)", torch="data.argmax(1)"),
    R("_np_cumsum", "LSTM-200 output", dict(a=WORDS, axis=1), "a.cumsum(1)",
      "dout[:, ::-1].cumsum(1)[:, ::-1]", "a.cumsum(1)"),
    R("_histogram", "ResNet-50 stage 1, all", dict(data=ACT, bin_cnt=64, range=(-1.0, 1.0)),
      "np.histogram(data, np.linspace(-1, 1, 65, dtype=np.float32))[0]", torch="torch.histc(data, 64, -1, 1)"),
    R("_contrib_allclose", "ResNet-50 stage 1", dict(a=ACT, b=ACT), "np.allclose(a, b)"),
    R("multi_sum_sq", "ResNet-50 weights", dict(array_0=(512, 512, 3, 3), array_1=(2048, 512), num_arrays=2),
      "np.array([(array_0 * array_0).sum(), (array_1 * array_1).sum()])"),
    R("_contrib_fft", "compact bilinear pooling", dict(data=(128, 8000)),
      "(lambda f: np.stack([f.real, f.imag], -1).reshape(128, 16000))(np.fft.fft(data))",
      "np.fft.ifft(dout[:, ::2] + 1j * dout[:, 1::2]).real * 8000", "torch.view_as_real(torch.fft.fft(data))"),
    R("_contrib_ifft", "compact bilinear pooling", dict(data=(128, 16000)),
      "np.fft.ifft(data[:, ::2] + 1j * data[:, 1::2]).real * 8000",
      "(lambda f: np.stack([f.real, f.imag], -1).reshape(128, 16000))(np.fft.fft(dout))"),
    R("topk", "ResNet-50 output", dict(data=(256, 1000), k=5, ret_typ="value"),
      "np.take_along_axis(data, np.argsort(-data, 1)[:, :5], 1)", torch="data.topk(5, 1).values"),
    R("topk", "LSTM-200 beam", dict(data=(32, 10000), k=10), "np.argsort(-data, 1)[:, :10]",
      torch="data.topk(10).indices"),
    R("sort", "SSD-300 scores", dict(data=SCORES), "np.sort(data, 1)", torch="data.sort(1).values"),
    R("argsort", "SSD-300 scores", dict(data=SCORES), "np.argsort(data, 1)", torch="data.argsort(1)"),
]  # fmt: skip

LABELS = Sample((320,), 0, 9999, True)
PLACES = np.stack([np.arange(320) % 32, np.arange(320) % 30]).astype(np.float32)
INDICES = [
    R("take", "LSTM-200", dict(a=(10000, 200), indices=Sample((32, 30), 0, 9999, True)),
      "a[indices.astype(int)]", "peers.rows_added(np, dout, indices, a)", "F.embedding(indices.long(), a)"),
    R("pick", "LSTM-200 output", dict(data=WORDS, index=LABELS),
      "data[np.arange(320), index.astype(int).clip(0, 9999)]", "peers.one_added(np, dout, data, index)",
      "data.gather(1, index.long()[:, None])[:, 0]"),
    R("batch_take", "LSTM-200 output", dict(a=WORDS, indices=LABELS),
      "a[np.arange(320), indices.astype(int).clip(0, 9999)]", "peers.one_added(np, dout, a, indices)",
      "a.gather(1, indices.long()[:, None])[:, 0]"),
    R("one_hot", "LSTM-200 output", dict(indices=LABELS, depth=10000),
      "peers.one_added(np, 1, np.empty((320, 10000), np.float32), indices)",
      torch="F.one_hot(indices.long(), 10000).float()"),
    R("fill_element_0index", "LSTM-200 output", dict(lhs=WORDS, mhs=(320,), rhs=LABELS),
      "(lambda full: (full.__setitem__((np.arange(320), rhs.astype(int)), mhs), full)[1])(lhs.copy())"),
    R("gather_nd", "LSTM-200", dict(data=(32, 30, 200), indices=PLACES), "data[tuple(indices.astype(int))]",
      "peers.added_at(np, dout, data.shape, indices)"),
    R("scatter_nd", "LSTM-200", dict(data=(320, 200), indices=PLACES, shape=(32, 30, 200)),
      "(lambda full: (full.__setitem__(tuple(indices.astype(int)), data), full)[1])"
      "(np.full((32, 30, 200), 0, np.float32))",
      "dout[tuple(indices.astype(int))]"),
    R("_scatter_set_nd", "LSTM-200", dict(lhs=(32, 30, 200), rhs=(320, 200), indices=PLACES, shape=(32, 30, 200)),
      "(lambda full: (full.__setitem__(tuple(indices.astype(int)), rhs), full)[1])(lhs.copy())"),
    R("_contrib_index_copy", "LSTM-200", dict(old_tensor=(10000, 200), index_vector=np.arange(0, 9600, 10.0),
      new_tensor=(960, 200)),
      "(lambda full: (full.__setitem__(index_vector.astype(int), new_tensor), full)[1])(old_tensor.copy())"),
    R("_contrib_index_array", "SSD-300 conv4_3", dict(data=(8, 38, 38)),
      "np.stack(np.meshgrid(np.arange(8), np.arange(38), np.arange(38), indexing='ij'), -1)"),
    R("_ravel_multi_index", "SSD-300 conv4_3", dict(data=Sample((2, 8 * BOXES), 0, 37, True), shape=(38, 38)),
      "np.ravel_multi_index(tuple(data.astype(int)), (38, 38)).astype(np.float32)"),
    R("_unravel_index", "SSD-300 conv4_3", dict(data=Sample((8 * BOXES,), 0, 1443, True), shape=(38, 38)),
      "np.stack(np.unravel_index(data.astype(int), (38, 38))).astype(np.float32)"),
    R("SequenceMask", "LSTM-200", dict(data=STEPS, sequence_length=LENGTHS, use_sequence_length=True),
      "data * (np.arange(30)[:, None] < sequence_length)[..., None]",
      "dout * (np.arange(30)[:, None] < sequence_length)[..., None], np.zeros(32)"),
    R("SequenceLast", "LSTM-200", dict(data=STEPS, sequence_length=LENGTHS, use_sequence_length=True),
      "data[sequence_length.astype(int).clip(1, 30) - 1, np.arange(32)]"),
    R("SequenceReverse", "LSTM-200", dict(data=STEPS, sequence_length=LENGTHS, use_sequence_length=True),
      "(lambda i: data[np.where(i < sequence_length, sequence_length - 1 - i, i).astype(int), "
      "np.arange(32)])(np.arange(30)[:, None])"),
]  # fmt: skip

TRIANGULAR = {"A": Sample(MATRICES, 0.5, 1.5), "B": MATRICES}
WELL = np.eye(64, dtype=np.float32) * 64 + np.cos(np.add.outer(np.arange(64), np.arange(64))).astype(np.float32)
POSITIVE = np.repeat(WELL[None], 64, 0)
LINEAR_ALGEBRA = [
    R("dot", "LSTM-200 output", dict(lhs=(320, 200), rhs=(200, 10000)), "lhs @ rhs", "dout @ rhs.T, lhs.T @ dout",
      "lhs @ rhs"),
    R("batch_dot", "transformer base", dict(lhs=(64, 128, 64), rhs=(64, 128, 64), transpose_b=True),
      "lhs @ rhs.transpose(0, 2, 1)", "dout @ rhs, dout.transpose(0, 2, 1) @ lhs", "lhs @ rhs.transpose(1, 2)"),
    R("_linalg_gemm", "transformer base", dict(A=(64, 128, 64), B=(64, 64, 128), C=(64, 128, 128)),
      "A @ B + C", "dout @ B.transpose(0, 2, 1), A.transpose(0, 2, 1) @ dout, dout.copy()", "A @ B + C"),
    R("_linalg_gemm2", "transformer base", dict(A=(64, 128, 64), B=(64, 64, 128)),
      "A @ B", "dout @ B.transpose(0, 2, 1), A.transpose(0, 2, 1) @ dout", "A @ B"),
    R("_linalg_syrk", "style transfer", dict(A=(8, 64, 3136)), "A @ A.transpose(0, 2, 1)",
      "(dout + dout.transpose(0, 2, 1)) @ A", "A @ A.transpose(1, 2)"),
    R("khatri_rao", "factor model", dict(arg0=(64, 64), arg1=(128, 64), num_args=2),
      "(arg0[:, None] * arg1[None]).reshape(-1, 64)",
      "(lambda d: ((d * arg1).sum(1), (d * arg0[:, None]).sum(0)))(dout.reshape(64, 128, 64))"),
    R("_linalg_extractdiag", "Gaussian process", dict(A=MATRICES), "np.diagonal(A, axis1=1, axis2=2).copy()"),
    R("_linalg_makediag", "Gaussian process", dict(A=(64, 64)), "A[:, None] * np.eye(64, dtype=np.float32)"),
    R("_linalg_extracttrian", "Gaussian process", dict(A=MATRICES), "A[:, *np.tril_indices(64)]"),
    R("_linalg_maketrian", "Gaussian process", dict(A=(64, 2080)),
      "(lambda full: (full.__setitem__((np.s_[:], *np.tril_indices(64)), A), full)[1])"
      "(np.zeros((64, 64, 64), np.float32))"),
    R("_linalg_trmm", "Gaussian process", TRIANGULAR, f"{TRIANGLES} @ B",
      "np.tril(dout @ B.transpose(0, 2, 1)), np.tril(A).transpose(0, 2, 1) @ dout", "A.tril() @ B"),
    R("_linalg_trsm", "Gaussian process", {"A": POSITIVE, "B": MATRICES}, f"np.linalg.solve({TRIANGLES}, B)",
      torch="torch.linalg.solve_triangular(A, B, upper=False)"),
    R("_linalg_potrf", "Gaussian process", {"A": POSITIVE}, "np.linalg.cholesky(A)", torch="torch.linalg.cholesky(A)"),
    R("_linalg_potri", "Gaussian process", {"A": POSITIVE},
      "np.linalg.inv(np.tril(A) @ np.tril(A).transpose(0, 2, 1))"),
    R("_linalg_inverse", "Gaussian process", {"A": POSITIVE}, "np.linalg.inv(A)", torch="torch.linalg.inv(A)"),
    R("_linalg_det", "Gaussian process", {"A": POSITIVE / 60}, "np.linalg.det(A)", torch="torch.linalg.det(A)"),
    R("_linalg_slogdet", "Gaussian process", {"A": POSITIVE}, "np.linalg.slogdet(A)",
      torch="tuple(torch.linalg.slogdet(A))"),
    R("_linalg_sumlogdiag", "Gaussian process", {"A": POSITIVE}, "np.log(np.diagonal(A, axis1=1, axis2=2)).sum(1)"),
    R("_linalg_gelqf", "Gaussian process", dict(A=(64, 32, 64)),
      "[part.transpose(0, 2, 1).copy() for part in np.linalg.qr(A.transpose(0, 2, 1))]", same=False),
    R("_linalg_syevd", "Gaussian process", {"A": POSITIVE}, "np.linalg.eigh(A)", same=False),
]  # fmt: skip
