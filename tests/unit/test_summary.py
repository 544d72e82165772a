"""Tables and pictures of graphs."""

from __future__ import annotations

from typing import Any

from arrayexec import sym


def net() -> Any:
    out = sym.Convolution(sym.Variable("data"), kernel=(3, 3), num_filter=4, name="conv")
    out = sym.BatchNorm(out, name="bn")
    return sym.SoftmaxOutput(sym.FullyConnected(out, num_hidden=2, name="fc"), name="softmax")


def test_table_counts_parameters_from_shapes() -> None:
    # 1 -> 4 channels of 3 x 3 with bias: 40; gamma and beta: 8; 4 * 4 * 4 -> 2 with bias: 130
    assert net().summary(data=(8, 1, 6, 6)) == (
        "Layer          Operator        Output shape  Parameters  Inputs\n"
        "--------------------------------------------------------------------------\n"
        "data           Variable        (8, 1, 6, 6)\n"
        "conv           Convolution     (8, 4, 4, 4)          40  data\n"
        "bn             BatchNorm       (8, 4, 4, 4)           8  conv\n"
        "fc             FullyConnected  (8, 2)               130  bn\n"
        "softmax_label  Variable        (8,)\n"
        "softmax        SoftmaxOutput   (8, 2)                    fc, softmax_label\n"
        "--------------------------------------------------------------------------\n"
        "Trainable parameters: 178\n"
        "Auxiliary states: 8"
    )


def test_table_says_what_it_does_not_know() -> None:
    text = net().summary()
    assert "conv           Convolution     (?, 4, ?, ?)         4+?  data" in text
    assert "Trainable parameters: 14+?" in text  # 4 of the bias, 8 of bn, 2 of the bias
    assert "Auxiliary states: 8" in text


def test_shared_parameters_count_once() -> None:
    x, w = sym.Variable("x"), sym.Variable("w")
    first = sym.FullyConnected(x, w, num_hidden=3, no_bias=True, name="a")
    second = sym.FullyConnected(first, w, num_hidden=3, no_bias=True, name="b")
    text = second.summary(x=(2, 3))
    assert "Trainable parameters: 9" in text
    assert [line.split() for line in text.splitlines()][3][-2:] == ["9", "x"]


def test_pictures_show_the_flow_of_the_data() -> None:
    assert net().to_mermaid(data=(8, 1, 6, 6)) == (
        "flowchart TD\n"
        '  n0(["data"])\n'
        '  n3["conv<br>Convolution"]\n'
        '  n8["bn<br>BatchNorm"]\n'
        '  n11["fc<br>FullyConnected"]\n'
        '  n12(["softmax_label"])\n'
        '  n13["softmax<br>SoftmaxOutput"]\n'
        '  n0 -->|"(8, 1, 6, 6)"| n3\n'
        '  n3 -->|"(8, 4, 4, 4)"| n8\n'
        '  n8 -->|"(8, 4, 4, 4)"| n11\n'
        '  n11 -->|"(8, 2)"| n13\n'
        '  n12 -->|"(8,)"| n13'
    )
    assert net().to_dot() == (
        "digraph {\n"
        "  node [shape=box, style=rounded];\n"
        '  n0 [label="data", shape=oval];\n'
        '  n3 [label="conv\\nConvolution"];\n'
        '  n8 [label="bn\\nBatchNorm"];\n'
        '  n11 [label="fc\\nFullyConnected"];\n'
        '  n12 [label="softmax_label", shape=oval];\n'
        '  n13 [label="softmax\\nSoftmaxOutput"];\n'
        "  n0 -> n3;\n"
        "  n3 -> n8;\n"
        "  n8 -> n11;\n"
        "  n11 -> n13;\n"
        "  n12 -> n13;\n"
        "}"
    )


def test_html_escapes_names() -> None:
    text = (sym.Variable("a<b>") + 1)._repr_html_()
    assert "<td>a&lt;b&gt;</td><td>Variable</td><td>?</td>" in text
    assert "Trainable parameters: 0<br>" in text


def test_debug_text_lists_every_node() -> None:
    lines = net().debug_str().splitlines()
    assert lines[0] == "outputs: softmax_output"
    assert len(lines) == 15
    assert lines[12].startswith("   11  FullyConnected 'fc' (test_summary.py:")
    assert lines[12].endswith("  <- bn_output, fc_weight, fc_bias")
