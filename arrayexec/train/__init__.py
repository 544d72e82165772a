"""Enough to train: data iterators, initialisers, optimizers, schedules, metrics, monitors, callbacks."""
