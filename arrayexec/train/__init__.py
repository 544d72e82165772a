"""Enough to train: data iterators, initialisers, optimizers, schedules, metrics, monitors, callbacks.

A catalogue; what programs see of it are `io`, `image`, `recordio`, `optimizer`, `lr_scheduler`, `metric`,
`initializer`, `monitor`, `rnn` and `random`. Behind these:

* data: `batch` (descriptions, the protocol of iterators), `sampler` (which rows come when), ``io_…`` (one file a
  source), `augment` and `record_augment` (changes of images), `image_codec` (Pillow);
* updates: ``optimizer_…`` (rules by family; `optimizer_base` what they share, `optimizer_flat` many parameters as one
  array), `loss_scale`;
* metrics: `metric_base`, `metric_classes`;
* states on disk: `state_files` (a file of arrays and plain values), `states_from_mxnet`;
* the model of `parallelize`: `model_helper`, `model_layers`, `model_optimizer`.
"""
