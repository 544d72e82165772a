"""Data-parallel training: groups of executors on several devices, sequence buckets, gradients summed over ranks."""
