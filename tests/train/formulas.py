"""Optimizers as their papers and MXNet write them, in float64: ``formula(w, g, s, t, lr, wd, clip, **options)`` → w.

``g`` is rescaled already; ``s`` keeps what the rule remembers; t counts from 1.
"""

from __future__ import annotations

import numpy
import pytest


def clipped(values, limit):
    return values if limit is None else numpy.clip(values, -limit, limit)


def sgd(w, g, s, t, lr, wd, clip, momentum=0.0):
    s["m"] = momentum * s.get("m", 0.0) - lr * (clipped(g, clip) + wd * w)
    return w + s["m"]


def nag(w, g, s, t, lr, wd, clip, momentum=0.0):
    g, m = clipped(g, clip), s.get("m", 0.0)
    step = g + wd * w
    w = w - lr * (step + momentum * (momentum * m + step))
    s["m"] = momentum * m + g + (wd * w if momentum else 0.0)  # in MXNet by the new w
    return w


def signum(w, g, s, t, lr, wd, clip, momentum=0.9, wd_lh=0.0):
    if not momentum:
        return (1 - lr * (wd + wd_lh)) * w - lr * numpy.sign(g)
    s["m"] = momentum * s.get("m", 0.0) - (1 - momentum) * (clipped(g, clip) + wd * w)
    return (1 - lr * wd_lh) * w + lr * numpy.sign(s["m"])


def dcasgd(w, g, s, t, lr, wd, clip, momentum=0.0, lamda=0.04):
    g = clipped(g, clip)
    late = lamda * g * g * (w - s.get("p", w))
    s["m"] = momentum * s.get("m", 0.0) - lr * (g + wd * w + late)
    s["p"] = w
    return w + s["m"]


def moments(g, s, beta1, beta2):
    s["m"] = beta1 * s.get("m", 0.0) + (1 - beta1) * g
    s["v"] = beta2 * s.get("v", 0.0) + (1 - beta2) * g * g
    return s["m"], s["v"]


def adam(w, g, s, t, lr, wd, clip, beta1=0.9, beta2=0.999, epsilon=1e-8):
    m, v = moments(clipped(g + wd * w, clip), s, beta1, beta2)
    return w - lr * numpy.sqrt(1 - beta2**t) / (1 - beta1**t) * m / (numpy.sqrt(v) + epsilon)


def adamw(w, g, s, t, lr, wd, clip, beta1=0.9, beta2=0.999, epsilon=1e-6, correct_bias=True):
    m, v = moments(clipped(g, clip), s, beta1, beta2)
    rate = numpy.sqrt(1 - beta2**t) / (1 - beta1**t) if correct_bias else 1.0
    return w - lr * (rate * m / (numpy.sqrt(v) + epsilon) + wd * w)


def adamax(w, g, s, t, lr, wd, clip, beta1=0.9, beta2=0.999):
    g = clipped(g + wd * w, clip)
    s["m"] = beta1 * s.get("m", 0.0) + (1 - beta1) * g
    s["u"] = numpy.maximum(beta2 * s.get("u", 0.0), abs(g))
    return w - lr / (1 - beta1**t) * s["m"] / s["u"]


def nadam(w, g, s, t, lr, wd, clip, beta1=0.9, beta2=0.999, epsilon=1e-8, schedule_decay=0.004):
    g = clipped(g + wd * w, clip)
    m, v = moments(g, s, beta1, beta2)
    now, then = (beta1 * (1 - 0.5 * 0.96 ** (i * schedule_decay)) for i in (t, t + 1))
    s["product"] = s.get("product", 1.0) * now
    g_hat, m_hat, v_hat = g / (1 - s["product"]), m / (1 - s["product"] * then), v / (1 - beta2**t)
    return w - lr * ((1 - now) * g_hat + then * m_hat) / (numpy.sqrt(v_hat) + epsilon)


def ftml(w, g, s, t, lr, wd, clip, beta1=0.6, beta2=0.999, epsilon=1e-8):
    g = clipped(g + wd * w, clip)
    s["v"] = beta2 * s.get("v", 0.0) + (1 - beta2) * g * g
    d = (1 - beta1**t) / lr * (numpy.sqrt(s["v"] / (1 - beta2**t)) + epsilon)
    s["z"] = beta1 * s.get("z", 0.0) + (1 - beta1) * g - (d - beta1 * s.get("d", 0.0)) * w
    s["d"] = d
    return -s["z"] / d


def adagrad(w, g, s, t, lr, wd, clip, eps=1e-7):
    g = clipped(g, clip)
    s["h"] = s.get("h", 0.0) + g * g
    return w - lr * (g / numpy.sqrt(s["h"] + eps) + wd * w)


def adadelta(w, g, s, t, lr, wd, clip, rho=0.9, epsilon=1e-5):
    g = clipped(g, clip)
    s["n"] = rho * s.get("n", 0.0) + (1 - rho) * g * g
    step = numpy.sqrt(s.get("s", 0.0) + epsilon) / numpy.sqrt(s["n"] + epsilon) * g
    s["s"] = rho * s.get("s", 0.0) + (1 - rho) * step * step
    return w - step - wd * w


