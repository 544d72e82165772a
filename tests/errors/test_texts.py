"""Every error that a public call can reach in the graph, the plan, the executor and the operator form: its whole text.

The texts stand in ``texts.txt``; how they are recorded: ``recorder.py``.
"""

from __future__ import annotations

import json
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest

import arrayexec as ax
from arrayexec import context, registry, sym
from tests.errors.recorder import PACKAGE, Faults, Recorder, checks_of

RECORDER = Recorder(
    Path(__file__).parent / "texts.txt",
    [
        *sorted(path for room in ("symbol", "plan", "executor") for path in (PACKAGE / room).glob("*.py")),
        *(PACKAGE / f"{name}.py" for name in ("registry", "attribute_text", "dims", "context", "streams")),
    ],
    internal={"_Wrong", "_Conflict", "_Refused", "Deferred"},
    elsewhere={
        "context.py": {
            "self.name} cannot be used: {reason}": "a GPU that is not there: tests/gpu/test_no_driver.py",
            "the source must have the shape {out.shape}": "copies to a GPU: tests/gpu",
            "was opened before this process was forked": "GPUs in a forked child: tests/gpu",
        },
        "executor/checks.py": {
            "must lie on {context}": "arrays of another device: tests/exec on the strict device, tests/gpu"
        },
    },
)
case, cases = RECORDER.case, RECORDER.cases

CPU = ax.cpu()
Var = sym.Variable


def draw(*shape: int) -> np.ndarray:
    return np.zeros(shape, np.float32)


def dense(**attributes: Any) -> Any:
    return sym.FullyConnected(Var("data"), name="fc", **{"num_hidden": 2, **attributes})


def bound(**options: Any) -> Any:
    return dense().simple_bind(CPU, data=(4, 3), **options)


def ran() -> Any:
    executor = bound()
    executor.forward(True)
    return executor


# --- symbols ---------------------------------------------------------------------------------------------------------

cases(
    output_by_name=lambda: dense()["fc_outptu"],
    output_by_name_twice=lambda: sym.Group([Var("a"), Var("a")])["a"],
    output_by_empty_slice=lambda: dense()[5:],
    output_by_float=lambda: dense()[0.5],
    output_out_of_range=lambda: dense()[1],
    symbol_as_truth=lambda: bool(Var("a")),
    set_attribute_of_another_node=lambda: dense()._set_attr(weight_lr_mult="2"),
    set_attribute_of_the_operator=lambda: dense()._set_attr(num_hidden="2"),
    set_attribute_no_text=lambda: dense()._set_attr(note=2),
    attributes_no_dict=lambda: Var("a", attr=[1]),
    infer_both_ways=lambda: dense().infer_shape((2, 3), data=(2, 3)),
    infer_too_many=lambda: dense().infer_shape((2, 3), (2, 3), (2,), (2,)),
    infer_unknown_name=lambda: dense().infer_shape(dta=(2, 3)),
    infer_shape_no_tuple=lambda: dense().infer_shape(data=[2, 3]),
    infer_shape_dims=lambda: dense().infer_shape(data=(2.0, 3)),
    infer_type_unknown=lambda: dense().infer_type(data="flot"),
    infer_type_of_variable=lambda: Var("a", dtype="flot"),
    compose_two_outputs=lambda: dense()(data=sym.Group([Var("a"), Var("b")])),
    compose_number=lambda: dense()(data=5),
    compose_name_of_variable=lambda: Var("a")(name="b"),
    variable_name=lambda: Var(5),
    variable_suffix=lambda: Var("a", attr={"weight_lr_mult": "2"}),
    variable_keyword=lambda: Var("a", shpe=(2,)),
    variable_init=lambda: Var("a", init=5),
    group_of_number=lambda: sym.Group(5),
    group_with_number=lambda: sym.Group([Var("a"), 5]),
    group_of_none=lambda: sym.Group([]),
    no_such_operator=lambda: sym.FullyConnectd,
    algebra_two_outputs=lambda: sym.Group([Var("a"), Var("b")]) * 2,
    algebra_array=lambda: Var("a") + draw(2),
    algebra_text=lambda: Var("a") + "b",
    scope_no_text=lambda: ax.AttrScope(note=5),
)

