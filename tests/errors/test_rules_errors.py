"""Every refusal of optimizers and of metrics of classification: its whole text.

The texts stand in ``texts_rules.txt``; how they are recorded: ``recorder.py``.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from arrayexec import sym
from arrayexec.train import lr_scheduler, metric, metric_classes, optimizer
from tests.errors.recorder import PACKAGE, Recorder, checks_of

NAMES = "optimizer optimizer_adam optimizer_adaptive optimizer_base optimizer_flat optimizer_norms optimizer_sgd"
RECORDER = Recorder(
    Path(__file__).parent / "texts_rules.txt",
    [PACKAGE / "train" / f"{name}.py" for name in (*NAMES.split(), "metric_classes")],
)
cases = RECORDER.cases


def zeros(*dims: int) -> np.ndarray:
    return np.zeros(dims, np.float32)


def updated(name: str, *dims: int, key: Any = "fc_weight", **options: Any) -> Callable[[], Any]:
    """A case: one update of a parameter of this shape."""
    return lambda: optimizer.get_updater(optimizer.create(name, **options))(key, zeros(*dims), zeros(*dims))


def resumed(weight: Any, change: Callable[[dict[str, Any]], Any], name: str = "adam") -> Callable[[], Any]:
    """A case: go on from changed states of Adam and move ``weight``, which was (2,)."""

    def call() -> Any:
        updater = optimizer.get_updater(optimizer.create("adam"))
        updater.update_all(["fc_weight"], [zeros(2)], [zeros(2)])
        saved = updater.get_states()
        other = optimizer.get_updater(optimizer.create(name))
        other.set_states(change(saved))
        other.update_all(["fc_weight"], [zeros(*weight.shape)], [weight])

    return call


def half(saved: dict[str, Any]) -> dict[str, Any]:
    del saved["states"]["fc_weight"]["var"]
    return saved


def late_momentum() -> None:
    rule, weight = optimizer.create("sgd"), zeros(2)
    updater = optimizer.get_updater(rule)
    updater("w", zeros(2), weight)
    rule.momentum = 0.9
    updater("w", zeros(2), weight)


cases(
    name=lambda: optimizer.create("adma"),
    momentum=late_momentum,
    option=lambda: optimizer.create("sgd", momentun=0.9),
    option_text=lambda: optimizer.create("sgd", momentum="0.9"),
    rate_text=lambda: optimizer.create("sgd", learning_rate="0.1"),
    rate_text_set=lambda: optimizer.create("adam").set_learning_rate("slow"),  # type: ignore[arg-type]
    decay_text=lambda: optimizer.SGD(wd="1e-4"),
    cut_list=lambda: optimizer.create("sgd", clip_gradient=[1.0]),
    schedule_text=lambda: optimizer.create("sgd", lr_scheduler="cosine"),
    multiplier_text=lambda: optimizer.create("sgd").set_lr_mult({"fc_weight": "2"}),  # type: ignore[dict-item]
    multipliers_list=lambda: optimizer.create("sgd").set_wd_mult([("fc_weight", 0.0)]),  # type: ignore[arg-type]
    multiplier_attribute=lambda: optimizer.create(
        "sgd", sym=sym.tanh(sym.Variable("data", attr={"__lr_mult__": "twice"}), name="act")
    ),
    option_of_another=lambda: optimizer.create("nag", warmup_epochs=3),
    common_length=lambda: optimizer.create("sgd", clip_global_norm=-1.0),
    common_length_alone=updated("sgd", 2, clip_global_norm=1.0),
    rate_of_a_schedule=lambda: optimizer.create(
        "sgd", lr_scheduler=lr_scheduler.FactorScheduler(5)
    ).set_learning_rate(0.1),
    no_rule=lambda: optimizer.Optimizer().update("w", zeros(2), zeros(2), {}),
    gradient=lambda: optimizer.create("sgd").update("w", zeros(2), zeros(3), {}),
    gradient_by_number=lambda: optimizer.get_updater(
        optimizer.create("sgd", param_idx2name={1: "fc_bias"})
    ).update_all([0, 1], [zeros(2), zeros(3)], [zeros(2), zeros(2)]),
    no_gradient=lambda: optimizer.create("sgd").update("w", zeros(2), None, {}),
    table=updated("groupadagrad", 5),
    table_decay=updated("groupadagrad", 5, 2, wd=0.1),
    warmup=lambda: optimizer.create("lbsgd", warmup_strategy="squared"),
    states_kind=lambda: optimizer.get_updater(optimizer.create("adam")).set_states(b"states"),  # type: ignore[arg-type]
    states_part=lambda: optimizer.get_updater(optimizer.create("adam")).set_states({"optimizer": "adam"}),
    states_of_another=resumed(zeros(2), lambda saved: saved, "sgd"),
    states_names=resumed(zeros(2), half),
    states_shape=resumed(zeros(3), lambda saved: saved),
    metric_names=lambda: metric.create("acc").update_dict(
        {"softmax_label": zeros(2)}, {"a_output": zeros(2, 3), "b_output": zeros(2, 3)}
    ),
    metric_top_one=lambda: metric.create("top_k_accuracy"),
    metric_average=lambda: metric.create("mcc", average="weighted"),
    metric_no_score=lambda: type("Half", (metric_classes.Averaged,), {"width": 1})().score(zeros(1)),
    metric_weighted=lambda: metric.create("f1", average="weighted"),
    metric_kind=lambda: metric.create("f1", class_type="multilabel"),
    metric_label=lambda: metric.create("f1", class_type="multiclass").update([np.array([3.0])], [zeros(1, 3)]),
    metric_scores=lambda: metric.create("pcc").update([zeros(2)], [zeros(3, 2)]),
)

(
    found, test_text, test_no_text_is_left_over, test_every_refusal_is_reached, test_what_is_held_elsewhere_is_there,
) = checks_of(RECORDER)  # fmt: skip
