"""Errors and warnings: each names what was given, why it cannot hold, and what would. None holds a private value."""

import sys
import warnings

OURS = ("privopt", "contextlib")  # packages that are not the user's code


class PrivoptError(ValueError):
    """Anything privopt refuses to do."""


class CompositionError(PrivoptError):
    """Slots that do not fit: their combination would not have the guarantee it states."""


class UnsupportedEvent(PrivoptError):
    """No accountant can account this event."""


class BudgetExceeded(PrivoptError):
    """The next release would cost more than the budget holds; nothing was released."""


class LedgerError(PrivoptError):
    """A ledger that cannot be trusted, or is in use by another process."""


class Diverged(PrivoptError):
    """Training ended, and was paid for, but what it would release is not finite."""


class RankFailed(PrivoptError):
    """A process of a torchrun job ended, hung, failed or disagrees, so the job cannot go on; it can be started again."""


class PartFailed(RankFailed):
    """A process of a torchrun job that still answers could not compute its part."""


class NodesMissing(PrivoptError):
    """Nodes of a federation did not come; the run can be started again."""


class InputError(PrivoptError):
    """Data or settings that cannot be used as they are."""


class PrivoptWarning(UserWarning):
    """Something that privopt does as asked, but that the user should know."""


def warn(message: str) -> None:
    """Warn at the line of the user's code that called privopt."""
    frame, level = sys._getframe(), 1
    while frame.f_back is not None and str(frame.f_globals.get("__name__")).partition(".")[0] in OURS:
        frame, level = frame.f_back, level + 1
    warnings.warn(message, PrivoptWarning, stacklevel=level)