# --- operators as functions ------------------------------------------------------------------------------------------

cases(
    operator_name=lambda: sym.FullyConnected(Var("data"), num_hidden=2, name=5),
    operator_two_outputs=lambda: sym.FullyConnected(sym.Group([Var("a"), Var("b")]), num_hidden=2, name="fc"),
    operator_array=lambda: sym.FullyConnected(draw(2, 3), num_hidden=2, name="fc"),
    operator_array_by_name=lambda: sym.FullyConnected(data=draw(2, 3), num_hidden=2, name="fc"),
    operator_too_many_values=lambda: sym.Activation(Var("a"), "relu", 5, 6, name="act"),
    operator_symbol_behind_value=lambda: sym.FullyConnected(Var("a"), 5, Var("b"), name="fc"),
    operator_value_twice=lambda: sym.Activation(Var("a"), "relu", act_type="relu", name="act"),
    operator_too_many_inputs=lambda: sym.Activation(Var("a"), Var("b"), act_type="relu", name="act"),
    operator_input_twice=lambda: sym.FullyConnected(Var("a"), data=Var("b"), num_hidden=2, name="fc"),
    operator_unknown_input=lambda: sym.FullyConnected(Var("a"), wait=Var("b"), num_hidden=2, name="fc"),
    operator_unknown_attribute=lambda: sym.FullyConnected(Var("a"), num_hiden=2, name="fc"),
    operator_suffix=lambda: sym.FullyConnected(Var("a"), num_hidden=2, weight_lr_mult=2, name="fc"),
    operator_no_inputs=lambda: sym.Concat(name="cat"),
    operator_attribute_missing=lambda: sym.FullyConnected(Var("a"), name="fc"),
    operator_attribute_text=lambda: sym.FullyConnected(Var("a"), num_hidden="two", name="fc"),
    operator_attribute_option=lambda: sym.Activation(Var("a"), act_type="rellu", name="act"),
    operator_attribute_range=lambda: sym.FullyConnected(Var("a"), num_hidden=0, name="fc"),
    operator_attribute_number=lambda: Var("a") + 10**400,
    variables_disagree=lambda: (Var("a", shape=(2,)) + Var("a", shape=(3,))).list_arguments(),
)


@case
def graph_with_a_cycle() -> None:
    net = sym.tanh(Var("a"), name="t")
    node = net._heads[0][0]
    node.inputs = ((node, 0),)
    net.list_arguments()


# --- gradients as symbols --------------------------------------------------------------------------------------------


cases(
    gradient_name=lambda: dense().gradient("fc_wieght"),
    gradient_of_nothing=lambda: dense().gradient([]),
    gradient_heads_count=lambda: dense().gradient("data", [Var("a"), Var("b")]),
    gradient_heads_of_two=lambda: dense().gradient("data", [sym.Group([Var("a"), Var("b")])]),
    gradient_not_known=lambda: sym.sum(sym.Dropout(dense(), name="drop")).gradient("data"),
    gradient_of_no_operator=lambda: sym.trigamma(Var("data"), name="n").gradient("data"),
    namespace_name=lambda: sym.random.unifrom(),
    namespace_mixed=lambda: sym.random.uniform(Var("low"), 1.0),
    gradient_of_a_loss_head=lambda: sym.SoftmaxOutput(dense(), name="softmax").gradient("fc_weight"),
)


# --- inference -------------------------------------------------------------------------------------------------------

cases(
    shapes_conflict=lambda: dense().infer_shape(data=(2, 3), fc_weight=(2, 4)),
    shapes_of_other_rank=lambda: dense().infer_shape(data=(2, 3), fc_weight=(2, 4, 1)),
    shape_refused=lambda: sym.slice_axis(Var("a"), axis=7, begin=0, end=1, name="cut").infer_shape(a=(2, 3)),
    types_conflict=lambda: dense().infer_type(data="float32", fc_weight="float64"),
    shape_text_of_a_variable=lambda: sym.tanh(Var("a", __shape__="(two)"), name="t").infer_shape(),
)


