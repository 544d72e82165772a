"""The operators, one file a family. A family is imported when one of its names is first used.

The table below is how a name finds its file without importing all of them; a test holds it complete.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Any

from .. import registry

FAMILIES: dict[str, str] = {
    "dot": "FullyConnected dot batch_dot",
    "linalg": "_linalg_gemm linalg_gemm _linalg_gemm2 linalg_gemm2 _linalg_syrk linalg_syrk khatri_rao "
    "_linalg_extractdiag linalg_extractdiag _linalg_makediag linalg_makediag _linalg_extracttrian linalg_extracttrian "
    "_linalg_maketrian linalg_maketrian",
    "linalg_factor": "_linalg_trmm linalg_trmm _linalg_trsm linalg_trsm _linalg_potrf linalg_potrf _linalg_potri "
    "linalg_potri _linalg_inverse linalg_inverse _linalg_sumlogdiag linalg_sumlogdiag _linalg_det linalg_det "
    "_linalg_slogdet linalg_slogdet _linalg_gelqf linalg_gelqf _linalg_syevd linalg_syevd",
    "conv": "Convolution Convolution_v1",
    "deconv": "Deconvolution",
    "unfold": "im2col col2im",
    "resize": "_contrib_BilinearResize2D _npx_bilinear_resize2d _contrib_AdaptiveAvgPooling2D",
    "deform": "_contrib_DeformableConvolution DeformableConvolution _npx_deformable_convolution "
    "_contrib_ModulatedDeformableConvolution ModulatedDeformableConvolution _npx_modulated_deformable_convolution",
    "correlation": "Correlation",
    "resample": "UpSampling depth_to_space space_to_depth",
    "pool": "Pooling",
    "pool_legacy": "Pooling_v1",
    "norm": "BatchNorm CuDNNBatchNorm BatchNorm_v1 _contrib_SyncBatchNorm SyncBatchNorm",
    "norm_relu": "_contrib_BatchNormWithReLU",
    "group_norm": "LayerNorm InstanceNorm GroupNorm",
    "heads": "SVMOutput IdentityAttachKLSparseReg",
    "ctc": "CTCLoss ctc_loss _contrib_CTCLoss _contrib_ctc_loss",
    "sequence": "SequenceMask SequenceLast SequenceReverse",
    "attention": "_contrib_div_sqrt_dim _contrib_interleaved_matmul_selfatt_qk "
    "_contrib_interleaved_matmul_selfatt_valatt _contrib_interleaved_matmul_encdec_qk "
    "_contrib_interleaved_matmul_encdec_valatt",
    "amp": "amp_cast amp_multicast _scale_gradient all_finite multi_all_finite",
    "local_norm": "L2Normalization LRN",
    "dropout": "Dropout",
    "random_number": "uniform normal _random_uniform random_uniform _random_uniform_like _random_normal "
    "random_normal _random_normal_like _random_gamma random_gamma _random_gamma_like _random_exponential "
    "random_exponential _random_exponential_like _random_poisson random_poisson _random_poisson_like "
    "_random_negative_binomial random_negative_binomial _random_negative_binomial_like "
    "_random_generalized_negative_binomial random_generalized_negative_binomial "
    "_random_generalized_negative_binomial_like _random_randint random_randint",
    "random_sample": "_sample_uniform sample_uniform _sample_normal sample_normal _sample_gamma sample_gamma "
    "_sample_exponential sample_exponential _sample_poisson sample_poisson _sample_negative_binomial "
    "sample_negative_binomial _sample_generalized_negative_binomial sample_generalized_negative_binomial "
    "_sample_multinomial sample_multinomial _shuffle shuffle",
    "density": "_random_pdf_uniform random_pdf_uniform _random_pdf_normal random_pdf_normal _random_pdf_gamma "
    "random_pdf_gamma _random_pdf_exponential random_pdf_exponential _random_pdf_poisson random_pdf_poisson "
    "_random_pdf_negative_binomial random_pdf_negative_binomial _random_pdf_generalized_negative_binomial "
    "random_pdf_generalized_negative_binomial _random_pdf_dirichlet random_pdf_dirichlet",
    "activation": "Activation LeakyReLU",
    "softmax": "softmax softmin log_softmax SoftmaxActivation",
    "loss": "SoftmaxOutput Softmax LinearRegressionOutput LogisticRegressionOutput MAERegressionOutput MakeLoss "
    "make_loss BlockGrad stop_gradient softmax_cross_entropy",
    "shape": "Flatten flatten Reshape reshape transpose expand_dims squeeze SwapAxis swapaxes slice slice_axis crop "
    "Crop",
    "pad": "Pad pad tile repeat reverse flip stack",
    "order": "topk sort argsort",
    "select": "where slice_like reshape_like diag _split_v2 _slice_assign _crop_assign _slice_assign_scalar "
    "_crop_assign_scalar",
    "joins": "Concat concat _unconcat SliceChannel split",
    "gather": "gather_nd scatter_nd _scatter_set_nd _contrib_index_copy batch_take fill_element_0index "
    "_contrib_index_array _ravel_multi_index ravel_multi_index _unravel_index unravel_index",
    "index": "pick choose_element_0index take one_hot",
    "embed": "Embedding _contrib_SparseEmbedding",
    "rnn": "RNN",
    "constant": "_contrib_arange_like "
    "_zeros _ones _zeros_without_dtype _full _arange _linspace _eye shape_array size_array zeros_like "
    "ones_like _identity_with_attr_like_rhs",
    "cumsum": "_np_cumsum cumsum",
    "moments": "moments",
    "spectrum": "_contrib_fft _contrib_ifft",
    "statistics": "_histogram _contrib_allclose multi_sum_sq",
    "collective": "_batch_moments _joined_moments _normalized",
    "rnn_parameters": "_rnn_param_concat",
    "custom": "Custom",
    "elemwise": (
        "elemwise_add _add _plus _Plus elemwise_sub _sub _minus _Minus elemwise_mul _mul _Mul elemwise_div "
        "_div _Div _mod _Mod _power _Power _maximum _Maximum _minimum _Minimum _hypot _Hypot _equal _Equal "
        "_not_equal _NotEqual _greater _Greater _greater_equal _GreaterEqual _lesser _Lesser _lesser_equal "
        "_LesserEqual _logical_and _LogicalAnd _logical_or _LogicalOr _logical_xor _LogicalXor _plus_scalar "
        "_PlusScalar _minus_scalar _MinusScalar _rminus_scalar _RMinusScalar _mul_scalar _MulScalar "
        "_div_scalar _DivScalar _rdiv_scalar _RDivScalar _power_scalar _PowerScalar _rpower_scalar "
        "_RPowerScalar _mod_scalar _ModScalar _rmod_scalar _RModScalar _maximum_scalar _MaximumScalar "
        "_minimum_scalar _MinimumScalar _hypot_scalar _HypotScalar _equal_scalar _EqualScalar "
        "_not_equal_scalar _NotEqualScalar _greater_scalar _GreaterScalar _greater_equal_scalar "
        "_GreaterEqualScalar _lesser_scalar _LesserScalar _lesser_equal_scalar _LesserEqualScalar "
        "_logical_and_scalar _LogicalAndScalar _logical_or_scalar _LogicalOrScalar _logical_xor_scalar "
        "_LogicalXorScalar smooth_l1 _copy identity _copyto negative abs sign round rint ceil floor trunc fix exp "
        "expm1 log log2 log10 log1p sqrt rsqrt cbrt rcbrt square reciprocal sin cos tan arcsin arccos arctan "
        "sinh cosh tanh arcsinh arccosh arctanh degrees radians sigmoid relu softsign hard_sigmoid erf "
        "logical_not clip Cast cast add_n ElementWiseSum gamma gammaln digamma trigamma erfinv log_sigmoid mish "
        "_contrib_quadratic quadratic _contrib_gradientmultiplier _contrib_round_ste _contrib_sign_ste _grad_add "
        "_scatter_elemwise_div "
        "_scatter_plus_scalar _scatter_minus_scalar _Not_Equal _Greater_Equal _Lesser_Equal _Logical_And "
        "_Logical_Or _Logical_Xor"
    ),
    "broadcast": (
        "broadcast_add broadcast_plus broadcast_sub broadcast_minus broadcast_mul broadcast_div broadcast_mod "
        "broadcast_power broadcast_maximum broadcast_minimum broadcast_hypot broadcast_equal "
        "broadcast_not_equal broadcast_greater broadcast_greater_equal broadcast_lesser "
        "broadcast_lesser_equal broadcast_logical_and broadcast_logical_or broadcast_logical_xor broadcast_to "
        "broadcast_axis broadcast_axes broadcast_like _sum_like"
    ),
    "sampler": "BilinearSampler GridGenerator SpatialTransformer",
    "roi": "ROIPooling _npx_roi_pooling",
    "roi_align": "_contrib_ROIAlign ROIAlign",
    "psroi_deformed": "_contrib_DeformablePSROIPooling",
    "psroi": "_contrib_PSROIPooling PSROIPooling",
    "sparse": "_square_sum cast_storage",
    "proposal": "_contrib_Proposal Proposal _contrib_MultiProposal MultiProposal",
    "multibox": "_contrib_MultiBoxPrior MultiBoxPrior _npx_multibox_prior _contrib_MultiBoxTarget MultiBoxTarget "
    "_npx_multibox_target _contrib_MultiBoxDetection MultiBoxDetection _npx_multibox_detection",
    "boxes": "_contrib_box_iou _npx_box_iou _contrib_box_nms _contrib_box_non_maximum_suppression _npx_box_nms "
    "_contrib_bipartite_matching _npx_bipartite_matching _contrib_box_encode _npx_box_encode _contrib_box_decode "
    "_npx_box_decode",
    "reduce": "sum sum_axis mean prod max max_axis min min_axis nansum nanprod norm argmax argmin argmax_channel",
}

_FAMILY_OF = {name: family for family, names in FAMILIES.items() for name in names.split()}


def _load(name: str) -> bool:
    family = _FAMILY_OF.get(name)
    if family is None:
        return name.startswith("_gradient_") and importlib.import_module(f"{__name__}.transposed").load(name)
    module = importlib.import_module(f"{__name__}.{family}")
    rows: Any = getattr(module, "ROWS", ())  # elementwise operators are compiled when a name is first used
    if name in rows:
        rows[name]
    return True


def list() -> Sequence[str]:
    """Every operator name and alias, sorted."""
    return registry.all_names()


registry.add_loader(_load)
registry.add_names(lambda: _FAMILY_OF)
