"""A module with one symbol a bucket: all on the same parameters, by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ..context import Context
from ..errors import ArgumentError
from ..parallel.loading import Described
from ..parallel.manager_checks import bucket_key as hashable
from .base_module import BOUND
from .model_files import load_params
from .module import Module

Array = Any


class BucketingModule(Module):
    """``sym_gen(key)`` gives (symbol, data names, label names) of a bucket, or its symbol alone.

    Buckets may have parameters and numbers of rows of their own, and come in any order; a parameter that a bucket
    brings gets its value from `init_params`' values or initializer. Values for names that no bucket bound so far has
    are kept; where buckets are announced, one that none of them has is refused, or left out with ``allow_extra``.
    ``symbol`` is that of ``default_bucket_key``. With ranks buckets must be announced: ``bucket_keys``, or an iterator
    with ``buckets`` given to `fit`. Other options as for `Module`. A bucket key that is a list counts as a tuple.
    """

    def __init__(
        self, sym_gen: Callable[[Any], Any], default_bucket_key: Any = None, logger: Any = None,
        context: Context | Sequence[Context] | None = None, work_load_list: Sequence[float] | None = None,
        fixed_param_names: Sequence[str] | None = None, state_names: Sequence[str] | None = None,
        group2ctxs: Any = None, compression_params: Mapping[str, Any] | None = None, *,
        bucket_keys: Sequence[Any] | None = None, freeze_aux: bool = False, loss_weighting: str = "devices",
        max_groups: int | None = None,
    ) -> None:  # fmt: skip
        if default_bucket_key is None:
            raise ArgumentError("BucketingModule: default_bucket_key must be given, the key of the largest bucket")
        self._sym_gen, self._default_key, self._bucket_keys = sym_gen, hashable(default_bucket_key), bucket_keys
        self._names: dict[Any, set[str]] = {}
        symbol, data_names, label_names = _triple(sym_gen, self._default_key)
        super().__init__(
            symbol, data_names, label_names, logger, context, work_load_list, fixed_param_names, state_names,
            group2ctxs, compression_params, freeze_aux=freeze_aux,
            loss_weighting=loss_weighting, max_groups=max_groups,
        )  # fmt: skip

    def _more_options(self) -> dict[str, Any]:
        sym_gen, run = self._sym_gen, self._run  # not self: a module that is dropped is gone at once

        def generate(key: Any) -> tuple[Any, Any, Any]:
            symbol, data_names, label_names = _triple(sym_gen, key)
            return run(symbol), data_names, label_names

        return {"sym_gen": generate, "bucket_keys": self._bucket_keys}

    _by_position = False  # names of a bucket are its own

    def _announce(self, train_data: Any) -> None:
        self._announced = train_data

    def _keeps(self, name: str) -> bool:
        """Without announced buckets any may come; with ranks, what announced ones have is there already."""
        keys = self._bucket_keys if self._bucket_keys is not None else getattr(self._announced, "buckets", None)
        if keys is None:
            return True
        return any(name in self._names_of(hashable(key)) for key in keys)

    def _names_of(self, key: Any) -> set[str]:
        """Parameters and states of a bucket."""
        if key not in self._names:
            symbol, data_names, label_names = _triple(self._sym_gen, key)
            held = {*symbol.list_arguments(), *symbol.list_auxiliary_states()}
            self._names[key] = held.difference(data_names or (), label_names or ())
        return self._names[key]

    def _check_requests(self, names: Sequence[str]) -> None:
        """Other buckets may have them."""

    def _taken(self, batch: Any) -> Any:
        taken = super()._taken(batch)
        if taken.bucket_key is None:
            taken.bucket_key = self._default_key
        return taken

    def switch_bucket(
        self, bucket_key: Any, data_shapes: Sequence[Any], label_shapes: Sequence[Any] | None = None
    ) -> None:
        """Make the executors of a bucket now; `forward` does it with its first batch."""
        self._require("switch_bucket", BOUND)
        self._bound("switch_bucket").make_current(bucket_key, Described.of(data_shapes, label_shapes))

    def prepare(self, data_batch: Any, sparse_row_id_fn: Any = None) -> None:
        """Get ready for a batch that is not run yet; its bucket is made when it is run."""

    @classmethod
    def load(  # type: ignore[override]
        cls, prefix: str, epoch: int, sym_gen: Callable[[Any], Any] | None = None, default_bucket_key: Any = None,
        load_optimizer_states: bool | str = False, **options: Any,
    ) -> BucketingModule:  # fmt: skip
        """The module of a checkpoint, with the parameters of all buckets; ``sym_gen`` makes the symbols.

        With ``load_optimizer_states`` (True, or a format) also of ``prefix-%04d.states``, by `init_optimizer`.
        """
        if sym_gen is None:
            raise ArgumentError("BucketingModule.load: sym_gen must be given, files have one bucket's symbol alone")
        module = cls(sym_gen, default_bucket_key, **options)
        module._params, module.params_initialized = load_params(prefix, epoch), True
        if load_optimizer_states:
            form = None if load_optimizer_states is True else str(load_optimizer_states)
            module._states_file = f"{prefix}-{epoch:04d}.states", form
        return module


def _triple(sym_gen: Callable[[Any], Any], key: Any) -> tuple[Any, Any, Any]:
    """Symbol, names of data and of labels of a bucket."""
    made = sym_gen(key)
    return made if isinstance(made, tuple) else (made, ("data",), ("softmax_label",))
