"""Nodes behind Flower that do not answer: the others are not kept waiting, and a run that nobody answers stops."""

from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest

pytest.importorskip("flwr", reason="federations need Flower: pip install 'privopt[federated]'")

from flwr.app import ConfigRecord, Error, Message, MessageType, RecordDict

from privopt.errors import NodesMissing
from privopt.federated import flower_nodes
from privopt.federated.flower_nodes import FlowerNodes
from privopt.federated.nodes import Request
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
        return [self._greeting(message) for message in greetings]

    def _greeting(self, message: Message) -> Message:
        return Message(RecordDict({"node": ConfigRecord(self._said(message.metadata.dst_node_id))}), reply_to=message)

    def _said(self, node: int) -> Any:
        return {"part": node - 10, "users": 3}


def test_a_run_that_nobody_answers_stops_before_it_spends_its_budget_on_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flower_nodes, "POLL", 0.01)
    nodes = FlowerNodes(SilentWhenAsked(2), 2, plan={}, timeout=0.05)
    for drawn in (3, 0):  # a round that draws nobody asks all the same: when a run stops does not tell who was drawn
        requests = {part: Request(np.zeros(3), None, LOCAL, l2(1.0), np.arange(drawn)) for part in (0, 1)}
        assert nodes.ask(requests) == {}
    with pytest.raises(NodesMissing, match="no node answered in 3 rounds in a row"):
        nodes.ask(requests)


@pytest.mark.parametrize("said", [{"part": 2, "users": 3}, {"part": -1, "users": 3}, {"part": 0, "users": -3}], ids=str)
def test_a_node_that_cannot_be_part_of_the_federation_is_not_used(said: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    class Stranger(SilentWhenAsked):
        def _said(self, node: int) -> Any:
            return said if node == 11 else super()._said(node)

    nodes = FlowerNodes(Stranger(1), 1, plan={})
    stranger = Stranger(2)
    nodes._grid = stranger
    monkeypatch.setattr(flower_nodes, "POLL", 0.01)
    nodes._timeout = 0.05
    nodes.ask({0: Request(np.zeros(3), None, LOCAL, l2(1.0), np.arange(3))})
    assert (nodes.sizes, nodes._nodes[0].id, len(nodes._nodes)) == ([3], 10, 1)


def test_a_node_whose_first_greeting_failed_is_greeted_again_but_not_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    class Failing(SilentWhenAsked):
        fails = 1
        greeted = 0

        def _greeting(self, message: Message) -> Message:
            self.greeted += 1
            return Message(Error(0), reply_to=message) if self.greeted <= self.fails else super()._greeting(message)

    monkeypatch.setattr(flower_nodes, "POLL", 0.01)
    assert FlowerNodes(Failing(1), 1, plan={}).sizes == [3]
    broken = Failing(1)
    broken.fails = 100
    with pytest.raises(NodesMissing, match="1 of 1 nodes did not come"):
        FlowerNodes(broken, 1, plan={}, wait=0.3)
    assert broken.greeted == flower_nodes.MOST_GREETINGS


def test_nodes_are_waited_for_as_usual_until_one_of_them_answers() -> None:
    nodes = FlowerNodes(SilentWhenAsked(2), 2, plan={}, timeout=40.0)
    late = [flower_nodes._Node(10, 3, late=True)]
    assert nodes._deadline(late, answered=False) == 40.0
    nodes._slowest = 4.0
    assert nodes._deadline(late, answered=True) == 4.0 + flower_nodes.GRACE
    assert nodes._deadline([flower_nodes._Node(10, 3)], answered=True) == flower_nodes.PATIENCE * 4.0 + flower_nodes.MARGIN
    assert nodes._deadline(late, answered=False) == 40.0
