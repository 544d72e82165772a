"""Rows of the operator benchmark: layers, losses, attention, detection, random numbers, in the sizes of their use.

ACT is an activation of ResNet-50, batch 8; WORDS the logits of LSTM-200, 10 steps of 32 sentences; BOXES the anchors of
SSD-300. See :mod:`operator_row` for what a row says.
"""

from __future__ import annotations

import numpy as np
import operator_peers as peers
from operator_row import ACT, BOXES, WORDS, R, Sample

TRUTH = Sample((8, 12, 5), 0.0, 1.0)
NORMED = "(data - data.mean({axes}, keepdims=True)) / np.sqrt(data.var({axes}, keepdims=True) + {eps})"


def _normed(axes: str, eps: float, shape: str) -> str:
    return f"{NORMED.format(axes=axes, eps=eps)} * gamma.reshape({shape}) + beta.reshape({shape})"


CONV = {
    "numpy": "np.einsum('nchwij,ocij->nohw', windows(np.pad(data, ((0, 0), (0, 0), (1, 1), (1, 1))), (3, 3), (2, 3)), "
    "weight, optimize=True)",
    "torch": "F.conv2d(data, weight, padding=1)",
}
STEM_POOL = dict(data=(8, 64, 112, 112), kernel=(3, 3), stride=(2, 2), pad=(1, 1), pool_type="max")
POOLED = {
    "numpy": "windows(np.pad(data, ((0, 0), (0, 0), (1, 1), (1, 1)), constant_values=-np.inf), (3, 3), (2, 3))"
    "[:, :, ::2, ::2].max((4, 5))",
    "torch": "F.max_pool2d(data, 3, 2, 1)",
}
BATCH_NORM = {
    "numpy": _normed("(0, 2, 3)", 1e-3, "1, -1, 1, 1"),
    "back": "peers.batch_norm_backward(np, dout, data, gamma, 1e-3)",
    "torch": "F.batch_norm(data, None, None, gamma, beta, training=True, eps=1e-3)",
}
SOFTMAX = "(lambda e: e / e.sum(-1, keepdims=True))(np.exp({data} - {data}.max(-1, keepdims=True)))"
SOFTMAX_BACK = "{sign}out * (dout - (dout * out).sum(-1, keepdims=True))"
ATTENTION = (128, 8, 1536)

