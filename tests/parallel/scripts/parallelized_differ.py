"""Ranks write different updates, or are fed different numbers of rows: each is told on all ranks."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

import arrayexec as ax
from tests.parallel.parallelized import batches, build, mlp
from tests.parallel.refused import refused

ranks = ax.comm.init()


def differs(call, *texts):
    said = refused(ax.PlanMismatchError, call)
    assert all(text in said for text in texts), said


def by_hand(factor=1.0, gamma=1.0, after=0.0):
    def update(model):
        rate = model.learning_rate(0.1, "step", stepsize=1, gamma=gamma)
        for param in model.get_params():
            model.assign(param, model.weighted_sum(param, 1, model.param_to_grad[param.name] * -factor, rate))

    def sync(model):
        model.assign(model.param("fc1_b"), model.param("fc1_b") + after)

    return ax.parallelize_cpu(
        ax.ModelHelper("m"), None, mlp, param_update_builder_fun=update, post_sync_builder_fun=sync, devices=[0], rendezvous=ranks
    )


by_hand().init()
differs(by_hand(factor=1.0 + ranks.rank).init, "update of 'fc1_w': node", "-2.0")
differs(by_hand(gamma=1.0 + ranks.rank).init, "'learning_rate_0.1_step' differs", "('gamma', 2.0)")
differs(by_hand(after=float(ranks.rank)).init, "after init, 'fc1_b': node", "1.0")

model = build("sgd", [0], ranks)
data, label = batches("sgd")[0]
for rows in (24, 20):
    model.feed("data", data[:rows])
    model.feed("label", label[:rows])
    model.run()  # as many on all ranks
model.feed("data", data[: 21 + ranks.rank])
differs(model.run, "what was fed to 'sgd'", "\"rows of 'data'\" differs")