@case
def shapes_conflict_with_words() -> None:
    a = Var("a")
    rows = sym.elemwise_add(sym.sum(a, axis=1, name="total"), Var("b"), name="rows")
    sym.Group([rows, sym.elemwise_add(a, Var("c"), name="all")]).infer_shape(b=(3,), c=(2, 5))


# --- binding ---------------------------------------------------------------------------------------------------------

ARRAYS = {"data": draw(4, 3), "fc_weight": draw(2, 3), "fc_bias": draw(2)}


def bind(**options: Any) -> Any:
    given = {"args": {**ARRAYS, **options.pop("args", {})}, **options}
    return dense().bind(options.pop("ctx", CPU), **{k: v for k, v in given.items() if k != "ctx"})


cases(
    bind_context=lambda: dense().bind("cpu", ARRAYS),
    bind_missing=lambda: dense().bind(CPU, {"data": draw(4, 3), "fc_wait": draw(2, 3)}),
    bind_missing_in_list=lambda: dense().bind(CPU, [draw(4, 3), None, draw(2)]),
    bind_count=lambda: dense().bind(CPU, [draw(4, 3)]),
    bind_no_list=lambda: dense().bind(CPU, 5),
    bind_no_array=lambda: bind(args={"fc_bias": [1, 2]}),
    bind_masked=lambda: bind(args={"fc_bias": np.ma.zeros(2, np.float32)}),
    bind_type=lambda: bind(args={"fc_bias": np.zeros(2, object)}),
    bind_shapes=lambda: bind(args={"fc_bias": draw(3)}),
    bind_types=lambda: bind(args={"fc_bias": np.zeros(2)}),
    bind_request=lambda: bind(grad_req="wrte"),
    bind_request_name=lambda: bind(grad_req={"fc_wait": "add"}),
    bind_request_count=lambda: bind(grad_req=["add"]),
    bind_gradient_shape=lambda: bind(args_grad={"fc_bias": draw(3)}),
    bind_gradient_type=lambda: bind(args_grad={"fc_bias": np.zeros(2)}),
    bind_gradient_same_elements=lambda: bind(
        args_grad={"data": np.lib.stride_tricks.as_strided(draw(1), (4, 3), (0, 0))}
    ),
    bind_overlap=lambda: bind(args_grad={"fc_bias": ARRAYS["fc_bias"]}),
    bind_group_no_dict=lambda: bind(group2ctx=5),
    bind_group_no_context=lambda: bind(group2ctx={"dev1": "cpu"}),
    bind_group_missing=lambda: dense(attr={"ctx_group": "dev2"}).simple_bind(
        CPU, group2ctx={"dev1": ax.cpu(1)}, data=(4, 3)
    ),
    bind_lender=lambda: bind(shared_exec=5),
    bind_lender_elsewhere=lambda: bind(ctx=ax.cpu(1), shared_exec=bound()),
    simple_bind_unknown=lambda: dense().simple_bind(CPU),
    simple_bind_name=lambda: dense().simple_bind(CPU, dta=(4, 3)),
    simple_bind_no_shape=lambda: dense().simple_bind(CPU, data=4),
    simple_bind_dims=lambda: dense().simple_bind(CPU, data=(4, -3)),
    simple_bind_rank=lambda: sym.tanh(Var("a"), name="t").simple_bind(CPU, a=(1,) * 65),
    simple_bind_sparse=lambda: bound(stype_dict={"fc_weight": "row_sparse"}),
    simple_bind_type_name=lambda: bound(type_dict={"fc_wait": "float32"}),
    simple_bind_type=lambda: bound(type_dict={"fc_weight": "flot"}),
    simple_bind_shared_text=lambda: bound(shared_exec=bound(), shared_arg_names="fc_weight"),
    simple_bind_pool=lambda: bound(shared_data_arrays=[draw(4, 3)]),
    simple_bind_pool_entry=lambda: bound(shared_data_arrays={"data": [1, 2]}),
    simple_bind_no_lender=lambda: bound(shared_arg_names=["fc_weight"]),
    simple_bind_lender_has_none=lambda: sym.FullyConnected(Var("data"), num_hidden=2, name="other").simple_bind(
        CPU, data=(4, 3), shared_exec=bound(), shared_arg_names=["other_weight"]
    ),
    simple_bind_lender_differs=lambda: dense(num_hidden=5).simple_bind(
        CPU, data=(4, 3), shared_exec=bound(), shared_arg_names=["fc_weight"]
    ),
    reshape_follows=lambda: bound().reshape(data=(4, 2)),
    reshape_grows=lambda: bound().reshape(data=(9, 3)),
)