LAYERS = [
    R("Activation", "ResNet-50 stage 1", dict(data=ACT, act_type="relu"),
      "np.maximum(data, 0)", "dout * (out > 0)", "F.relu(data)"),
    R("Activation", "LSTM-200 gates", dict(data=(32, 800), act_type="sigmoid"),
      "1 / (1 + np.exp(-data))", "dout * out * (1 - out)", "torch.sigmoid(data)"),
    R("Activation", "LSTM-200 gates", dict(data=(32, 200), act_type="tanh"),
      "np.tanh(data)", "dout * (1 - out * out)", "torch.tanh(data)"),
    R("Activation", "ResNet-50 stage 1", dict(data=ACT, act_type="softrelu"),
      "np.logaddexp(data, 0)", "-dout * np.expm1(-out)", "F.softplus(data)"),
    R("LeakyReLU", "DCGAN discriminator", dict(data=ACT, slope=0.2),
      "np.where(data > 0, data, 0.2 * data)", "np.where(data > 0, dout, 0.2 * dout)", "F.leaky_relu(data, 0.2)"),
    R("LeakyReLU", "ArcFace ResNet-50", dict(data=ACT, act_type="prelu"),
      "np.where(data > 0, data, gamma.reshape(1, -1, 1, 1) * data)",
      "np.where(data > 0, dout, gamma.reshape(1, -1, 1, 1) * dout), (dout * np.minimum(data, 0)).sum((0, 2, 3))",
      "F.prelu(data, gamma)"),
    R("LeakyReLU", "transformer base", dict(data=(1024, 2048), act_type="gelu"), torch="F.gelu(data)"),
    R("Convolution", "ResNet-50 stage 1, 3x3", dict(data=ACT, kernel=(3, 3), pad=(1, 1), num_filter=64, no_bias=True),
      **CONV),
    R("Convolution", "ResNet-50 stage 3, 1x1", dict(data=(8, 1024, 14, 14), kernel=(1, 1), num_filter=256,
      no_bias=True), "np.matmul(weight.reshape(256, 1024), data.reshape(8, 1024, 196)).reshape(8, 256, 14, 14)",
      torch="F.conv2d(data, weight)"),
    R("Convolution", "ResNet-50 stem, 7x7", dict(data=(8, 3, 224, 224), kernel=(7, 7), stride=(2, 2), pad=(3, 3),
      num_filter=64, no_bias=True), torch="F.conv2d(data, weight, stride=2, padding=3)"),
    R("Convolution", "MobileNet depthwise", dict(data=ACT, kernel=(3, 3), pad=(1, 1), num_filter=64, num_group=64,
      no_bias=True), torch="F.conv2d(data, weight, padding=1, groups=64)"),
    R("Deconvolution", "DCGAN generator", dict(data=(8, 256, 8, 8), kernel=(4, 4), stride=(2, 2), pad=(1, 1),
      num_filter=128), torch="F.conv_transpose2d(data, weight, stride=2, padding=1)"),
    R("_contrib_DeformableConvolution", "R-FCN on ResNet-50", dict(data=(1, 512, 38, 38),
      offset=Sample((1, 18, 38, 38), -2, 2), kernel=(3, 3), pad=(1, 1), num_filter=512, no_bias=True),
      "peers.deformed(np, data, offset, weight)"),
    R("_contrib_ModulatedDeformableConvolution", "R-FCN on ResNet-50", dict(data=(1, 512, 38, 38),
      offset=Sample((1, 18, 38, 38), -2, 2), mask=Sample((1, 9, 38, 38), 0, 1), kernel=(3, 3), pad=(1, 1),
      num_filter=512, no_bias=True), "peers.deformed(np, data, offset, weight, mask[0])"),
    R("Correlation", "FlowNetC", dict(data1=(1, 256, 48, 64), data2=(1, 256, 48, 64), kernel_size=1,
      max_displacement=20, stride1=1, stride2=2, pad_size=20), "peers.correlation(np, data1, data2)"),
    R("FullyConnected", "LSTM-200 output", dict(data=(320, 200), num_hidden=10000),
      "data @ weight.T + bias", "dout @ weight, dout.T @ data, dout.sum(0)", "F.linear(data, weight, bias)"),
    R("FullyConnected", "ResNet-50 output", dict(data=(8, 2048), num_hidden=1000),
      "data @ weight.T + bias", "dout @ weight, dout.T @ data, dout.sum(0)", "F.linear(data, weight, bias)"),
    R("Pooling", "ResNet-50 stem", STEM_POOL, **POOLED),
    R("Pooling", "ResNet-50 head", dict(data=(8, 2048, 7, 7), global_pool=True, pool_type="avg"),
      "data.mean((2, 3), keepdims=True)", "np.broadcast_to(dout / 49, data.shape).copy()",
      "F.adaptive_avg_pool2d(data, 1)"),
    R("Pooling_v1", "ResNet-50 stem", STEM_POOL | dict(pooling_convention="full")),
    R("UpSampling", "FPN on ResNet-50", dict(arg0=(1, 256, 50, 68), scale=2, sample_type="nearest", num_args=1),
      "arg0.repeat(2, 2).repeat(2, 3)", "dout.reshape(1, 256, 50, 2, 68, 2).sum((3, 5))",
      "F.interpolate(arg0, scale_factor=2)"),
    R("depth_to_space", "ESPCN", dict(data=(8, 64, 56, 56), block_size=2),
      "data.reshape(8, 2, 2, 16, 56, 56).transpose(0, 3, 4, 1, 5, 2).reshape(8, 16, 112, 112)",
      "dout.reshape(8, 16, 56, 2, 56, 2).transpose(0, 3, 5, 1, 2, 4).reshape(8, 64, 56, 56)"),
    R("space_to_depth", "ESPCN", dict(data=(8, 16, 112, 112), block_size=2),
      "data.reshape(8, 16, 56, 2, 56, 2).transpose(0, 3, 5, 1, 2, 4).reshape(8, 64, 56, 56)",
      "dout.reshape(8, 2, 2, 16, 56, 56).transpose(0, 3, 4, 1, 5, 2).reshape(8, 16, 112, 112)"),
    R("_contrib_BilinearResize2D", "PSPNet on ResNet-50", dict(data=(1, 512, 30, 30), height=60, width=60),
      torch="F.interpolate(data, (60, 60), mode='bilinear', align_corners=True)"),
    R("_contrib_AdaptiveAvgPooling2D", "PSPNet on ResNet-50", dict(data=(1, 2048, 60, 60), output_size=(6, 6)),
      "data.reshape(1, 2048, 6, 10, 6, 10).mean((3, 5))", torch="F.adaptive_avg_pool2d(data, 6)"),
    R("im2col", "ResNet-50 stage 2", dict(data=(8, 128, 28, 28), kernel=(3, 3), pad=(1, 1)),
      torch="F.unfold(data, 3, padding=1)"),
    R("col2im", "ResNet-50 stage 2", dict(data=(8, 1152, 784), output_size=(28, 28), kernel=(3, 3), pad=(1, 1)),
      torch="F.fold(data, (28, 28), 3, padding=1)"),
    R("BatchNorm", "ResNet-50 stage 1", dict(data=ACT, fix_gamma=False), **BATCH_NORM),
    R("BatchNorm", "ResNet-50 stage 4", dict(data=(8, 2048, 7, 7), fix_gamma=False), **BATCH_NORM),
    R("BatchNorm_v1", "ResNet-50 stage 1", dict(data=ACT, fix_gamma=False), **BATCH_NORM),
    R("_contrib_BatchNormWithReLU", "ResNet-50 stage 1", dict(data=ACT, fix_gamma=False),
      f"np.maximum({BATCH_NORM['numpy']}, 0)", "peers.batch_norm_backward(np, dout * (out > 0), data, gamma, 1e-3)"),
    R("_contrib_SyncBatchNorm", "ResNet-50 stage 1", dict(data=ACT, fix_gamma=False), **BATCH_NORM),
    R("_batch_moments", "ResNet-50 stage 1", dict(data=ACT), "data.mean((0, 2, 3)), data.var((0, 2, 3))", same=False),
    R("_joined_moments", "ResNet-50 stage 1, two devices", dict(data=Sample((3, 64), 1, 2)),
      "peers.joined_moments(np, data.astype(np.float64))"),
    R("_normalized", "ResNet-50 stage 1", dict(data=ACT, moments=Sample((3, 64), 2, 3)),
      "(data - moments[1].reshape(1, -1, 1, 1)) / np.sqrt(moments[2].reshape(1, -1, 1, 1)) * gamma.reshape(1, -1, 1, 1)"
      " + beta.reshape(1, -1, 1, 1)", same=False),
    R("LayerNorm", "transformer base", dict(data=(1024, 512)), _normed("-1", 1e-5, "1, -1"),
      "peers.layer_norm_backward(np, dout, data, gamma, 1e-5)", "F.layer_norm(data, (512,), gamma, beta)"),
    R("InstanceNorm", "style transfer", dict(data=ACT), _normed("(2, 3)", 1e-3, "1, -1, 1, 1"),
      "peers.group_norm_backward(np, dout, data, gamma, 64, 1e-3)",
      "F.instance_norm(data, weight=gamma, bias=beta, eps=1e-3)"),
    R("GroupNorm", "ResNet-50 with groups", dict(data=ACT, num_groups=32), "(lambda data: "
      + NORMED.format(axes="2", eps=1e-5) + ")(data.reshape(8, 32, -1)).reshape(data.shape)"
      " * gamma.repeat(2).reshape(1, -1, 1, 1) + beta.repeat(2).reshape(1, -1, 1, 1)",
      "peers.group_norm_backward(np, dout, data, gamma, 32, 1e-5)",
      "F.group_norm(data, 32, gamma.repeat_interleave(2), beta.repeat_interleave(2))"),
    R("L2Normalization", "ArcFace", dict(data=(1024, 512)),
      "data / np.sqrt((data * data).sum(1, keepdims=True) + 1e-10)", torch="F.normalize(data, dim=1)"),
    R("L2Normalization", "SSD-300 conv4_3", dict(data=(8, 512, 38, 38), mode="channel"),
      "data / np.sqrt((data * data).sum(1, keepdims=True) + 1e-10)", torch="F.normalize(data, dim=1)"),
    R("LRN", "AlexNet", dict(data=(8, 96, 55, 55), nsize=5), torch="F.local_response_norm(data, 5, 1e-4, 0.75, 2)"),
    R("moments", "ResNet-50 stage 1", dict(data=ACT, axes=(0, 2, 3)), "data.mean((0, 2, 3)), data.var((0, 2, 3))"),
    R("softmax", "transformer base", dict(data=(64, 128, 128)), SOFTMAX.format(data="data"),
      SOFTMAX_BACK.format(sign=""), "F.softmax(data, -1)"),
    R("softmax", "SSD-300 classes", dict(data=(8, 21, BOXES), axis=1),
      "(lambda e: e / e.sum(1, keepdims=True))(np.exp(data - data.max(1, keepdims=True)))",
      "out * (dout - (dout * out).sum(1, keepdims=True))", "F.softmax(data, 1)"),
    R("softmin", "transformer base", dict(data=(64, 128, 128)), SOFTMAX.format(data="(-data)"),
      SOFTMAX_BACK.format(sign="-"), "F.softmin(data, -1)"),
    R("log_softmax", "LSTM-200 output", dict(data=WORDS),
      "(lambda z: z - np.log(np.exp(z).sum(-1, keepdims=True)))(data - data.max(-1, keepdims=True))",
      "dout - np.exp(out) * dout.sum(-1, keepdims=True)", "F.log_softmax(data, -1)"),
    R("SoftmaxActivation", "SSD-300 classes", dict(data=(8, 21, BOXES), mode="channel"),
      "(lambda e: e / e.sum(1, keepdims=True))(np.exp(data - data.max(1, keepdims=True)))",
      "out * (dout - (dout * out).sum(1, keepdims=True))", "F.softmax(data, 1)"),
    R("SoftmaxOutput", "LSTM-200 output", dict(data=WORDS, label=Sample((320,), 0, 9999, True)),
      SOFTMAX.format(data="data"), "peers.softmax_output_backward(np, out, label)"),
    R("softmax_cross_entropy", "LSTM-200 output", dict(data=WORDS, label=Sample((320,), 0, 9999, True)),
      "(lambda z: (np.log(np.exp(z).sum(-1)) - z[np.arange(320), label.astype(int)]).sum())"
      "(data - data.max(-1, keepdims=True))"),
    R("SVMOutput", "ResNet-50 output", dict(data=(256, 1000), label=Sample((256,), 0, 999, True)), "data.copy()"),
    R("LinearRegressionOutput", "SSD-300 offsets", dict(data=(8, 4 * BOXES), label=(8, 4 * BOXES)),
      "data.copy()", "(out - label) / 34928"),
    R("LogisticRegressionOutput", "DCGAN discriminator", dict(data=(8, 4 * BOXES), label=Sample((8, 4 * BOXES), 0, 1)),
      "1 / (1 + np.exp(-data))", "(out - label) / 34928"),
    R("MAERegressionOutput", "SSD-300 offsets", dict(data=(8, 4 * BOXES), label=(8, 4 * BOXES)),
      "data.copy()", "np.sign(out - label) / 34928"),
    R("MakeLoss", "SSD-300 offsets", dict(data=(8, 4 * BOXES)), "data.copy()", "np.ones_like(data)"),
    R("make_loss", "SSD-300 offsets", dict(data=(8, 4 * BOXES)), "data.copy()", "np.ones_like(data)"),
    R("BlockGrad", "ResNet-50 stage 1", dict(data=ACT), "data.copy()"),
    R("IdentityAttachKLSparseReg", "ResNet-50 output", dict(data=Sample((256, 1000), 0.1, 0.9)),
      "(data.copy(), moving_avg * 0.9 + data.mean(0) * 0.1)"),
    R("CTCLoss", "speech, 80 frames", dict(data=(80, 16, 29), label=Sample((16, 20), 1, 28, True)), torch=peers.ctc),
    R("RNN", "LSTM-200, two layers of 30 steps", dict(data=(30, 32, 200),
      parameters=Sample((643200,), -0.1, 0.1), state_size=200, num_layers=2, mode="lstm"),
      torch=peers.lstm),
    R("RNN", "GRU-200", dict(data=(30, 32, 200), parameters=Sample((241200,), -0.1, 0.1), state_size=200,
      num_layers=1, mode="gru"), torch=peers.gru, same=False),
    R("_rnn_param_concat", "LSTM-200", dict(arg0=(800 * 200,), arg1=(800 * 200,), num_args=2, dim=0),
      "np.concatenate([arg0, arg1])", "dout[:160000].copy(), dout[160000:].copy()"),
    R("Dropout", "AlexNet", dict(data=(64, 4096), p=0.5),
      "data * (rng.random(data.shape, np.float32) > 0.5) * 2", "dout * mask * 2", same=False,
      setup="mask = rng.random(data.shape) > 0.5", torch="F.dropout(data)"),
    R("Embedding", "LSTM-200", dict(data=Sample((32, 30), 0, 9999, True), input_dim=10000,
      output_dim=200), "weight[data.astype(int)]", "peers.rows_added(np, dout, data, weight)",
      "F.embedding(data.long(), weight)"),
    R("_contrib_SparseEmbedding", "LSTM-200", dict(data=Sample((32, 30), 0, 9999, True), input_dim=10000,
      output_dim=200), "weight[data.astype(int)]", "peers.rows_added(np, dout, data, weight)",
      "F.embedding(data.long(), weight)"),
    R("_contrib_div_sqrt_dim", "transformer base", dict(data=(64, 128, 128)), "data / np.sqrt(128)",
      "dout / np.sqrt(128)"),
    R("_contrib_interleaved_matmul_selfatt_qk", "transformer base", dict(queries_keys_values=ATTENTION, heads=8),
      torch=peers.selfatt_qk),
    R("_contrib_interleaved_matmul_selfatt_valatt", "transformer base",
      dict(queries_keys_values=ATTENTION, attention=(64, 128, 128), heads=8), torch=peers.selfatt_valatt),
    R("_contrib_interleaved_matmul_encdec_qk", "transformer base",
      dict(queries=(128, 8, 512), keys_values=(128, 8, 1024), heads=8), torch=peers.encdec_qk),
    R("_contrib_interleaved_matmul_encdec_valatt", "transformer base",
      dict(keys_values=(128, 8, 1024), attention=(64, 128, 128), heads=8), torch=peers.encdec_valatt),
    R("Custom", "ResNet-50 stage 1", dict(data=ACT, op_type="arrayexec.Scale"), "data * 2.0",
      "np.multiply(dout, 2.0, out=np.full_like(dout, 0))"),
]  # fmt: skip

