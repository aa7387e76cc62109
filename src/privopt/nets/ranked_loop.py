"""A training loop of the user's own in a torchrun job: each rank runs the loop on its pieces, and all get the same answer.

A round has one message and one sum:

- Rank 0 draws the rows, and pays when its first step begins the round. Then it sends them: no other rank is handed a piece of a
  round that is not paid for.
- Each rank is handed its own pieces, and clips and sums them (`ranked`). With its last one it joins the reduction.
- Rank 0 adds the noise to the reduced sum, once, and sends the answer. Each rank's optimizer makes the same step with it; the
  checksums of all ranks' parameters come with the next sum, and a difference ends the job.

A rank whose closure or data fail says so in the reduction: the round is spent, and every rank raises. The loop of a job does not
go on after that, nor after a round that a rank left: it is started again from a saved state. Query, unit, sensitivity, sampling
and event are those of the loop in one process; why the sum does not depend on the number of ranks is in `ranked`.
"""

import hashlib
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import torch
from torch import Tensor

from privopt.errors import InputError, PartFailed, RankFailed
from privopt.measure import randomness
from privopt.measure.measurement import CLOSED, Measurement, Noisy, RoundInPieces
from privopt.nets.attachment import Attachment
from privopt.nets.private_loop import LoopPlan, Private
from privopt.nets.ranked import ExactSum, Job, expect, largest_sum, reduce_sum
from privopt.nets.ranks import KEPT
from privopt.perexample.grads import PerExampleGrads
from privopt.perexample.networks.layout import Layout
from privopt.perexample.networks.rng import Dropout
from privopt.training.session import PaidRounds, Session

OVER = "a rank failed in this loop, or left a round, so the job cannot go on. Start it again, from a saved state if there is one."


class RankedRound:
    """One round of a loop on this rank: its pieces, and the answer that all ranks get. Rank 0's has the noise (`hidden`).

    **Guarantee** That of `OpenRound`: a piece is used up before its sum is computed; the answer is drawn once.
    """

    def __init__(
        self,
        measurement: Measurement,
        round_: int,
        rows: Any,
        hidden: Callable[[Any], Noisy] | None,
        layout: Layout,
        most: int,
        job: Job,
    ) -> None:
        self._job, self._layout, self._hidden, self._event = job, layout, hidden, measurement.event(round_)
        term, split, ranks = measurement.terms[0], job.split, job.ranks.size
        self._clip, self._weight = term.clip, term.weight / measurement.sampler.expected(split.size)
        self.rows, self._count = rows, split.count(rows)
        pieces = split.pieces(rows, most)
        self.parts: Sequence[Any] = [piece.rows for piece in pieces]
        self.places: Sequence[int] = [piece.place for piece in pieces]
        self._sum = ExactSum(layout.size, largest_sum(self._clip, self._weight, self._count), 2 * ranks + 1)
        self._added, self._open = 0, True

    def add(self, place: int, grads: PerExampleGrads) -> None:
        """Clip the vectors of the part in this place and add them; parts are added in order."""
        if place != self._added or not self._open:
            raise InputError(CLOSED)
        self._open, self._added = False, place + 1
        self._sum.add(grads.clipped_sum(self._clip, self._weight))
        self._open = True

    def finish(self) -> Noisy:
        """The answer of all ranks: rank 0 hides the sum, once, and sends it."""
        if self._added < len(self.parts) or not self._open:
            raise InputError(CLOSED)
        ranks = self._job.ranks
        self._reduce(failed=False)
        value = torch.empty(self._layout.size, dtype=self._layout.dtype)
        if self._hidden is not None:
            self._check_same()
            total = self._sum.total.to(self._layout.device, self._layout.dtype)
            value = self._hidden(lambda out: total if out is None else out + total).value
            ranks.share(("answer", None))
        else:
            expect(ranks, "answer")
        sent = value.cpu().contiguous()
        ranks.broadcast(sent)
        return Noisy(sent.to(self._layout.device), self._event)

    def abandon(self) -> None:
        """Tell the other ranks, which will wait for this one's part, that there is none."""
        if self._open or self._added:
            with suppress(PartFailed):
                self._reduce(failed=True)

    def _reduce(self, *, failed: bool) -> None:
        ranks, self._open, self._added = self._job.ranks, False, 0
        self._sum.slots[ranks.size + 1 + ranks.rank] = _checksum(self._layout)
        reduce_sum(ranks, self._sum, self._count, sum(map(len, self.parts)), failed)

    def _check_same(self) -> None:
        first, *others = self._sum.slots[self._job.ranks.size + 1 :].tolist()
        for rank, other in enumerate(others, start=1):
            if other != first:
                raise PartFailed(
                    f"the model of rank {rank} is not that of rank 0 any more: the loop, the optimizer or the scheduler did "
                    f"something else there. {KEPT}"
                )


def _checksum(layout: Layout) -> int:
    """48 bits of a hash of all parameters: a number that is exact in double precision."""
    return int.from_bytes(hashlib.sha256(layout.flat().detach().cpu().numpy().tobytes()).digest()[:6])


