"""The names of the package: each leads somewhere, or says that its part is not there."""

from __future__ import annotations

import importlib
import inspect
import subprocess
import sys

import pytest

import arrayexec as ax

NOT_YET: set[str] = set()
"""Names whose modules later work brings; exactly these."""


PUBLIC = {
    "sym": "Variable var Group load load_json",
    "name": "NameManager Prefix",
    "ops": "list",
    "testing": "check_op",
    "operator": "CustomOp CustomOpProp register",
    "executor_manager": "split_input_slice _split_input_slice _check_arguments _load_general _load_data _load_label "
    "_bind_exec DataParallelExecutorGroup DataParallelExecutorManager",
    "comm": "init Communicator",
    "kv": "create KVStore",
    "checkpoint": "save resume load Checkpoints Position",
    "io": "DataDesc DataBatch DataIter NDArrayIter ArrayIter ResizeIter PrefetchingIter BucketSentenceIter CSVIter LibSVMIter "
    "MNISTIter ImageRecordIter ImageRecordUInt8Iter ImageRecordInt8Iter IterableIter ShardedSampler RowIter",
    "recordio": "MXRecordIO MXIndexedRecordIO IRHeader pack unpack pack_img unpack_img",
    "image": "imdecode imresize resize_short fixed_crop random_crop center_crop color_normalize CreateAugmenter ImageIter",
    "init": "InitDesc Zero One Constant Uniform Normal Orthogonal Xavier MSRAPrelu Bilinear LSTMBias FusedRNN Load Mixed",
    "optimizer": "create get_updater Optimizer SGD NAG Adam",
    "lr_scheduler": "LRScheduler FactorScheduler MultiFactorScheduler PolyScheduler CosineScheduler",
    "metric": "create EvalMetric CompositeEvalMetric Accuracy CrossEntropy Perplexity",
    "mon": "Monitor",
    "callback": "Speedometer ProgressBar",
    "rnn": "BucketSentenceIter RNNParams BaseRNNCell RNNCell LSTMCell GRUCell FusedRNNCell SequentialRNNCell BidirectionalCell "
    "DropoutCell ModifierCell ZoneoutCell ResidualCell ConvRNNCell ConvLSTMCell ConvGRUCell",
    "nd": "load save",
    "mod": "BaseModule Module BucketingModule SequentialModule PythonModule PythonLossModule",
    "model": "FeedForward save_checkpoint load_checkpoint load_params BatchEndParam",
    "random": "seed",
    "Symbol": "name list_arguments list_auxiliary_states list_outputs list_inputs get_internals get_children attr list_attr "
    "attr_dict infer_shape infer_shape_partial infer_type gradient bind simple_bind eval save tojson summary to_mermaid to_dot _repr_html_",
    "Executor": "forward backward outputs output_dict arg_arrays grad_arrays aux_arrays arg_dict grad_dict aux_dict "
    "copy_params_from reshape set_monitor_callback memory_plan debug_str",
    "errors": "NonFiniteError IndexRangeError ShapeError TypeInferenceError BindError NotBoundError StaleForwardError "
    "BucketError ContextError CheckpointError BackendUnavailableError FileFormatError UnknownOperatorError AttributeValueError ParallelizeError DeviceError "
    "RendezvousError PlanMismatchError AlreadyParallelizedError InconsistentReplicaError CollectiveError PeerFailure "
    "CollectiveTimeoutError BarrierTimeoutError BlobFreedError",
}
"""What programs rely on, by the module or class that has it."""

