"""A mod for client apps: the change of the model is clipped on the device, before it leaves.

It gives no guarantee by itself: that comes from the noise of `PrivateStrategy`, which clips again, since it cannot trust a device
to have done so. The mod limits what the server sees: no change longer than the bound, and no metrics.
"""

from numbers import Real

import numpy as np
from flwr.app import Context, Error, Message, MessageType
from flwr.clientapp.typing import ClientAppCallable, Mod
from flwr.common.constant import ErrorCode

from privopt.errors import InputError
from privopt.federated.arrays import SentModel, add_clipped
from privopt.measure.clips import l2


def clip_mod(clip_bound: float) -> Mod:
    """Make a mod that clips what a client changed to an l2 norm of `clip_bound`, all arrays together, and drops its metrics.

    Use the bound of the server's `PrivateStrategy`: a larger one has no effect, and a smaller one shortens changes needlessly. It
    comes first in the list of mods, so that it is the last to change a reply. Messages that are not for training pass unchanged.

    A reply that is not a finite model with the names and shapes that were received becomes an error, which the server counts as
    no change; so the content of such a reply does not leave the device either.

        app = ClientApp(mods=[clip_mod(1.0)])
    """
    if not isinstance(clip_bound, Real) or not clip_bound > 0:
        raise InputError(f"clip_bound is {clip_bound!r}, but it is the largest l2 norm of one user's change, above 0.")
    clip = l2(clip_bound)

    def mod(message: Message, context: Context, call_next: ClientAppCallable) -> Message:
        if message.metadata.message_type.partition(".")[0] != MessageType.TRAIN:
            return call_next(message, context)
        if len(message.content.array_records) != 1:
            return _refuse(message, "clip_mod expects one ArrayRecord, the model, in a message for training.")
        (record,) = message.content.array_records.values()
        sent = SentModel(record)  # before the client can change the record
        reply = call_next(message, context)
        if reply.has_error():
            return reply
        change = sent.change(reply)
        if change is None:
            return _refuse(message, "clip_mod: the reply holds no finite model of the names and shapes that were sent.")
        content = reply.content
        (key,) = content.array_records
        content[key] = sent.moved(add_clipped(change, clip, np.zeros_like(change)))
        for name in list(content.metric_records):
            del content[name]
        return reply

    return mod


def _refuse(message: Message, reason: str) -> Message:
    return Message(Error(code=ErrorCode.MOD_FAILED_PRECONDITION, reason=reason), reply_to=message)
