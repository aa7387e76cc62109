"""Nodes behind Flower that do not answer: the others are not kept waiting, and a run that nobody answers stops."""

from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest

pytest.importorskip("flwr", reason="federations need Flower: pip install 'privopt[federated]'")

from flwr.app import ConfigRecord, Message, MessageType, RecordDict

from privopt.errors import NodesMissing
from privopt.federated import flower_nodes
from privopt.federated.answers import Request
from privopt.federated.flower_nodes import FlowerNodes
from privopt.measure.clips import l2
from tests.federated.federations import LOCAL
from tests.federated.in_process import Nodes


class SilentWhenAsked(Nodes):
    """Nodes that say which part they are, and answer nothing else."""

    def __init__(self, parts: int) -> None:
        super().__init__({})
        self._parts, self._waiting = parts, dict[str, Message]()

    def get_node_ids(self) -> list[int]:
        return [part + 10 for part in range(self._parts)]

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        ids = []
        for message in messages:
            message.metadata.__dict__["_message_id"] = f"m{len(self._waiting)}"
            self._waiting[message.metadata.message_id] = message
            ids.append(message.metadata.message_id)
        return ids

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        greetings = [self._waiting[id_] for id_ in message_ids if self._waiting[id_].metadata.message_type == MessageType.QUERY]
        return [self._greeted(message) for message in greetings]

    def _greeted(self, message: Message) -> Message:
        said: Any = {"part": message.metadata.dst_node_id - 10, "users": 3}
        return Message(RecordDict({"node": ConfigRecord(said)}), reply_to=message)


def test_a_run_that_nobody_answers_stops_before_it_spends_its_budget_on_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flower_nodes, "POLL", 0.01)
    nodes = FlowerNodes(SilentWhenAsked(2), 2, plan={}, timeout=0.05)
    requests = {part: Request(np.zeros(3), None, LOCAL, l2(1.0), np.arange(3)) for part in (0, 1)}
    for _ in range(flower_nodes.MOST_SILENT - 1):
        assert nodes.ask(requests) == {}
        assert nodes.ask({}) == {}  # a round that draws nobody does not count
    with pytest.raises(NodesMissing, match="no node answered in 3 rounds in a row"):
        nodes.ask(requests)


def test_nodes_are_waited_for_as_usual_until_one_of_them_answers() -> None:
    nodes = FlowerNodes(SilentWhenAsked(2), 2, plan={}, timeout=40.0)
    late = [flower_nodes._Node(10, 3, late=True)]
    assert nodes._deadline(late, answered=False) == 40.0
    nodes._slowest = 4.0
    assert nodes._deadline(late, answered=True) == 4.0 + flower_nodes.GRACE
    assert nodes._deadline([flower_nodes._Node(10, 3)], answered=True) == flower_nodes.PATIENCE * 4.0 + flower_nodes.MARGIN
    assert nodes._deadline(late, answered=False) == 40.0
