"""Steps of optimizers as functions of ``mx.nd``: they write the weight to ``out`` and change their states in place."""

from __future__ import annotations

from typing import Any

from .array import unwrap, wrap

__all__ = [
    "adam_update", "ftml_update", "ftrl_update", "lamb_update_phase1", "lamb_update_phase2", "mp_nag_mom_update",
    "mp_sgd_mom_update", "mp_sgd_update", "multi_mp_sgd_mom_update", "multi_mp_sgd_update", "multi_sgd_mom_update",
    "multi_sgd_update", "nag_mom_update", "rmsprop_update", "rmspropalex_update", "sgd_mom_update", "sgd_update",
    "signsgd_update", "signum_update",
]  # fmt: skip


def _gradient(xp: Any, grad: Any, rescale_grad: float, clip_gradient: float) -> Any:
    found = unwrap(grad) * rescale_grad
    return xp.clip(found, -clip_gradient, clip_gradient) if clip_gradient >= 0 else found


def _decayed(xp: Any, grad: Any, w: Any, wd: float, rescale_grad: float, clip_gradient: float) -> Any:
    """The gradient with its decay, cut together."""
    found = unwrap(grad) * rescale_grad + wd * w
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
    """Nesterov's step: mom = momentum · mom − lr · g; weight − lr · g + momentum · mom, with g = grad + wd · weight.

    As in MXNet, the decay in the new ``mom`` is that of the new weight where ``out`` is the weight itself.
    """
    w, g = unwrap(weight), _gradient(weight.context.xp, grad, rescale_grad, clip_gradient)
    step = lr * (g + wd * w)
    found = _result(weight, w + momentum * (momentum * unwrap(mom) - step) - step, out)
    mom[:] = momentum * unwrap(mom) - (lr * (g + wd * unwrap(weight)) if out is weight else step)
    return found


def adam_update(
    weight: Any, grad: Any, mean: Any, var: Any, lr: float, beta1: float = 0.9, beta2: float = 0.999,
    epsilon: float = 1e-8, wd: float = 0.0, rescale_grad: float = 1.0, clip_gradient: float = -1.0,
    lazy_update: bool = True, out: Any = None,
) -> Any:  # fmt: skip
    """Adam's step without its correction of the bias, which is the caller's: it belongs into ``lr``."""
    xp, w = weight.context.xp, unwrap(weight)
    g = _decayed(xp, grad, w, wd, rescale_grad, clip_gradient)
    mean[:] = beta1 * unwrap(mean) + (1.0 - beta1) * g
    var[:] = beta2 * unwrap(var) + (1.0 - beta2) * xp.square(g)
    return _result(weight, w - lr * unwrap(mean) / (xp.sqrt(unwrap(var)) + epsilon), out)


def rmsprop_update(
    weight: Any, grad: Any, n: Any, lr: float, gamma1: float = 0.95, epsilon: float = 1e-8, wd: float = 0.0,
    rescale_grad: float = 1.0, clip_gradient: float = -1.0, clip_weights: float = -1.0, out: Any = None,
) -> Any:  # fmt: skip
    """n = gamma1 · n + (1 − gamma1) · g²; weight − lr · g / sqrt(n + epsilon)."""
    xp, w = weight.context.xp, unwrap(weight)
    g = _decayed(xp, grad, w, wd, rescale_grad, clip_gradient)
    n[:] = gamma1 * unwrap(n) + (1.0 - gamma1) * xp.square(g)
    value = w - lr * g / xp.sqrt(unwrap(n) + epsilon)
    return _result(weight, xp.clip(value, -clip_weights, clip_weights) if clip_weights >= 0 else value, out)


def rmspropalex_update(
    weight: Any, grad: Any, n: Any, g: Any, delta: Any, lr: float, gamma1: float = 0.95, gamma2: float = 0.9,
    epsilon: float = 1e-8, wd: float = 0.0, rescale_grad: float = 1.0, clip_gradient: float = -1.0,
    clip_weights: float = -1.0, out: Any = None,
) -> Any:  # fmt: skip
    """The centred step of RMSProp: ``n`` and ``g`` are running means of squares and gradients; weight + delta."""
    xp, w = weight.context.xp, unwrap(weight)
    slope = _decayed(xp, grad, w, wd, rescale_grad, clip_gradient)
    n[:] = gamma1 * unwrap(n) + (1.0 - gamma1) * xp.square(slope)
    g[:] = gamma1 * unwrap(g) + (1.0 - gamma1) * slope
    delta[:] = gamma2 * unwrap(delta) - lr * slope / xp.sqrt(unwrap(n) - xp.square(unwrap(g)) + epsilon)
    value = w + unwrap(delta)
    return _result(weight, xp.clip(value, -clip_weights, clip_weights) if clip_weights >= 0 else value, out)


