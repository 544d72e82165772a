"""Every refusal of the operators of detection: boxes, priors, targets, regions, sampled images.

The texts stand in ``texts_detection.txt``; how they are recorded: ``recorder.py``.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from arrayexec import cpu, sym
from tests.errors.recorder import PACKAGE, Recorder, checks_of

FILES = ("boxes", "multibox", "box_overlap", "proposal", "psroi", "roi", "roi_align", "sampler")
RECORDER = Recorder(Path(__file__).parent / "texts_detection.txt", [PACKAGE / "ops" / f"{name}.py" for name in FILES])
cases = RECORDER.cases

A, B, C = sym.Variable("a"), sym.Variable("b"), sym.Variable("c")


def shapes(symbol: Callable[[], Any], **known: Any) -> Callable[[], Any]:
    """A case: make the symbol and infer its shapes."""
    return lambda: symbol().infer_shape(**known)


def bound(symbol: Callable[[], Any], **dims: Any) -> Callable[[], Any]:
    """A case: make the symbol and bind arrays of these dims, which may be 0 there."""
    return lambda: symbol().bind(cpu(), {name: np.zeros(shape, np.float32) for name, shape in dims.items()})


def target(**attributes: Any) -> Any:
    return sym._contrib_MultiBoxTarget(A, B, C, name="n", **attributes)


def detection(**attributes: Any) -> Any:
    return sym._contrib_MultiBoxDetection(A, B, C, name="n", **attributes)


def proposal(**attributes: Any) -> Any:
    return sym._contrib_Proposal(A, B, C, name="n", scales=(1,), ratios=(1,), **attributes)


def position(**attributes: Any) -> Any:
    attributes = {"pooled_size": 2, "output_dim": 3, "spatial_scale": 1.0, **attributes}
    return sym._contrib_PSROIPooling(A, B, name="n", **attributes)


def encode() -> Any:
    return sym._contrib_box_encode(*[sym.Variable(name) for name in "abcdef"], name="n")


cases(
    rank=shapes(lambda: sym._contrib_bipartite_matching(A, threshold=0.1, name="n"), a=(3,)),
    nms_negative=lambda: sym._contrib_box_nms(A, score_index=-1, name="n"),
    nms_place=lambda: sym._contrib_box_nms(A, id_index=4, name="n"),
    nms_same=lambda: sym._contrib_box_nms(A, id_index=1, name="n"),
    nms_width=shapes(lambda: sym._contrib_box_nms(A, name="n"), a=(3, 5)),
    nms_format=lambda: sym._contrib_box_nms(A, in_format="corners", name="n"),
    encode_empty=bound(encode, a=(2, 3), b=(2, 3), c=(2, 3, 4), d=(2, 0, 4), e=(4,), f=(4,)),
    prior_sizes=lambda: sym._contrib_MultiBoxPrior(A, sizes=(), name="n"),
    prior_steps=lambda: sym._contrib_MultiBoxPrior(A, steps=(1, 2, 3), name="n"),
    prior_ratio=lambda: sym._contrib_MultiBoxPrior(A, ratios=(1, 0), name="n"),
    prior_offset=lambda: sym._contrib_MultiBoxPrior(A, offsets=(0.5, 1.5), name="n"),
    prior_one_step=lambda: sym._contrib_MultiBoxPrior(A, steps=(0.5, -1), name="n"),
    target_variances=lambda: target(variances=(1, 1)),
    target_mining=lambda: target(negative_mining_ratio=3, negative_mining_thresh=0),
    target_label=shapes(target, b=(2, 3, 4)),
    target_objects=bound(target, a=(1, 3, 4), b=(2, 0, 5), c=(2, 2, 3)),
    target_classes=bound(target, a=(1, 3, 4), b=(2, 1, 5), c=(2, 0, 3)),
    target_anchors=bound(target, a=(1, 0, 4), b=(2, 1, 5), c=(2, 2, 0)),
    detection_variances=lambda: detection(variances=(1,)),
    detection_offsets=shapes(detection, b=(2, 7)),
    detection_anchors=bound(detection, a=(2, 3, 0), b=(2, 0), c=(1, 0, 4)),
    detection_classes=shapes(detection, a=(2, 1, 3)),
    proposal_scales=lambda: sym._contrib_Proposal(A, B, C, scales=(), name="n"),
    proposal_stride=lambda: proposal(feature_stride=0),
    proposal_places=bound(proposal, a=(1, 2, 0, 3), b=(1, 4, 0, 3), c=(1, 3)),
    pooled_size=lambda: sym.ROIPooling(A, B, pooled_size=(2,), spatial_scale=1, name="n"),
    pooled_data=bound(lambda: sym.ROIPooling(A, B, pooled_size=(2, 2), spatial_scale=1, name="n"),
                      a=(1, 2, 0, 3), b=(4, 5)),
    position_bins=lambda: position(pooled_size=0),
    position_groups=lambda: position(group_size=-1),
    position_channels=shapes(position, a=(1, 11, 4, 4)),
    roi_align_samples=lambda: sym._contrib_ROIAlign(
        A, B, pooled_size=(2, 2), spatial_scale=1, sample_ratio=2000, name="n"
    ),
    align_channels=shapes(lambda: sym._contrib_ROIAlign(
        A, B, pooled_size=(2, 2), spatial_scale=1, position_sensitive=True, name="n"), a=(1, 6, 4, 4)),
)  # fmt: skip

(
    found, test_text, test_no_text_is_left_over, test_every_refusal_is_reached,
    test_what_is_held_elsewhere_is_there,
) = checks_of(RECORDER)  # fmt: skip
