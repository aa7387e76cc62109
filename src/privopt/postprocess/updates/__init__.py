"""Update rules: what to do with a private answer. Written once against the array API, for NumPy and for torch."""

from privopt.postprocess.updates.adam import adam
from privopt.postprocess.updates.mirror_mix import mirror_mix
from privopt.postprocess.updates.momentum import momentum
from privopt.postprocess.updates.projected import projected
from privopt.postprocess.updates.public_adam import public_adam
from privopt.postprocess.updates.public_rmsprop import public_rmsprop
from privopt.postprocess.updates.rmsprop import rmsprop
from privopt.postprocess.updates.rule import State, Step, UpdateRule
from privopt.postprocess.updates.sgd import sgd
from privopt.postprocess.updates.warm_up import warm_up

__all__ = [
    "State",
    "Step",
    "UpdateRule",
    "adam",
    "mirror_mix",
    "momentum",
    "projected",
    "public_adam",
    "public_rmsprop",
    "rmsprop",
    "sgd",
    "warm_up",
]
