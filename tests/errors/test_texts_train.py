"""Every refusal of the training kit: its whole text.

The texts stand in ``texts_train.txt``; how they are recorded: ``recorder.py``.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from arrayexec import files, sym
from arrayexec.train import callback, initializer, lr_scheduler, metric, rnn
from arrayexec.train.monitor import Monitor
from tests.errors.recorder import PACKAGE, Recorder, checks_of

# Those of test_loss_scale_errors.py, test_parallelize_errors.py, test_data_errors.py and test_rules_errors.py.
OTHERS = (
    "loss_scale model_helper model_optimizer batch io_buckets io sampler recordio image augment record_augment image_codec "
    "states_from_mxnet state_files metric_classes"
)
OTHER_FILES = {PACKAGE / "train" / f"{name}.py" for name in OTHERS.split()}
for pattern in ("io_*.py", "optimizer*.py"):
    OTHER_FILES |= set((PACKAGE / "train").glob(pattern))
RECORDER = Recorder(
    Path(__file__).parent / "texts_train.txt",
    sorted({*(PACKAGE / "train").rglob("*.py")} - OTHER_FILES),
    internal={"StopIteration"},
)
case, cases = RECORDER.case, RECORDER.cases

Var = sym.Variable


def zeros(*dims: int) -> np.ndarray:
    return np.zeros(dims, np.float32)


# --- metrics ---------------------------------------------------------------------------------------------------------


def updated(name: Any, label: Any, pred: Any, **options: Any) -> Callable[[], Any]:
    return lambda: metric.create(name, **options).update([label], [pred])


cases(
    metric_name=lambda: metric.create("acurracy"),
    metric_option=lambda: metric.create("acc", axs=0),
    metric_option_of_function=lambda: metric.create(lambda label, pred: 0, nmae="zero"),
    metric_function=lambda: metric.np(lambda label, pred: None).update([zeros(2)], [zeros(2)]),
    callback_count=lambda: callback.Speedometer(8, 0),
    metric_axis=updated("perplexity", zeros(2), zeros(2, 3), axis=2),
    metric_no_update=lambda: metric.EvalMetric().update([], []),
    metric_output=lambda: metric.create("acc", output_names=["softmax"]).update_dict(
        {"label": zeros(2)}, {"softmax_output": zeros(2, 3)}
    ),
    metric_label=lambda: metric.create("acc", label_names=["label"]).update_dict({}, {}),
    metric_counts=lambda: metric.create("acc").update([zeros(2)], [zeros(2, 3), zeros(2, 3)]),
    metric_samples=updated("acc", zeros(3), zeros(2, 3)),
    metric_class=updated("ce", np.array([0, 3]), np.ones((2, 3))),
    metric_lengths=lambda: metric.check_label_shapes([zeros(2)], [zeros(2), zeros(2)]),
    metric_shapes=lambda: metric.check_label_shapes(zeros(2, 1), zeros(2), shape=True),
    metric_number=lambda: metric.create(["acc", "ce"]).get_metric(2),
    metric_no_distance=lambda: metric._UpdateMean().distance(zeros(2)),
)

# --- learning rates --------------------------------------------------------------------------------------------------

cases(
    rate_warmup=lambda: lr_scheduler.FactorScheduler(5, base_lr=0.1, warmup_steps=2, warmup_begin_lr=0.2),
    rate_warmup_mode=lambda: lr_scheduler.FactorScheduler(5, warmup_mode="linar"),
    rate_step=lambda: lr_scheduler.FactorScheduler(0),
    rate_steps_no_list=lambda: lr_scheduler.MultiFactorScheduler(5),
    rate_steps=lambda: lr_scheduler.MultiFactorScheduler([5, 3]),
    rate_factor=lambda: lr_scheduler.FactorScheduler(5, factor=2.0),
    rate_text=lambda: lr_scheduler.FactorScheduler(5, base_lr="0.1"),
    rate_factor_text=lambda: lr_scheduler.FactorScheduler(5, factor="half"),
    rate_power=lambda: lr_scheduler.PolyScheduler(5, pwr=[2]),
    monitor_interval=lambda: Monitor(0),
    monitor_interval_text=lambda: Monitor("1"),
    monitor_statistic=lambda: Monitor(1, "mean"),
    monitor_pattern=lambda: Monitor(1, pattern="fc(1|2"),
    monitor_pattern_number=lambda: Monitor(1, pattern=3),
    monitor_pattern_bytes=lambda: Monitor(1, pattern=b"fc"),
)

# --- first values ----------------------------------------------------------------------------------------------------


def filled(init: Any, array: Any, name: str = "fc_weight") -> Any:
    return init(initializer.InitDesc(name), array)


@case
def initializer_load_unnamed() -> None:
    files.save("a.params", [zeros(2)])
    initializer.Load("a.params")


cases(
    initializer_name=lambda: initializer.create("xaviar"),
    initializer_text=lambda: initializer.create("[zero]"),
    initializer_nothing=lambda: initializer.create(None),
    initializer_wrong_option=lambda: initializer.create("xavier", magnitud=3),
    initializer_text_options=lambda: initializer.create('["xavier", 5]'),
    initializer_no_rule=lambda: filled(initializer.Uniform(), zeros(2), "fc_wieght"),
    initializer_class=lambda: filled(initializer.Initializer(), zeros(2)),
    initializer_option=lambda: initializer.Xavier(factor_type="both"),
    initializer_rank=lambda: filled(initializer.Xavier(), zeros(3)),
    initializer_gates=lambda: initializer.LSTMBias().init_array(zeros(6), "lstm_i2h_bias"),
    initializer_fused=lambda: initializer.FusedRNN(None, 2, 1, "lstm").init_array(zeros(72), "lstm_parameters"),
    initializer_fused_size=lambda: initializer.FusedRNN("zero", 2, 1, "lstm").init_array(zeros(71), "lstm_parameters"),
    initializer_mixed_counts=lambda: initializer.Mixed(["fc"], []),
    initializer_mixed_pattern=lambda: initializer.Mixed(["*_bias"], [initializer.Zero()]),
    initializer_scale=lambda: initializer.create("uniform", scale="0.1"),
    initializer_mixed_none=lambda: filled(initializer.Mixed(["conv"], [initializer.Zero()]), zeros(2)),
    initializer_load_missing=lambda: filled(initializer.Load({"arg:fc_wieght": zeros(2)}), zeros(2)),
    initializer_load_shape=lambda: filled(initializer.Load({"arg:fc_weight": zeros(3)}), zeros(2)),
)

# --- recurrent cells -------------------------------------------------------------------------------------------------


def shared_params() -> None:
    stack = rnn.SequentialRNNCell(params=rnn.RNNParams())
    stack.add(rnn.RNNCell(2, params=rnn.RNNParams("rnn_")))


def modified() -> rnn.BaseRNNCell:
    cell = rnn.LSTMCell(2)
    rnn.ResidualCell(cell)
    return cell


def modified_stack() -> rnn.BaseRNNCell:
    stack = rnn.SequentialRNNCell()
    rnn.ResidualCell(stack)
    return stack


def modified_modifier() -> rnn.BaseRNNCell:
    cell = rnn.ResidualCell(rnn.LSTMCell(2))
    rnn.ZoneoutCell(cell)
    return cell


def fused_pieces() -> dict[str, Any]:
    cell = rnn.FusedRNNCell(2, mode="rnn_tanh", prefix="r_")
    return {**cell.unpack_weights({"r_parameters": zeros(14)}), "r_l0_h2h_bias": zeros(3)}


cases(
    cell_no_states=lambda: rnn.BaseRNNCell("a_").state_info,
    cell_no_steps=lambda: rnn.FusedRNNCell(2)(Var("x"), []),
    cell_modified=lambda: modified().begin_state(),
    cell_modified_stack=lambda: modified_stack().begin_state(),
    cell_modified_modifier=lambda: modified_modifier().begin_state(),
    cell_weights_missing=lambda: rnn.LSTMCell(2).unpack_weights({"lstm_i2h_wieght": zeros(8, 3)}),
    cell_layout=lambda: rnn.LSTMCell(2).unroll(2, Var("x"), layout="NC"),
    cell_inputs_two=lambda: rnn.LSTMCell(2).unroll(2, sym.Group([Var("x"), Var("y")])),
    cell_inputs_count=lambda: rnn.LSTMCell(2).unroll(3, [Var("x"), Var("y")]),
    cell_fused_layout=lambda: rnn.FusedRNNCell(2, prefix="f_").unroll(2, Var("x"), layout="NCT"),
    cell_fused_mode=lambda: rnn.FusedRNNCell(2, mode="ltsm"),
    cell_fused_piece=lambda: rnn.FusedRNNCell(2, mode="rnn_tanh", prefix="r_").pack_weights(fused_pieces()),
    cell_kernel=lambda: rnn.ConvLSTMCell((1, 3, 8, 8), 2, h2h_kernel=(2, 3)),
    cell_conv_layout=lambda: rnn.ConvLSTMCell((1, 8, 8, 3), 2, conv_layout="NHWC"),
    cell_params_twice=shared_params,
    cell_no_cell=lambda: rnn.SequentialRNNCell().add(5),
    cell_inputs_number=lambda: rnn.LSTMCell(2).unroll(2, 2),
    cell_states=lambda: rnn.LSTMCell(2)(Var("x"), [Var("s")]),
    cell_states_nothing=lambda: rnn.LSTMCell(2)(Var("x"), None),
    cell_states_count=lambda: modified_stack()(Var("x"), [Var("s")]),
    cell_zoneout=lambda: rnn.ZoneoutCell(rnn.FusedRNNCell(2)),
)

# --- the tests -------------------------------------------------------------------------------------------------------


(
    found, test_text, test_no_text_is_left_over, test_every_refusal_is_reached,
    test_what_is_held_elsewhere_is_there,
) = checks_of(RECORDER)  # fmt: skip
