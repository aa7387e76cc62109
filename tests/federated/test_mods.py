"""The clip mod: no longer change, no metrics and no broken model leaves the device."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

pytest.importorskip("flwr", reason="Flower is an extra: pip install 'privopt[federated]'")

from flwr.app import Array, ArrayRecord, Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp

from privopt.errors import InputError
from privopt.federated.mods import clip_mod
from tests.federated.in_process import START, trained, weights_of

CONTEXT = Context(run_id=1, node_id=2, node_config={}, state=RecordDict(), run_config={})


def ask(client: Callable[[Message], Message], kind: str = "train", arrays: ArrayRecord = START, bound: float = 1.0) -> Message:
    """The reply of a real ClientApp that has the mod."""
    app = ClientApp(mods=[clip_mod(bound)])
    for decorate in (app.train(), app.evaluate()):
        decorate(lambda message, _: client(message))
    message = Message(
        RecordDict({"arrays": ArrayRecord(dict(arrays))}), dst_node_id=2, message_type=kind
    )  # which a client may change
    return app(message, CONTEXT)


@pytest.mark.parametrize(("move", "expected"), [([3.0, 4.0, 0.0], [0.6, 0.8, 0.0]), ([0.3, 0.4, 0.0], [0.3, 0.4, 0.0])])
def test_a_change_leaves_no_longer_than_the_bound(move: list[float], expected: list[float]) -> None:
    start = ArrayRecord(dict(START) | {"w": Array(np.ones(3))})
    reply = ask(lambda message: trained(message, weights_of(message) + move), arrays=start)
    np.testing.assert_allclose(weights_of(reply), 1 + np.array(expected))
    np.testing.assert_array_equal(reply.content["arrays"]["b"].numpy(), np.zeros((1, 2)))  # type: ignore[union-attr]


def test_a_client_that_changes_the_model_it_received_in_place_is_clipped_all_the_same() -> None:
    def client(message: Message) -> Message:
        message.content.array_records["arrays"]["w"] = Array(np.full(3, 100.0))
        return Message(message.content, reply_to=message)

    assert np.linalg.norm(weights_of(ask(client))) == pytest.approx(1.0)


def test_metrics_stay_on_the_device() -> None:
    assert not ask(lambda message: trained(message, np.ones(3), 500, loss=0.5)).content.metric_records


@pytest.mark.parametrize("w", [np.full(3, math.nan), np.full(3, math.inf), np.ones(2), np.full(3, 1j)], ids=str)
def test_a_broken_model_does_not_leave(w: Any) -> None:
    reply = ask(lambda message: trained(message, w))
    assert reply.has_error()
    assert "no finite model" in str(reply.error.reason)


def test_errors_and_other_kinds_of_messages_pass_unchanged() -> None:
    assert ask(lambda message: Message(Error(2, "own error"), reply_to=message)).error.reason == "own error"
    evaluated = ask(lambda message: trained(message, np.full(3, 9.0), loss=0.5), kind="evaluate")
    assert evaluated.content["metrics"] == trained(evaluated, np.zeros(3), loss=0.5).content["metrics"]


def test_a_message_without_one_model_is_an_error() -> None:
    app = ClientApp(mods=[clip_mod(1.0)])
    app.train()(lambda message, _: message)
    two = Message(RecordDict({"arrays": START, "teacher": START}), dst_node_id=2, message_type="train")
    assert "one ArrayRecord" in str(app(two, CONTEXT).error.reason)


@pytest.mark.parametrize("bound", [0.0, -1.0, math.nan, "1"])
def test_impossible_bounds_are_refused(bound: Any) -> None:
    with pytest.raises(InputError, match="clip_bound is"):
        clip_mod(bound)
