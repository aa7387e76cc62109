"""Update rules: what to do with a private answer. Written once against the array API, for NumPy and for torch."""

from privopt.postprocess.updates.adam import adam
from privopt.postprocess.updates.momentum import momentum
from privopt.postprocess.updates.rmsprop import rmsprop
from privopt.postprocess.updates.rule import State, UpdateRule
from privopt.postprocess.updates.sgd import sgd

__all__ = ["State", "UpdateRule", "adam", "momentum", "rmsprop", "sgd"]
