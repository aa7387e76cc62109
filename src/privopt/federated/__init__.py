"""Federations: users on nodes train one model, and the guarantee is for a user with all rows.

`train_federation` trains on any `Nodes`: those of a Flower grid (`FlowerNodes`, with `client_app` on the other side), or in this
process (`NodesInProcess`). Users of a linear model are `LinearUsers`, those of a torch model `NetworkUsers`.
"""

from importlib import import_module
from typing import Any

_HOMES = {  # loaded when first asked for: a node needs little, and Flower and torch are extras
    "FederatedOracle": "privopt.federated.nodes",
    "FederatedSettings": "privopt.federated.training",
    "FlowerNodes": "privopt.federated.flower_nodes",
    "LinearUsers": "privopt.perexample.user_vectors",
    "LocalSteps": "privopt.perexample.user_vectors",
    "ModelFacts": "privopt.federated.training",
    "NetworkUsers": "privopt.nets.user_network",
    "NodesInProcess": "privopt.federated.nodes",
    "PrivateStrategy": "privopt.federated.strategy",
    "client_app": "privopt.federated.flower_client",
    "flat_parameters": "privopt.nets.user_network",
    "assign_parameters": "privopt.nets.user_network",
    "group_rows": "privopt.perexample.user_vectors",
    "network_facts": "privopt.federated.training",
    "train_federation": "privopt.federated.training",
}
_EXTRAS = {"flwr": "federated", "torch": "torch", "numba": "torch"}

__all__ = [*_HOMES]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'privopt.federated' has no attribute {name!r}")
    try:
        return getattr(import_module(_HOMES[name]), name)
    except ModuleNotFoundError as error:
        extra = _EXTRAS.get((error.name or "").partition(".")[0])
        if extra is None:
            raise
        raise ModuleNotFoundError(f"privopt.federated.{name} needs more: pip install 'privopt[{extra}]'") from None


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOMES])
