"""Data-parallel training: groups of executors on several devices, sequence buckets, gradients summed over ranks.

* a group for a batch: `split` (rows of devices), `loading` (a batch into arrays), `binding`, `executor_group`,
  `merging` (outputs of several devices);
* a manager of buckets: `executor_manager`, with `replicas` (arrays of all devices by name), `gradient_sync` (sums over
  ranks), `manager_checks`, `consistency`; `training_manager` is the one that modules stand on; `uneven` for iterators;
* a model of builder functions: `data_parallel_model` (`parallelize`), `model_checks`, `device_net`, `model_state`,
  `parallel_model`, with `feeding`, `shards`, `sparse`, `bmuf`, `predictor`.
"""