def rmsprop(w, g, s, t, lr, wd, clip, gamma1=0.9, gamma2=0.9, epsilon=1e-8, centered=False, clip_weights=None):
    g = clipped(g + wd * w, clip)
    s["n"] = gamma1 * s.get("n", 0.0) + (1 - gamma1) * g * g
    if centered:
        s["g"] = gamma1 * s.get("g", 0.0) + (1 - gamma1) * g
        s["d"] = gamma2 * s.get("d", 0.0) - lr * g / numpy.sqrt(s["n"] - s["g"] ** 2 + epsilon)
        return clipped(w + s["d"], clip_weights)
    return clipped(w - lr * g / numpy.sqrt(s["n"] + epsilon), clip_weights)


def ftrl(w, g, s, t, lr, wd, clip, lamda1=0.01, beta=1.0):
    g = clipped(g, clip)
    n = s.get("n", 0.0)
    s["n"] = n + g * g
    s["z"] = s.get("z", 0.0) + g - (numpy.sqrt(s["n"]) - numpy.sqrt(n)) / lr * w
    shrunk = numpy.sign(s["z"]) * lamda1 - s["z"]
    return numpy.where(abs(s["z"]) > lamda1, shrunk / ((beta + numpy.sqrt(s["n"])) / lr + wd), 0.0)


def lars(w, g, s, t, lr, wd, clip, momentum=0.0, eta=0.001, eps=0.0):
    lr *= eta * numpy.linalg.norm(w) / (numpy.linalg.norm(g) + wd * numpy.linalg.norm(w) + eps)
    return sgd(w, g, s, t, lr, wd, clip, momentum)


def lamb(w, g, s, t, lr, wd, clip, beta1=0.9, beta2=0.999, epsilon=1e-6, bias_correction=True, bounds=(0.0, 1e9)):
    m, v = moments(clipped(g, clip), s, beta1, beta2)
    if bias_correction:
        m, v = m / (1 - beta1**t), v / (1 - beta2**t)
    d = m / (numpy.sqrt(v) + epsilon) + wd * w
    return w - lr * numpy.clip(numpy.linalg.norm(w), *bounds) / numpy.linalg.norm(d) * d


def lbsgd(w, g, s, t, lr, wd, clip, momentum=0.0, batch_scale=1):
    s["sum"] = s.get("sum", 0.0) + g
    if t % batch_scale:
        return w
    g = s.pop("sum") / batch_scale
    lr *= 1 + (batch_scale - 1) * t / (5 * 32)
    return sgd(w, g, s, t, lr, wd, clip, momentum)


RULES = [
    pytest.param("sgd", sgd, {}, id="sgd"),
    pytest.param("sgd", sgd, {"momentum": 0.9}, id="sgd-momentum"),
    pytest.param("nag", nag, {}, id="nag-without-momentum"),
    pytest.param("nag", nag, {"momentum": 0.8}, id="nag"),
    pytest.param("signum", signum, {}, id="signum"),
    pytest.param("signum", signum, {"momentum": 0.0, "wd_lh": 0.1}, id="signum-without-momentum"),
    pytest.param("dcasgd", dcasgd, {"lamda": 0.3}, id="dcasgd"),
    pytest.param("dcasgd", dcasgd, {"momentum": 0.7}, id="dcasgd-momentum"),
    pytest.param("adam", adam, {}, id="adam"),
    pytest.param("adam", adam, {"beta1": 0.7, "beta2": 0.9, "epsilon": 1e-3}, id="adam-options"),
    pytest.param("adamw", adamw, {}, id="adamw"),
    pytest.param("adamw", adamw, {"correct_bias": False, "epsilon": 1e-3}, id="adamw-bias"),
    pytest.param("adamax", adamax, {}, id="adamax"),
    pytest.param("nadam", nadam, {"schedule_decay": 0.1}, id="nadam"),
    pytest.param("ftml", ftml, {}, id="ftml"),
    pytest.param("adagrad", adagrad, {}, id="adagrad"),
    pytest.param("adadelta", adadelta, {"rho": 0.8}, id="adadelta"),
    pytest.param("rmsprop", rmsprop, {"clip_weights": 1.5}, id="rmsprop"),
    pytest.param("rmsprop", rmsprop, {"centered": True, "epsilon": 1e-4}, id="rmsprop-centered"),
    pytest.param("ftrl", ftrl, {"lamda1": 0.2}, id="ftrl"),
    pytest.param("lars", lars, {"momentum": 0.9, "eta": 0.1}, id="lars"),
    pytest.param("lamb", lamb, {}, id="lamb"),
    pytest.param("lamb", lamb, {"bias_correction": False}, id="lamb-bias"),
    pytest.param("lbsgd", lbsgd, {"momentum": 0.9, "batch_scale": 2}, id="lbsgd"),
]
ELEMENTWISE = [rule for rule in RULES if rule.values[0] not in ("lars", "lamb")]
