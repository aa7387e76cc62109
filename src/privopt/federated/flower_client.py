"""The app of a node, for Flower: it answers for the users of the node. Little is imported here: each message starts it anew."""

import json
import logging
from collections.abc import Callable
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.common.constant import ErrorCode

from privopt.federated.nodes import Request, answer
from privopt.measure.clips import automatic, l2
from privopt.perexample.grads import Vector
from privopt.perexample.user_vectors import LocalSteps, Users

Plan = dict[str, Any]  # public facts that nodes need to find their users' rows, as JSON
LOG = logging.getLogger("privopt.federated")
FindUsers = Callable[[Context, Plan], Users]


def client_app(find_users: FindUsers) -> ClientApp:
    """An app for nodes: `find_users(context, plan)` finds the users of a node, whose part is `partition-id` in its node-config.

    Everything that leaves the node is the number of its users, and sums of clipped vectors.
    """
    app = ClientApp()

    @app.query()
    @_keep_reason
    def count(message: Message, context: Context) -> Message:
        users = find_users(context, json.loads(str(message.content["plan"]["plan"])))
        said = {"part": int(context.node_config.get("partition-id", 0)), "users": users.size}
        return Message(RecordDict({"node": ConfigRecord(said)}), reply_to=message)  # type: ignore[arg-type]

    @app.train()
    @_keep_reason
    def train(message: Message, context: Context) -> Message:
        asked: Any = message.content["request"]
        reply = answer(find_users(context, json.loads(str(asked["plan"]))), _request(message.content, asked))
        content = {
            "sum": ArrayRecord([reply.total]),
            "answer": ConfigRecord({"within": reply.within, "users": reply.users}),
        }
        return Message(RecordDict(content), reply_to=message)  # type: ignore[arg-type]

    return app


def _keep_reason(handle: Callable[[Message, Context], Message]) -> Callable[[Message, Context], Message]:
    """Answer only that something failed, and write the reason to the node's own log: an error may quote a user's row."""

    def quiet(message: Message, context: Context) -> Message:
        try:
            return handle(message, context)
        except Exception:
            LOG.exception("this node could not answer")
            return Message(Error(ErrorCode.CLIENT_APP_RAISED_EXCEPTION, "the node's own log says why"), reply_to=message)

    return quiet


def _request(content: RecordDict, asked: Any) -> Request:
    arrays: list[Vector] = content["model"].to_numpy_ndarrays()  # type: ignore[union-attr]
    clip = automatic(asked["bound"], asked["stability"]) if asked["stability"] else l2(asked["bound"])
    local = LocalSteps(int(asked["steps"]), float(asked["rate"]), int(asked["batch"]))
    scale = arrays[1] if len(arrays) > 1 else None
    return Request(arrays[0], scale, local, clip, np.asarray(asked["users"], dtype=int), float(asked["deviation"]))