@case
def train_read_only_state() -> None:
    state = draw(3)
    state.flags.writeable = False
    net = sym.BatchNorm(Var("a"), name="bn")
    net.bind(CPU, [draw(2, 3), draw(3), draw(3)], aux_states=[state, draw(3)]).forward(True)


@case
def bind_gradient_read_only() -> None:
    fixed = draw(2)
    fixed.flags.writeable = False
    bind(args_grad={"fc_bias": fixed})


# --- running ---------------------------------------------------------------------------------------------------------

cases(
    forward_name=lambda: bound().forward(dta=draw(4, 3)),
    forward_no_array=lambda: bound().forward(data=[1, 2]),
    forward_shape=lambda: bound().forward(data=draw(4, 2)),
    forward_numbers=lambda: bound().forward(data=np.zeros((4, 3), complex)),
    backward_before_forward=lambda: bound().backward(draw(4, 2)),
    backward_needs_heads=lambda: ran().backward(),
    backward_too_many=lambda: ran().backward([draw(4, 2)] * 2),
    backward_name=lambda: ran().backward({"fc_outptu": draw(4, 2)}),
    backward_no_array=lambda: ran().backward(5.0),
    backward_shape=lambda: ran().backward(draw(4, 3)),
    copy_name=lambda: bound().copy_params_from({"fc_wait": draw(2)}),
    copy_no_dict=lambda: bound().copy_params_from([draw(2)]),
    copy_no_array=lambda: bound().copy_params_from({"fc_bias": [1, 2]}),
    copy_shape=lambda: bound().copy_params_from({"fc_bias": draw(3)}),
    monitor=lambda: bound().set_monitor_callback(5),
    check_word=lambda: bound().forward(check="nan"),
    not_finite=lambda: bound().forward(check="finite", data=np.full((4, 3), np.nan, np.float32)),
    not_finite_gradient=lambda: ran().backward(np.full((4, 2), np.inf, np.float32), check="finite"),
    internals_no_list=lambda: bound().forward(internals="fc_output"),
    internals_name=lambda: bound().forward(internals=["fc_outptu"]),
    internals_twice=lambda: sym.Group([Var("a") + 1, sym.tanh(Var("b"), name="_plusscalar0")]).simple_bind(
        CPU, a=(2,), b=(2,)
    ).forward(internals=["_plusscalar0_output"]),
    pickle=lambda: bound().__reduce__(),
    output_dict_twice=lambda: sym.Group([sym.tanh(Var("a"), name="t")] * 2).simple_bind(CPU, a=(2,)).output_dict,
)


@case
def backward_after_another_executor() -> None:
    first = ran()
    dense(num_hidden=3).simple_bind(CPU, data=(4, 3), shared_exec=first).forward(True)
    first.backward(draw(4, 2))


@case
def backward_after_grown_inputs() -> None:
    pool: dict[str, Any] = {}
    first = bound(shared_data_arrays=pool)
    first.forward(True)
    dense().simple_bind(CPU, data=(50, 3), shared_data_arrays=pool)
    first.backward(draw(4, 2))