REGIONS = dict(cls_prob=Sample((1, 24, 38, 38), 0, 1), bbox_pred=Sample((1, 48, 38, 38), -0.2, 0.2),
               im_info=np.array([[600, 600, 1]]))  # fmt: skip
DETECTION = [
    R("_contrib_MultiBoxPrior", "SSD-300 conv4_3", dict(data=(1, 512, 38, 38), sizes=(0.1, 0.14),
      ratios=(1.0, 2.0, 0.5)), "peers.anchors(np, 38, (0.1, 0.14), (1.0, 2.0, 0.5))"),
    R("_contrib_MultiBoxTarget", "SSD-300", dict(anchor=Sample((1, BOXES, 4), 0, 1), label=TRUTH,
      cls_pred=(8, 21, BOXES), negative_mining_ratio=3.0), "peers.targets(np, anchor, label)", same=False),
    R("_contrib_MultiBoxDetection", "SSD-300", dict(cls_prob=Sample((8, 21, BOXES), 0, 0.05),
      loc_pred=(8, 4 * BOXES), anchor=Sample((1, BOXES, 4), 0, 1), nms_topk=400),
      "peers.detections(np, cls_prob, loc_pred, anchor)", same=False),
    R("_contrib_box_iou", "SSD-300", dict(lhs=Sample((BOXES, 4), 0, 1), rhs=Sample((12, 4), 0, 1)),
      "peers.iou(np, lhs[:, None], rhs)"),
    R("_contrib_box_nms", "SSD-300", dict(data=Sample((8, BOXES, 6), 0, 1), topk=400, id_index=0),
      "[peers.nms(np, image, 400) for image in data]", same=False),
    R("_contrib_bipartite_matching", "SSD-300", dict(data=Sample((8, BOXES, 12), 0, 1), threshold=0.1),
      "[peers.matching(np, image) for image in data]", same=False),
    R("_contrib_box_encode", "SSD-300", dict(samples=Sample((8, BOXES), 0, 1), matches=Sample((8, BOXES), 0, 11, True),
      anchors=Sample((8, BOXES, 4), 0.2, 1), refs=Sample((8, 12, 4), 0.2, 1)),
      "peers.encoded(np, matches, anchors, refs)", same=False),
    R("_contrib_box_decode", "SSD-300", dict(data=(8, BOXES, 4), anchors=Sample((1, BOXES, 4), 0.2, 1)),
      "peers.decoded(np, data, anchors)"),
    R("ROIPooling", "Fast R-CNN on ResNet-50", dict(data=(1, 512, 38, 38), rois=peers.rois(128, 600),
      pooled_size=(7, 7), spatial_scale=0.0625), "peers.roi_pool(np, data, rois, 7, 0.0625)"),
    R("_contrib_ROIAlign", "Mask R-CNN on ResNet-50", dict(data=(1, 512, 38, 38), rois=peers.rois(128, 600),
      pooled_size=(7, 7), spatial_scale=0.0625, sample_ratio=2), "peers.roi_align(np, data, rois, 7, 0.0625)"),
    R("_contrib_PSROIPooling", "R-FCN on ResNet-50", dict(data=(1, 21 * 49, 38, 38), rois=peers.rois(128, 600),
      output_dim=21, pooled_size=7, spatial_scale=0.0625), "peers.psroi_pool(np, data, rois, 21, 7, 0.0625)"),
    R("_contrib_DeformablePSROIPooling", "deformable R-FCN on ResNet-50", dict(data=(1, 21 * 49, 38, 38),
      rois=peers.rois(128, 600), trans=(128, 2, 7, 7), output_dim=21, group_size=7, pooled_size=7, part_size=7,
      sample_per_part=4, trans_std=0.1, spatial_scale=0.0625)),
    R("_contrib_Proposal", "RPN on ResNet-50", REGIONS, "peers.proposals(np, cls_prob, bbox_pred)", same=False),
    R("_contrib_MultiProposal", "RPN on ResNet-50", REGIONS, "peers.proposals(np, cls_prob, bbox_pred)", same=False),
    R("BilinearSampler", "spatial transformer", dict(data=(8, 64, 56, 56), grid=Sample((8, 2, 56, 56), -0.9, 0.9)),
      torch="F.grid_sample(data, grid.permute(0, 2, 3, 1), align_corners=True)"),
    R("GridGenerator", "spatial transformer", dict(data=(8, 6), transform_type="affine", target_shape=(56, 56)),
      torch="F.affine_grid(data.reshape(8, 2, 3), (8, 1, 56, 56), align_corners=True).permute(0, 3, 1, 2)"),
    R("SpatialTransformer", "spatial transformer", dict(data=(8, 64, 56, 56), loc=(8, 6), target_shape=(56, 56),
      transform_type="affine", sampler_type="bilinear"), torch="F.grid_sample(data, F.affine_grid("
      "loc.reshape(8, 2, 3), (8, 1, 56, 56), align_corners=True), align_corners=True)"),
]  # fmt: skip