class RankedPrivate(Private):
    """The private side of a training loop, on one rank of a job."""

    def __init__(self, attachment: Attachment, session: Session, plan: LoopPlan, job: Job) -> None:
        self._job, self._over, self._announced = job, False, False
        self._said_parts: Any = None  # of a state that rank 0 compares
        super().__init__(attachment, session, plan)
        self._settings = f"{self._settings} {sorted(job.fingerprint().items())}"
        self._content = job.data if job.split.shards else None
        self._check.done = not job.ranks.leads  # which rank 0 does
        self._of_job = job.settings
        self._assumed_of_job = job.assumptions

    def _open_session(self, measurement: Callable[[float], Measurement], rounds: int) -> tuple[float, PaidRounds]:
        """Calibrate on rank 0; the others pay into a ledger in memory, which mirrors what rank 0 pays in this run."""
        ranks = self._job.ranks
        if ranks.leads:
            with ranks.leading():
                noise, paid = super()._open_session(measurement, rounds)
            ranks.share(("begin", noise))
            return noise, paid
        noise = expect(ranks, "begin")
        asked = measurement(noise)
        return noise, PaidRounds(self._session.spending, [asked.event(round_) for round_ in range(rounds)])

    def _ended_early(self) -> None:
        super()._ended_early()
        if self._job.ranks.leads and not self._over:
            self._job.ranks.share(("end", None))  # the ledger holds no more, which only rank 0 knows

    def step(self, closure: Callable[[], Tensor]) -> bool:
        """As `Private.step`. Rank 0 alone checks the closure, by rehearsals of the first batch."""
        with self._ending():
            return super().step(closure)

    def _enter(self) -> object:
        with self._ending():
            return super()._enter()

    def _next(self, entry: object, end: int) -> tuple[Any] | None:
        with self._ending():
            return super()._next(entry, end)

    @contextmanager
    def _ending(self) -> Iterator[None]:
        """End the loop on all ranks if anything raises: nobody waits for a message that does not come."""
        if self._over:
            raise InputError(OVER)
        try:
            yield
        except BaseException as error:
            lost = isinstance(error, RankFailed) and not isinstance(error, PartFailed)
            if self._job.ranks.leads and not self._over and not lost:
                self._job.ranks.stop(error)
            self._over = True
            raise

    def _draw(self) -> RoundInPieces | None:
        ranks, self._place, self._announced = self._job.ranks, 0, False
        zero = torch.zeros(self._layout.size, dtype=self._layout.dtype, device=self._layout.device)
        hidden = None
        if ranks.leads:
            self._drawing = randomness.restore_state(randomness.save_state(self._rng))
            rows = self._sampler.draw(self._session.size, self.rounds, self._drawing)
            bound = self._measurement.bound / self._sampler.expected(self._session.size)
            hidden = self._measurement.begin(zero, bound, self.rounds, self._drawing)
        else:
            kind, said = expect(ranks, "round", "end")
            if kind == "end":
                return None
            number, rows, seed = said
            if number != self.rounds:
                raise RankFailed(
                    f"rank 0 is in round {number + 1}, this rank in round {self.rounds + 1}: load the same state on every rank, "
                    "and leave the loop in the same round."
                )
            self._dropout = Dropout(seed)
        self._open = RankedRound(self._measurement, self.rounds, rows, hidden, self._layout, self._chunk, self._job)
        return self._open

    def _begin(self) -> None:
        super()._begin()
        if self._job.ranks.leads and not self._announced and isinstance(self._open, RankedRound):
            self._announced = True
            self._job.ranks.share(("round", (self.rounds, self._open.rows, self._dropout.seed)))

    def _leave(self) -> bool:
        round_, announced = self._open, self._announced or not self._job.ranks.leads
        spent = super()._leave()
        if spent and announced and isinstance(round_, RankedRound):
            with suppress(RankFailed):
                round_.abandon()
                if not self._job.ranks.leads:
                    self._job.ranks.share()  # rank 0 says that it stops
        return spent

    def state_dict(self) -> dict[str, Any]:
        """As `Private.state_dict`, on rank 0; the other ranks have no generator to save, and load what rank 0 saved."""
        if not self._job.ranks.leads:
            raise InputError("rank 0 saves the state: `if torch.distributed.get_rank() == 0: …`. All ranks load it.")
        return super().state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """As `Private.load_state_dict`, on every rank. The number of ranks may be another than when it was saved."""
        self._said_parts = None if self._job.ranks.leads else state.get("parts")
        super().load_state_dict(state)
        self._check.done = self._check.done or not self._job.ranks.leads

    def _parts(self) -> dict[str, str]:
        return super()._parts() if self._said_parts is None else self._said_parts


def attach_rank(attach: Callable[..., Attachment], job: Job) -> Attachment:
    """The model, checked by rank 0 and attached as it says by the others."""
    if job.ranks.leads:
        with job.ranks.leading():
            attachment = attach()
        job.ranks.share(("attach", (attachment.chunk, attachment.doubts, attachment.recorder.way)))
        return attachment
    chunk, doubts, way = expect(job.ranks, "attach")
    attachment = attach(chunk=chunk, doubts=doubts)
    attachment.recorder.way = way
    return attachment


@contextmanager
def silence_other_ranks(job: Job) -> Iterator[None]:
    """Warnings come from rank 0 once, not from every rank."""
    with warnings.catch_warnings():
        if not job.ranks.leads:
            warnings.simplefilter("ignore")
        yield
