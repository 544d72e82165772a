"""Steps of optimizers as functions of ``mx.nd``: they write the weight to ``out`` and change their states in place."""

from __future__ import annotations

from typing import Any

from .array import unwrap, wrap

__all__ = ["adam_update", "ftrl_update", "nag_mom_update", "rmsprop_update", "sgd_mom_update", "sgd_update",
           "signsgd_update", "signum_update"]  # fmt: skip


def _gradient(xp: Any, grad: Any, rescale_grad: float, clip_gradient: float) -> Any:
    found = unwrap(grad) * rescale_grad
    return xp.clip(found, -clip_gradient, clip_gradient) if clip_gradient >= 0 else found


def _result(weight: Any, value: Any, out: Any) -> Any:
    if out is None:
        return wrap(value.astype(unwrap(weight).dtype), weight.context)
    out[:] = value
    return out


def sgd_update(
    weight: Any, grad: Any, lr: float, wd: float = 0.0, rescale_grad: float = 1.0, clip_gradient: float = -1.0,
    lazy_update: bool = True, out: Any = None,
) -> Any:  # fmt: skip
    """weight − lr · (grad + wd · weight)."""
    w, g = unwrap(weight), _gradient(weight.context.xp, grad, rescale_grad, clip_gradient)
    return _result(weight, (1.0 - lr * wd) * w - lr * g, out)


def sgd_mom_update(
    weight: Any, grad: Any, mom: Any, lr: float, momentum: float = 0.0, wd: float = 0.0, rescale_grad: float = 1.0,
    clip_gradient: float = -1.0, lazy_update: bool = True, out: Any = None,
) -> Any:  # fmt: skip
    """mom = momentum · mom − lr · (grad + wd · weight); weight + mom."""
    w, g = unwrap(weight), _gradient(weight.context.xp, grad, rescale_grad, clip_gradient)
    mom[:] = momentum * unwrap(mom) - lr * wd * w - lr * g
    return _result(weight, w + unwrap(mom), out)


def nag_mom_update(
    weight: Any, grad: Any, mom: Any, lr: float, momentum: float = 0.0, wd: float = 0.0, rescale_grad: float = 1.0,
    clip_gradient: float = -1.0, out: Any = None,
) -> Any:  # fmt: skip
    """Nesterov's step: mom = momentum · mom − lr · g; weight − lr · g + momentum · mom, with g = grad + wd · weight."""
    w = unwrap(weight)
    g = _gradient(weight.context.xp, grad, rescale_grad, clip_gradient) + wd * w
    mom[:] = momentum * unwrap(mom) - lr * g
    return _result(weight, w + momentum * unwrap(mom) - lr * g, out)


def adam_update(
    weight: Any, grad: Any, mean: Any, var: Any, lr: float, beta1: float = 0.9, beta2: float = 0.999,
    epsilon: float = 1e-8, wd: float = 0.0, rescale_grad: float = 1.0, clip_gradient: float = -1.0,
    lazy_update: bool = True, out: Any = None,
) -> Any:  # fmt: skip
    """Adam's step without its correction of the bias, which is the caller's: it belongs into ``lr``."""
    xp, w = weight.context.xp, unwrap(weight)
    g = unwrap(grad) * rescale_grad + wd * w
    g = xp.clip(g, -clip_gradient, clip_gradient) if clip_gradient >= 0 else g
    mean[:] = beta1 * unwrap(mean) + (1.0 - beta1) * g
    var[:] = beta2 * unwrap(var) + (1.0 - beta2) * xp.square(g)
    return _result(weight, w - lr * unwrap(mean) / (xp.sqrt(unwrap(var)) + epsilon), out)


def rmsprop_update(
    weight: Any, grad: Any, n: Any, lr: float, gamma1: float = 0.95, epsilon: float = 1e-8, wd: float = 0.0,
    rescale_grad: float = 1.0, clip_gradient: float = -1.0, clip_weights: float = -1.0, out: Any = None,
) -> Any:  # fmt: skip
    """n = gamma1 · n + (1 − gamma1) · g²; weight − lr · g / sqrt(n + epsilon)."""
    xp, w = weight.context.xp, unwrap(weight)
    g = unwrap(grad) * rescale_grad + wd * w
    g = xp.clip(g, -clip_gradient, clip_gradient) if clip_gradient >= 0 else g
    n[:] = gamma1 * unwrap(n) + (1.0 - gamma1) * xp.square(g)
    value = w - lr * g / xp.sqrt(unwrap(n) + epsilon)
    return _result(weight, xp.clip(value, -clip_weights, clip_weights) if clip_weights >= 0 else value, out)


def ftrl_update(
    weight: Any, grad: Any, z: Any, n: Any, lr: float, lamda1: float = 0.01, beta: float = 1.0, wd: float = 0.0,
    rescale_grad: float = 1.0, clip_gradient: float = -1.0, out: Any = None,
) -> Any:  # fmt: skip
    """The step of "follow the regularised leader": ``z`` and ``n`` are its sums."""
    xp, w = weight.context.xp, unwrap(weight)
    g = _gradient(xp, grad, rescale_grad, clip_gradient)
    former = unwrap(n).copy()
    n[:] = former + xp.square(g)
    z[:] = unwrap(z) + g - (xp.sqrt(unwrap(n)) - xp.sqrt(former)) * w / lr
    slope = (beta + xp.sqrt(unwrap(n))) / lr + wd
    value = (xp.sign(unwrap(z)) * lamda1 - unwrap(z)) / slope
    return _result(weight, value * (xp.abs(unwrap(z)) > lamda1), out)


def signsgd_update(
    weight: Any, grad: Any, lr: float, wd: float = 0.0, rescale_grad: float = 1.0, clip_gradient: float = -1.0,
    out: Any = None,
) -> Any:  # fmt: skip
    """(1 − lr · wd) · weight − lr · sign(grad)."""
    xp, w = weight.context.xp, unwrap(weight)
    return _result(weight, (1.0 - lr * wd) * w - lr * xp.sign(unwrap(grad)), out)


def signum_update(
    weight: Any, grad: Any, mom: Any, lr: float, momentum: float = 0.0, wd: float = 0.0, rescale_grad: float = 1.0,
    clip_gradient: float = -1.0, wd_lh: float = 0.0, out: Any = None,
) -> Any:  # fmt: skip
    """mom = momentum · mom − (1 − momentum) · (grad + wd · weight); (1 − lr · wd_lh) · weight + lr · sign(mom)."""
    xp, w = weight.context.xp, unwrap(weight)
    g = unwrap(grad) * rescale_grad + wd * w
    g = xp.clip(g, -clip_gradient, clip_gradient) if clip_gradient >= 0 else g
    mom[:] = momentum * unwrap(mom) - (1.0 - momentum) * g
    return _result(weight, (1.0 - lr * wd_lh) * w + lr * xp.sign(unwrap(mom)), out)
