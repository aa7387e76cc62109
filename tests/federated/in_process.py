"""A federation without transport: nodes are functions, and Flower's own messages go to them and back in this process."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.supercore.task_identity import TaskIdentity
from numpy.typing import NDArray

Change = Callable[[NDArray[Any]], NDArray[Any]]  # of the array "w" of the model
TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, 1, 1  # messages carry it; Flower's processes set it
START = ArrayRecord({"w": Array(np.zeros(3)), "b": Array(np.zeros((1, 2)))})


def trained(message: Message, w: NDArray[Any], weight: float = 1, **metrics: float) -> Message:
    """A reply that holds the model that was sent, with another `w`."""
    arrays = dict(message.content["arrays"]) | {"w": Array(np.asarray(w))}
    return Message(
        RecordDict({"arrays": ArrayRecord(arrays), "metrics": MetricRecord({"num-examples": weight, **metrics})}),
        reply_to=message,
    )


def weights_of(message: Message) -> NDArray[Any]:
    """The array `w` of the model that a message holds."""
    return message.content["arrays"]["w"].numpy()  # type: ignore[union-attr]


class Nodes(Grid):
    """Nodes by their ids, each a function from a message to its reply. It keeps what was sent."""

    def __init__(self, nodes: Mapping[int, Callable[[Message], Message]]) -> None:
        self.nodes = nodes
        self.sent: list[Message] = []

    @property
    def run(self) -> Any:
        raise NotImplementedError

    def set_run(self, run: Any) -> None:
        raise NotImplementedError

    def create_message(self, *arguments: Any, **options: Any) -> Message:
        raise NotImplementedError

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        raise NotImplementedError

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        raise NotImplementedError

    def get_node_ids(self) -> list[int]:
        return list(self.nodes)

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> list[Message]:
        sent = list(messages)
        self.sent += sent
        return [self.nodes[message.metadata.dst_node_id](message) for message in sent]


def learners(count: int, step: float = 0.5) -> Nodes:
    """Nodes that move `w` by a step, each in a direction of its own."""
    moves = {node: step * np.array([np.cos(node), np.sin(node), 0.1 * node]) for node in range(1, count + 1)}
    return Nodes({node: lambda message, move=move: trained(message, weights_of(message) + move) for node, move in moves.items()})  # type: ignore[misc]