@case
def backward_after_a_write() -> None:
    executor = ran()
    executor.copy_params_from({"fc_bias": draw(2)})
    executor.backward(draw(4, 2))


@case
def backward_after_a_fault() -> None:
    executor = bound()

    def fail(name: str, array: Any) -> None:
        raise KeyError

    executor.set_monitor_callback(fail)
    with pytest.raises(KeyError):
        executor.forward(True)
    executor.backward(draw(4, 2))


@case
def forward_from_a_monitor() -> None:
    executor = bound()
    executor.set_monitor_callback(lambda name, array: executor.forward())
    executor.forward()


@case
def executor_in_a_forked_child() -> None:
    executor = bound()
    executor._pid -= 1
    executor.forward()


# --- files -----------------------------------------------------------------------------------------------------------

GOOD = json.loads(sym.FullyConnected(Var("data"), num_hidden=4, name="fc").tojson())


def loads(change: Callable[[dict[str, Any]], Any]) -> None:
    document = json.loads(json.dumps(GOOD))
    change(document)
    sym.load_json(json.dumps(document))


def with_node(number: int, **fields: Any) -> Callable[[], None]:
    return lambda: loads(lambda document: document["nodes"][number].update(fields))


cases(
    file_no_text=lambda: sym.load_json(5),
    file_no_json=lambda: sym.load_json("{"),
    file_key_twice=lambda: sym.load_json('{"nodes": [], "nodes": []}'),
    file_page=lambda: sym.load_json("<html><body>404</body></html>"),
    file_no_graph=lambda: sym.load_json("[]"),
    file_no_heads=lambda: loads(lambda document: document.update(heads=[])),
    file_attributes=lambda: loads(lambda document: document.update(attrs=[])),
    file_version=lambda: loads(lambda document: document.update(attrs={"mxnet_version": "1"})),
    file_node=with_node(3, op=5),
    file_operators=with_node(3, op="FullyConnectd"),
    file_texts=with_node(3, attrs={"num_hidden": 4}),
    file_no_inputs=with_node(3, inputs="abc"),
    file_edge=with_node(3, inputs=[[0.0, 0, 0]]),
    file_edge_from=with_node(3, inputs=[[3, 0, 0]]),
    file_edge_output=with_node(3, inputs=[[0, 1, 0]]),
    file_variable_with_inputs=with_node(1, inputs=[[0, 0, 0]]),
    file_count=with_node(3, inputs=[[0, 0, 0]]),
    file_unknown_attribute=with_node(3, attrs={"num_hidden": "4", "num_hiden": "4"}),
    file_ports=with_node(3, op="Concat", attrs={"num_args": "+99999999"}),
)

# --- operators of users ----------------------------------------------------------------------------------------------

REST = """def infer(self, s): s.out, s.data = s.data, s.out
def forward(self, xp, data, out): xp.copyto(out, data)
def backward(self, xp, dout, ddata): xp.copyto(ddata, dout)
"""


def registers(text: str, run: bool | Callable[[], Any] = False, **options: Any) -> Callable[[], None]:
    def register() -> None:
        module = types.ModuleType("odd_texts")
        sys.modules[module.__name__] = module
        body = "".join(f"    {line}\n" for line in text.splitlines())
        source = f"from __future__ import annotations\nfrom arrayexec.registry import *\nclass Odd(Op):\n{body}"
        exec(compile(source, "odd_texts.py", "exec"), module.__dict__)
        try:
            registry.register_op(**options)(module.__dict__["Odd"])
            if callable(run):
                run()
            elif run:
                sym.Odd(Var("data"), name="n").simple_bind(CPU, data=(2, 3)).forward(True)
        finally:
            registry._OPERATORS.pop("Odd", None)

    return register


