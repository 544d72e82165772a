"""Runs a line of `expressions.txt` with a namespace ``mx`` and describes what it gives; MXNet 1.9.1 can run it, too.

``python evaluate.py`` in an environment with MXNet writes `facts.json` anew.
"""

from __future__ import annotations

import json
import os
import warnings

import numpy as np

FOLDER = os.path.dirname(os.path.abspath(__file__))


def lines():
    """The expressions in order, each once."""
    with open(os.path.join(FOLDER, "expressions.txt"), encoding="utf-8") as file:
        found = [line.strip() for line in file]
    return list(dict.fromkeys(line for line in found if line and not line.startswith("#")))


def describe(mx, value):
    """``value`` in JSON's types: kind, shape, type and rounded numbers of arrays; other things as they are."""
    if isinstance(value, mx.nd.NDArray):
        return {"nd": numbers(value.asnumpy()), "dtype": np.dtype(value.dtype).name, "shape": list(value.shape)}
    if isinstance(value, np.ndarray):
        return {"numpy": numbers(value), "dtype": value.dtype.name, "shape": list(value.shape)}
    if isinstance(value, (list, tuple)):
        return [describe(mx, item) for item in value]
    if isinstance(value, dict):
        return {str(key): describe(mx, item) for key, item in value.items()}
    if isinstance(value, (bool, np.bool_)):
        return bool(value)
    if isinstance(value, (int, np.integer)):
        return int(value)
    if isinstance(value, (float, np.floating)):
        return float(repr_float(value))
    if isinstance(value, type):
        return value.__name__
    return value if value is None or isinstance(value, str) else type(value).__name__


def repr_float(value):
    return f"{float(value):.5g}"


def numbers(array):
    if array.dtype.kind in "biu":
        return array.astype(np.int64).reshape(-1).tolist()
    return [repr_float(item) for item in array.reshape(-1)]


def evaluate(mx, line):
    """What the last of the statements of a line gives; the class of its exception if it raises one."""
    nd = mx.nd
    place = {
        "mx": mx, "nd": nd, "np": np,
        "A": nd.array([[1, 2, 3], [4, 5, 6]]), "B": nd.array([[6, 5, 4], [3, 2, 1]]), "V": nd.array([1, -2, 3]),
        "I": nd.array([[7, -8, 9], [4, 5, -6]], dtype="int32"), "D": nd.array([[1.5, 2.5], [3.5, 4.5]], dtype="float64"),
        "S": nd.array([2.5]), "T": nd.array(np.arange(24).reshape(2, 3, 4)),
    }  # fmt: skip
    *statements, last = [part.strip() for part in line.split(";;")]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            for statement in statements:
                exec(statement, place)
            value = eval(last, place)
            if isinstance(value, (list, tuple)):
                for item in value:
                    getattr(item, "wait_to_read", lambda: None)()
            getattr(value, "wait_to_read", lambda: None)()
            return describe(mx, value)
        except Exception as error:
            return {"error": type(error).__name__}


if __name__ == "__main__":
    np.bool = bool
    import mxnet

    found = {line: evaluate(mxnet, line) for line in lines()}
    with open(os.path.join(FOLDER, "facts.json"), "w", encoding="utf-8") as file:
        file.write("{\n" + ",\n".join(json.dumps(k) + ": " + json.dumps(v) for k, v in found.items()) + "\n}\n")
