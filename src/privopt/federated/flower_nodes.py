"""Nodes behind Flower: requests become messages of a grid, and an app on each node answers them.

A node says which part of the federation it is and how many users it has. After a restart it has another number in Flower, and is
recognised by its part. A node that does not answer in time is waited for only briefly in later rounds, until it answers again.
"""

import json
import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, RecordDict
from flwr.serverapp import Grid

from privopt.errors import NodesMissing
from privopt.federated.flower_client import Plan
from privopt.federated.nodes import Reply, Request
from privopt.measure.clips import automatic

LOG = logging.getLogger("privopt.federated")
POLL = 0.2  # seconds between two looks for replies
# how long a node is waited for when others have answered:
GRACE = 2.0  # seconds more than the slowest answer so far, for nodes that failed before
PATIENCE, MARGIN = 3.0, 5.0  # for the others: this many times the slowest answer so far, and seconds more
MOST_SILENT = 3  # rounds in a row in which nobody answers; after those a run stops, for it would go on with noise alone
MOST_GREETINGS = 3  # times that a node is asked which part it is, if its answer is an error


@dataclass
class _Node:
    """What the server knows of a part of the federation."""

    id: int
    users: int
    late: bool = False


class FlowerNodes:
    """The nodes of a Flower grid.

    It waits until each of `parts` nodes has said how many users it has, and refuses to begin without one of them.
    """

    def __init__(self, grid: Grid, parts: int, *, plan: Plan, wait: float = 60.0, timeout: float = 120.0) -> None:
        self._grid, self.plan, self._timeout = grid, plan, timeout
        self._parts = range(parts)
        self._nodes: dict[int, _Node] = {}  # by their part
        self._greeted: dict[int, int] = {}  # how often each node id was asked which part it is
        self._greetings: dict[str, int] = {}  # the node ids that were asked by messages which are not answered yet
        self._slowest = 0.0  # seconds of an answer
        self._silent = 0  # rounds without one, in a row
        self._gather(wait)
        self.sizes = [self._nodes[part].users for part in self._parts]

    @property
    def alive(self) -> int:
        """How many nodes answered when they were last asked."""
        return sum(not node.late for node in self._nodes.values())

    def ask(self, requests: Mapping[int, Request]) -> dict[int, Reply]:
        """The replies that come in time and can be right. Nodes that are new, or back, are asked from the next round on."""
        started = time.monotonic()
        messages = {part: _message(request, self.plan, self._nodes[part].id) for part, request in requests.items()}
        waiting = self._push(list(messages.values()), list(messages))
        self._greet()
        replies: dict[int, Reply] = {}
        asked = {part: self._nodes[part] for part in requests}  # a node that comes back meanwhile is asked in the next round
        while waiting and time.monotonic() - started < self._deadline([asked[part] for part in waiting.values()], bool(replies)):
            time.sleep(POLL)
            for message in self._pull(list(waiting)):
                part = waiting.pop(message.metadata.reply_to_message_id)
                reply, why = _read(message, requests[part])
                asked[part].late = message.has_error()
                if reply is None:
                    LOG.warning("node %d (part %d): left out of this round: %s", asked[part].id, part, why)
                else:
                    replies[part] = reply
                    self._slowest = max(self._slowest, time.monotonic() - started)
        for part in waiting.values():
            LOG.warning("node %d (part %d): left out of this round: no answer in time", asked[part].id, part)
            asked[part].late = True
        self._silent = 0 if replies else self._silent + 1
        if self._silent == MOST_SILENT:
            raise NodesMissing(
                f"no node answered in {MOST_SILENT} rounds in a row, so the run was stopped; what was paid for is kept. See that "
                "the SuperNodes run and are given enough time (--timeout), and go on with --resume."
            )
        return replies

    def _deadline(self, nodes: list[_Node], answered: bool) -> float:
        """Seconds after which these nodes, which have not answered, are left out; `answered` says that others have."""
        if not answered:  # where all are slow, earlier rounds do not tell how long an answer takes
            return self._timeout
        if all(node.late for node in nodes):  # only those that failed before are missing
            return min(self._timeout, self._slowest + GRACE)
        return min(self._timeout, PATIENCE * self._slowest + MARGIN)

    def _gather(self, wait: float) -> None:
        ends = time.monotonic() + wait
        while missing := [part for part in self._parts if part not in self._nodes]:
            if time.monotonic() > ends:
                parts = ", ".join(map(str, missing))
                raise NodesMissing(
                    f"{len(missing)} of {len(self._parts)} nodes did not come within {wait:g} s: part {parts}. "
                    "Nothing more was spent. See that each SuperNode runs, and that partition-id in node-configs counts from 0."
                )
            self._greet()
            time.sleep(POLL)

    def _greet(self) -> None:
        """Ask new nodes which part they are, and read the answers of those that were asked before."""
        busy = set(self._greetings.values())
        new = [node for node in self._grid.get_node_ids() if node not in busy and self._greeted.get(node, 0) < MOST_GREETINGS]
        self._greeted |= {node: self._greeted.get(node, 0) + 1 for node in new}
        content = RecordDict({"plan": ConfigRecord({"plan": json.dumps(self.plan)})})
        self._greetings |= self._push([Message(content, node, MessageType.QUERY) for node in new], new)
        for message in self._pull(list(self._greetings)):
            self._welcome(message, self._greetings.pop(message.metadata.reply_to_message_id))

    def _welcome(self, message: Message, node: int) -> None:
        """Note which part a node is. A part that is known has as many users as before: their number is public, and fixed."""
        try:
            said = message.content["node"]
            part, users = int(said["part"]), int(said["users"])  # type: ignore[arg-type]
        except Exception:  # whatever a node sends
            LOG.warning("node %d: did not say which part it is; not used", node)
            return
        self._greeted[node] = MOST_GREETINGS
        if part not in self._parts or users < 0:
            LOG.warning("node %d: is no part from 0 to %d with a number of users; not used", node, len(self._parts) - 1)
            return
        known = self._nodes.get(part)
        if known is not None and known.users != users:
            LOG.warning("node %d (part %d): has %d users, but had %d; not used", node, part, users, known.users)
            return
        LOG.info("node %d: part %d, %d users", node, part, users)
        self._nodes[part] = _Node(node, users)

    def _push(self, messages: list[Message], keys: list[int]) -> dict[str, int]:
        if not messages:
            return {}
        ids = self._grid.push_messages(messages)
        return {id_: key for id_, key in zip(ids, keys, strict=True) if id_}

    def _pull(self, ids: list[str]) -> list[Message]:
        return list(self._grid.pull_messages(ids)) if ids else []