def ftml_update(
    weight: Any, grad: Any, d: Any, v: Any, z: Any, lr: float, t: int, beta1: float = 0.6, beta2: float = 0.999,
    epsilon: float = 1e-8, wd: float = 0.0, rescale_grad: float = 1.0, clip_grad: float = -1.0, out: Any = None,
) -> Any:  # fmt: skip
    """The step of "follow the moving leader" number ``t``."""
    xp, w = weight.context.xp, unwrap(weight)
    g = _decayed(xp, grad, w, wd, rescale_grad, clip_grad)
    v[:] = beta2 * unwrap(v) + (1.0 - beta2) * xp.square(g)
    slope = (1.0 - beta1**t) / lr * (xp.sqrt(unwrap(v) / (1.0 - beta2**t)) + epsilon)
    z[:] = beta1 * unwrap(z) + (1.0 - beta1) * g - (slope - beta1 * unwrap(d)) * w
    d[:] = slope
    return _result(weight, -unwrap(z) / slope, out)


def lamb_update_phase1(
    weight: Any, grad: Any, mean: Any, var: Any, beta1: float = 0.9, beta2: float = 0.999, epsilon: float = 1e-6,
    t: int = 1, bias_correction: bool = True, wd: float = 0.0, rescale_grad: float = 1.0, clip_gradient: float = -1.0,
    out: Any = None,
) -> Any:  # fmt: skip
    """The direction of LAMB's step number ``t``."""
    xp, w = weight.context.xp, unwrap(weight)
    g = _gradient(xp, grad, rescale_grad, clip_gradient)
    mean[:] = beta1 * unwrap(mean) + (1.0 - beta1) * g
    var[:] = beta2 * unwrap(var) + (1.0 - beta2) * xp.square(g)
    corrections = (1.0 - beta1**t, 1.0 - beta2**t) if bias_correction else (1.0, 1.0)
    root = xp.sqrt(unwrap(var) / corrections[1])
    return _result(weight, unwrap(mean) / corrections[0] / (root + epsilon) + wd * w, out)


def lamb_update_phase2(
    weight: Any, g: Any, r1: Any, r2: Any, lr: float, lower_bound: float = -1.0, upper_bound: float = -1.0,
    out: Any = None,
) -> Any:  # fmt: skip
    """LAMB's step along ``g``; ``r1`` and ``r2`` are the lengths of weight and ``g``."""
    xp, length, other = weight.context.xp, unwrap(r1), unwrap(r2)
    length = xp.maximum(length, lower_bound) if lower_bound >= 0 else length
    length = xp.minimum(length, upper_bound) if upper_bound >= 0 else length
    usable = (length != 0) & (other != 0)
    ratio = xp.where(usable, length / xp.where(usable, other, 1), 1).astype(length.dtype)
    return _result(weight, unwrap(weight) - lr * ratio * unwrap(g), out)


def _with_master(step: Any, states: int) -> Any:
    """A step on the float32 copy of the weight, the last array given."""

    def update(weight: Any, grad: Any, *arrays: Any, out: Any = None, **options: Any) -> Any:
        master = arrays[states]
        step(master, grad.astype(master.dtype), *arrays[:states], *arrays[states + 1 :], out=master, **options)
        return _result(weight, unwrap(master), out)

    update.__name__ = f"mp_{step.__name__}"
    update.__doc__ = f"`{step.__name__}` on ``weight32``, the float32 copy of the weight that comes last."
    return update


def _of_many(step: Any, arrays: int) -> Any:
    """A step of several weights: ``arrays`` of each, one weight after the other."""

    def update(
        *data: Any, lrs: Any, wds: Any, num_weights: int | None = None, out: Any = None, **options: Any
    ) -> list[Any]:
        sets = [data[i : i + arrays] for i in range(0, len(data), arrays)]
        outs = out if isinstance(out, list | tuple) else [out] * len(sets) if out is None else [out]
        every = zip(sets, lrs, wds, outs, strict=True)
        return [step(*one, lr=lr, wd=wd, out=target, **options) for one, lr, wd, target in every]

    update.__name__ = f"multi_{step.__name__}"
    update.__doc__ = f"`{step.__name__}` of several weights, each with its ``lrs`` and ``wds``."
    return update


mp_sgd_update, mp_sgd_mom_update = _with_master(sgd_update, 0), _with_master(sgd_mom_update, 1)
mp_nag_mom_update = _with_master(nag_mom_update, 1)
multi_sgd_update, multi_sgd_mom_update = _of_many(sgd_update, 2), _of_many(sgd_mom_update, 3)
multi_mp_sgd_update, multi_mp_sgd_mom_update = _of_many(mp_sgd_update, 3), _of_many(mp_sgd_mom_update, 4)


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
    g = _decayed(xp, grad, w, wd, rescale_grad, clip_gradient)
    mom[:] = momentum * unwrap(mom) - (1.0 - momentum) * g
    return _result(weight, (1.0 - lr * wd_lh) * w + lr * xp.sign(unwrap(mom)), out)