ORDER = {
    "sym.Variable": "name shape dtype init lr_mult wd_mult attr",
    "Symbol.bind": "self ctx args args_grad grad_req aux_states group2ctx shared_exec",
    "Symbol.simple_bind": "self ctx grad_req type_dict stype_dict group2ctx shared_arg_names shared_exec shared_data_arrays",
    "Executor.forward": "self is_train",
    "Executor.backward": "self out_grads is_train",
    "Executor.copy_params_from": "self arg_params aux_params allow_extra_params",
    "Executor.reshape": "self partial_shaping allow_up_sizing",
    "Executor.set_monitor_callback": "self callback monitor_all",
    "executor_manager.split_input_slice": "batch_size work_load_list",
    "executor_manager._bind_exec": "sym ctx input_shapes param_names need_grad base_exec shared_data_arrays input_types logger",
    "executor_manager.DataParallelExecutorGroup": "sym arg_names param_names ctx slices train_data shared_group grad_req",
    "mod.Module": "symbol data_names label_names logger context work_load_list fixed_param_names state_names group2ctxs "
    "compression_params",
    "mod.BucketingModule": "sym_gen default_bucket_key logger context work_load_list fixed_param_names state_names group2ctxs "
    "compression_params",
    "model.FeedForward": "symbol ctx num_epoch epoch_size optimizer initializer numpy_batch_size arg_params aux_params "
    "allow_extra_params begin_epoch",
    "model.save_checkpoint": "prefix epoch symbol arg_params aux_params remove_amp_cast",
    "executor_manager.DataParallelExecutorManager": "symbol ctx train_data arg_names param_names aux_names work_load_list "
    "logger sym_gen grad_req",
}
"""Parameters that may be given by position, in this order."""


@pytest.mark.parametrize("home", PUBLIC)
def test_public_names_are_there_and_documented(home: str) -> None:
    for name in PUBLIC[home].split():
        assert inspect.getdoc(getattr(getattr(ax, home), name)), name


@pytest.mark.parametrize("path", ORDER)
def test_public_parameters_keep_their_order(path: str) -> None:
    home, name = path.split(".")
    parameters = inspect.signature(getattr(getattr(ax, home), name)).parameters.values()
    by_position = [p.name for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD]
    wanted = ORDER[path].split()
    assert by_position[: len(wanted)] == wanted


@pytest.mark.parametrize("name", PUBLIC["errors"].split())
def test_errors_are_one_tree_and_builtin_ones_too(name: str) -> None:
    error = getattr(ax, name)
    assert issubclass(error, ax.ArrayExecError)
    assert issubclass(error, ValueError | TypeError | KeyError | RuntimeError | ArithmeticError)


def leads(name: str) -> bool:
    try:
        getattr(ax, name)
    except AttributeError as error:
        assert "is not part of this installation: no module" in str(error)
        return False
    return True


def test_every_name_leads_somewhere() -> None:
    assert {name for name in dir(ax) if not leads(name)} == NOT_YET


def test_modules_are_imported_under_their_public_names(subprocess_env: dict[str, str]) -> None:
    program = f"""
import importlib, sys
for name in {sorted(set(ax._MODULES) - NOT_YET)}:
    first = importlib.import_module("arrayexec." + name)
    assert first is getattr(sys.modules["arrayexec"], name) is sys.modules["arrayexec." + name], name
    assert first is sys.modules[first.__name__] and first.__spec__.name == first.__name__, name
"""
    subprocess.run([sys.executable, "-W", "error", "-c", program], env=subprocess_env, check=True, timeout=60)


def test_names_are_imported_from_modules() -> None:
    from arrayexec.executor_manager import DataParallelExecutorManager, _split_input_slice  # the seed's names

    assert DataParallelExecutorManager is ax.executor_manager.DataParallelExecutorManager
    assert _split_input_slice(4, [1, 1]) == [slice(0, 2), slice(2, 4)]
    with pytest.raises(ModuleNotFoundError, match="arrayexec.nobody"):
        importlib.import_module("arrayexec.nobody")


@pytest.mark.parametrize("name", [name for name in dir(ax) if name not in NOT_YET and not name.startswith("_")])
def test_names_are_documented(name: str) -> None:
    assert inspect.getdoc(getattr(ax, name))


def test_error_classes_are_found() -> None:
    assert ax.ShapeError is ax.errors.ShapeError
    assert issubclass(ax.BucketError, ax.ArrayExecError)