def _message(request: Request, plan: Plan, node: int) -> Message:
    arrays = [request.parameters] if request.scale is None else [request.parameters, request.scale]
    asked = {
        "plan": json.dumps(plan),
        "users": request.users.tolist(),
        "steps": request.local.steps,
        "rate": float(request.local.learning_rate),
        "batch": request.local.batch_size,
        "bound": float(request.clip.bound),
        "stability": float(request.clip.stability) if isinstance(request.clip, automatic) else 0.0,
        "deviation": float(request.deviation),
    }
    content = RecordDict({"model": ArrayRecord(arrays), "request": ConfigRecord(asked)})
    return Message(content, node, MessageType.TRAIN)


def _read(message: Message, request: Request) -> tuple[Reply | None, str]:
    """The reply that a message holds, or why it holds none that can be used."""
    if message.has_error():
        return None, f"Flower's error {message.error.code}"  # its reason may quote the data
    try:
        (total,) = message.content["sum"].to_numpy_ndarrays()  # type: ignore[union-attr]
        said: Any = message.content["answer"]
        reply = Reply(np.asarray(total, dtype=float), int(said["within"]), int(said["users"]))
    except Exception:  # whatever a node sends
        return None, "it is not an answer to a request"
    why = reply.find_fault(request)
    return (reply, "") if why is None else (None, why)