NUMBERS = (64, 4096)


def _random(name: str, call: str, **attributes: float) -> list[R]:
    """A distribution with numbers as parameters, and its twin that takes the shape of an array."""
    use = "DCGAN noise, 64 rows of 4,096"
    return [
        R(f"_random_{name}", use, dict(shape=NUMBERS, dtype="float32", **attributes), f"rng.{call}", same=False),
        R(f"_random_{name}_like", use, dict(data=NUMBERS, **attributes), f"rng.{call}", same=False),
    ]


def _sample(name: str, call: str, **inputs: Sample) -> R:
    """A distribution whose parameters are arrays, one a row."""
    use = "DCGAN noise, 64 rows of 4,096"
    return R(f"_sample_{name}", use, dict(shape=(4096,), dtype="float32", **inputs), f"rng.{call}{SINGLE}", same=False)


def _density(name: str, numpy: str = "", whole: bool = False, **inputs: Sample) -> list[R]:
    """A density of 64 distributions at 256 places each, ``x``, in float64, as the operator computes."""
    sample = Sample((64, 256), 0, 9, True) if whole else Sample((64, 256), 0.1, 2)
    names = ", ".join(["x", *inputs])
    arrays = ", ".join(["sample", *(f"{key}[:, None]" for key in inputs)])
    text = f"(lambda {names}: {numpy})(*(a.astype(float) for a in ({arrays}))).astype(np.float32)" if numpy else ""
    return [R(f"_random_pdf_{name}", "variational autoencoder", dict(sample=sample, **inputs), text)]


