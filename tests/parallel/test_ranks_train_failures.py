"""What managers refuse under ranks, told on all ranks; what fails in a training loop ends the job."""

from __future__ import annotations

import json

import pytest

from tests.parallel.mpi_helper import run_ranks

pytestmark = pytest.mark.mpi

ADVICE = "every rank must run the same program with the same model and options"


def differs(what: str, *ranks: str) -> str:
    rows = "".join(f"\n    rank {rank}  {text}" for rank, text in enumerate(ranks))
    return (
        f"PlanMismatchError: the model and its training: the ranks must hold the same, but {what} differs\n"
        f"  found:{rows}\n  {ADVICE}"
    )


DROPOUT = "Dropout(p=%s, mode='training', axes=(), cudnn_off=False) of relu1_output"

REFUSED = {
    "model": differs("\"parameter 'fc2_weight'\"", "(3, 8) float32", "(3, 9) float32"),
    "input": differs("\"input 'data'\"", "(rows, 6) float32", "(rows, 6) float64"),
    "operator": differs("\"parameter 'bn_gamma'\"", "not there", "(8,) float32"),
    "attribute": differs("\"node 'drop'\"", DROPOUT % 0.25, DROPOUT % 0.5),
    "gradient request": differs("'grad_req'", "write", "add"),
    "seed": differs("'seed'", "0", "1"),
    "optimizer": differs("'lr'", "0.1", "0.2").replace("the model and its training", "the optimizer"),
    "steps": differs("'batches an epoch'", "7", "8"),
    "bucket keys": differs("'buckets'", "[3, 5]", "[3, 4, 5]"),
    "another bucket": differs("\"parameter 'own3_bias'\"", "not there", "(4,) float32"),
    "not announced": "BucketError: buckets under ranks must be announced: give bucket_keys=, or an iterator that has "
    "'buckets'",
    "unannounced key": "BucketError: bucket 4 was not announced; announced are [3, 5]",
    "unknown shape": "BucketError: bucket 3: the shape of 'weight_3' does not follow from the default bucket: let the "
    "iterator describe its buckets (a method describe(key)), or give Variable(shape=…)",
    "reduced": "NotBoundError: backward would add to gradients that are summed over devices and ranks already: call "
    "zero_grad() after the update",
    "unknown parameter": "UnknownNameError: set_params: there is no 'l0_i2h_wight' among the parameters; did you mean "
    "'l0_i2h_weight' or 'l0_h2h_weight'?",
}


def test_refusals_are_told_on_all_ranks() -> None:
    run = run_ranks("refusals.py", 2)
    assert (run.code, run.err) == (0, "")
    assert json.loads(run.out) == {name: [text, text] for name, text in REFUSED.items()}


@pytest.mark.parametrize("case", ["model", "unannounced key"])
def test_a_refusal_ends_the_job(case: str) -> None:
    run = run_ranks("refusals.py", 2, case)
    assert run.code != 0
    assert run.complaint().endswith(f"Traceback (most recent call last):\narrayexec.errors.{REFUSED[case]}")


@pytest.mark.parametrize(
    ("event", "text"),
    [
        ("exception", "ValueError: bad row 17"),
        ("early return", "rank 1 left (exit) while rank 0 waits for it in allreduce of gradient bucket 0 (step 2)"),
        ("SIGKILL", ""),
    ],
)
def test_a_failure_in_the_loop_ends_the_job(event: str, text: str) -> None:
    run = run_ranks("training_loop.py", 3, event)
    assert run.code != 0
    assert text in run.complaint()
    assert run.after("failing at") <= 5