cases(
    form_no_class=lambda: registry.register_op(5),
    form_texts=registers(REST, name=5),
    form_no_forward=registers(REST.replace("forward(self, xp", "forward(self")),
    form_bound_by_name=registers(REST.replace("data, out", "*data")),
    form_member=registers("rows: int = 5\n" + REST),
    form_field=registers("k: dict = {}\n" + REST),
    form_field_type=registers("k: list[int] = None\n" + REST),
    form_field_unclear=registers("k: Missing = None\n" + REST),
    form_field_default=registers("k: int = 'x'\n" + REST),
    form_taken=registers(REST, name="Convolution"),
    form_linear=registers("linear = ('dat',)\n" + REST),
    form_linear_reads=registers("linear = ('data',)\n" + REST.replace("dout, ddata", "dout, out, ddata")),
    form_gradient_names=registers(REST + "def gradient(self, sym, dout, dat): return {}"),
    form_gradient_result=registers(
        REST + "def gradient(self, sym, dout): return {'dat': dout}",
        run=lambda: sym.Odd(Var("data"), name="n").gradient("data"),
    ),
    form_no_infer=registers(REST.replace("infer", "infre"), run=True),
    form_names=registers("outputs = 5\n" + REST, run=True),
    form_no_output=registers("outputs = ()\n" + REST, run=True),
    form_scratch=registers(REST.replace("data, out", "data, out, work: Temp"), run=True),
    form_rule_names=registers(REST.replace("s.out, s.data = s.data, s.out", "s.out = s.dat"), run=True),
    form_rule_shapes=registers(REST.replace("s.out, s.data = s.data, s.out", "s.out = (0.5,)"), run=True),
    form_rule_types=registers("def types(self, t): t.out = 'flot'\n" + REST, run=True),
    form_no_types=registers("def types(self, t): pass\n" + REST, run=True),
    operator_ports=lambda: sym.Concat(sym.Variable("a"), num_args=2**31, name="n"),
    operator_by_name=lambda: registry.get_op("FullyConnectd"),
    operator_attribute_unknown=lambda: registry.make_op("FullyConnected", {"num_hiden": 3}),
)

# --- contexts --------------------------------------------------------------------------------------------------------

cases(
    context_type=lambda: ax.Context("cpi"),
    context_number=lambda: ax.cpu(-1),
    context_taken=lambda: context.register_device("cpu", lambda i: context.Device()),
    context_role=lambda: CPU.allocate(8, "inptu"),
    context_view=lambda: CPU.view(np.zeros(8, np.uint8), 4, (2,), np.float32),
    context_of_number=lambda: context.context_of(5),
    copy_rows=lambda: context.copyto(draw(2, 2), [[1, 2], [3]]),
    copy_other_shape=lambda: context.copyto(draw(2, 2), draw(2)),
    copy_no_numbers=lambda: context.copyto(draw(2), np.array(["a", "b"])),
)


cases(seed=lambda: ax.random.seed("x"))


@case
def simple_bind_shared_states_differ() -> None:
    def norm(count: int) -> Any:
        return sym.BatchNorm(
            sym.FullyConnected(Var("data"), num_hidden=count), gamma=Var("g"), beta=Var("b"), name="bn"
        )

    lender = norm(2).simple_bind(CPU, data=(4, 3))
    norm(5).simple_bind(CPU, data=(4, 3), shared_exec=lender, shared_arg_names=["data"])


@case
def context_allocator() -> None:
    with CPU.allocator(lambda nbytes, role: np.zeros(nbytes + 1, np.uint8)):
        CPU.allocate(8, "input")


@case
def copy_to_read_only() -> None:
    fixed = draw(2)
    fixed.flags.writeable = False
    context.copyto(fixed, draw(2))


# --- the tests -------------------------------------------------------------------------------------------------------


def refused() -> Faults:
    before = set(registry._OPERATORS)
    with mock.patch.dict(context._factories):
        context._factories.pop("strict", None)  # a device of other tests
        faults = RECORDER.run()
    assert set(registry._OPERATORS) >= before
    return faults


(
    found, test_text, test_no_text_is_left_over, test_every_refusal_is_reached,
    test_what_is_held_elsewhere_is_there,
) = checks_of(RECORDER, refused)  # fmt: skip