SIZE, SINGLE = "(64, 4096)", ".astype(np.float32)"  # numbers are drawn in float64, whatever the type


def _rows(low: float, high: float) -> Sample:
    return Sample((64,), low, high)


RANDOM = [
    *_random("uniform", f"uniform(0.0, 1.0, {SIZE}){SINGLE}"),
    *_random("normal", f"normal(0.0, 1.0, {SIZE}){SINGLE}"),
    *_random("exponential", f"exponential(1.0, {SIZE}){SINGLE}"),
    *_random("gamma", f"gamma(2.5, 1.0, {SIZE}){SINGLE}", alpha=2.5),
    *_random("poisson", f"poisson(12.5, {SIZE}){SINGLE}", lam=12.5),
    *_random("negative_binomial", f"negative_binomial(7, 0.25, {SIZE}){SINGLE}", k=7, p=0.25),
    *_random("generalized_negative_binomial", f"poisson(rng.gamma(4.0, 3.0, {SIZE})){SINGLE}", mu=12.0, alpha=0.25),
    R("_random_randint", "DCGAN noise, 64 rows of 4,096", dict(low=-100, high=1000, shape=NUMBERS),
      f"np.floor(rng.uniform(-100, 1000, {SIZE})).astype(np.int32)", same=False),
    _sample("uniform", f"uniform(low[:, None], high[:, None], {SIZE})", low=_rows(0, 1), high=_rows(1, 2)),
    _sample("normal", f"normal(mu[:, None], sigma[:, None], {SIZE})", mu=_rows(0, 1), sigma=_rows(1, 2)),
    _sample("exponential", f"exponential(1 / lam[:, None], {SIZE})", lam=_rows(1, 2)),
    _sample("gamma", f"gamma(alpha[:, None], beta[:, None], {SIZE})", alpha=_rows(1, 2), beta=_rows(1, 2)),
    _sample("poisson", f"poisson(lam[:, None], {SIZE})", lam=_rows(1, 20)),
    _sample("negative_binomial", f"negative_binomial(k[:, None], p[:, None], {SIZE})", k=_rows(1, 9),
            p=_rows(0.25, 0.7)),
    _sample("generalized_negative_binomial", f"poisson(rng.gamma(1 / alpha[:, None], (mu * alpha)[:, None], {SIZE}))",
            mu=_rows(1, 9), alpha=_rows(0.25, 0.75)),
    R("_sample_multinomial", "LSTM-200, next words", dict(data=Sample((32, 10000), 0.0, 2e-4), shape=(1,)),
      "(lambda total: (total < rng.random((32, 1)) * total[:, -1:]).sum(1))"
      "(data.cumsum(1, dtype=np.float64))", same=False),
    *_density("normal", "np.exp(-0.5 * ((x - mu) / sigma) ** 2) / (sigma * np.sqrt(2 * np.pi))",
              mu=_rows(-1, 1), sigma=_rows(1, 2)),
    *_density("uniform", "np.full_like(x, 1) / (high - low)", low=_rows(0, 1), high=_rows(2, 3)),
    *_density("exponential", "lam * np.exp(-lam * x)", lam=_rows(1, 2)),
    *_density("gamma", alpha=_rows(1, 2), beta=_rows(1, 2)),
    *_density("poisson", whole=True, lam=_rows(1, 9)),
    *_density("negative_binomial", whole=True, k=_rows(1, 9), p=_rows(0.25, 0.7)),
    *_density("generalized_negative_binomial", whole=True, mu=_rows(1, 9), alpha=_rows(0.25, 0.75)),
    R("_random_pdf_dirichlet", "topic model", dict(sample=Sample((64, 256, 8), 0.1, 0.9), alpha=Sample((64, 8), 1, 2))),
    R("_shuffle", "ResNet-50 batch", dict(data=(256, 3 * 32 * 32)), "rng.permutation(data)", same=False),
]  # fmt: skip
