"""The examples in the words of MXNet's programs: each learns what it is made to learn."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).resolve().parents[2] / "examples" / "from_mxnet"

# What the last line must show. MXNet 1.9.1, running the same files, gives the values in the comments.
RUNS = {
    "train_mnist.py": lambda found: found["accuracy"] >= 0.98,  # 0.998
    "train_mnist.py --network lenet --num-epochs 2 --num-examples 1000": lambda found: found["accuracy"] >= 0.95,  # 1.000
    "svm_mnist.py": lambda found: found["accuracy"] >= 0.98,  # 0.998
    "svm_mnist.py --linear": lambda found: found["accuracy"] >= 0.98,
    "multi_task.py": lambda found: found["digit"] >= 0.98 and found["odd"] >= 0.98,  # 1.000, 1.000
    "custom_softmax.py": lambda found: found["accuracy"] >= 0.98,  # 1.000
    "matrix_factorization.py": lambda found: found["rmse"] <= 0.16,  # 0.138, of a noise of 0.1
    "autoencoder.py": lambda found: found["mse"] <= 0.008 < 0.08 < found["variance"],  # 0.005 of 0.096
    "lstm_bucketing.py": lambda found: found["perplexity"] <= 3,  # 2.4 of 50 words
    "cnn_text_classification.py": lambda found: found["accuracy"] >= 0.98,  # 1.000
    "dcgan.py": lambda found: 0.1 < found["ink"] < 0.5,  # 0.295, of 0.18 in real pictures
    "train_ssd.py": lambda found: found["recall"] >= 0.9,  # 0.987
}  # fmt: skip


def run(command: str, env: dict[str, str], *before: str) -> dict[str, float]:
    """Run an example with warnings as errors; the values of its last line."""
    program, *arguments = command.split()
    done = subprocess.run(
        [*before, sys.executable, "-W", "error", str(EXAMPLES / program), *arguments],
        env=env, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    return {key: float(value) for key, _, value in (word.partition("=") for word in done.stdout.split("\n")[-2].split())}


@pytest.mark.parametrize("command", RUNS)
def test_learns(command: str, subprocess_env: dict[str, str]) -> None:
    found = run(command, subprocess_env)
    assert RUNS[command](found), found


def test_goes_on_from_a_checkpoint(subprocess_env: dict[str, str], tmp_path: Path) -> None:
    first = f"train_mnist.py --num-epochs 1 --num-examples 500 --model-prefix {tmp_path}/digits"
    run(first, subprocess_env)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["digits-0001.params", "digits-symbol.json"]
    second = f"train_mnist.py --num-epochs 12 --num-examples 500 --model-prefix {tmp_path}/digits --load-epoch 1"
    assert run(second, subprocess_env)["accuracy"] >= 0.95  # 0.988
