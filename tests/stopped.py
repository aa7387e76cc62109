"""Runs that somebody stops."""


class Stopped(Exception):
    """Somebody pressed a key."""


class StopAt:
    """Stops a run when so many rounds are done: by a function that is told of progress, or by an observer of a run folder."""

    def __init__(self, *rounds: int | None) -> None:
        self._rounds = rounds

    def start(self, rounds: int, spent: object) -> None:
        pass

    def advance(self, done: int) -> None:
        if done in self._rounds:
            raise Stopped

    __call__ = advance
