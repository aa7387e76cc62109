"""Ranked oracles: per-example vectors that the ranks of a job answer for together.

Rank 0 runs the ordinary session with an oracle that sends each question (which vectors, of which rows, at which parameters, under
which clip) to all ranks. Each computes the clipped sum of its part; one reduction adds them up on rank 0.

**Query, unit, sampling, sensitivity** are those of one process. The recipe's sampler draws the rows once, on rank 0, from the
numbers of all examples, shards included: each has its own coin. The drawn rows are cut into pieces, and each piece belongs to one
rank. So each drawn example is clipped and counted once, and one example more or less moves the sum by at most the bound. How many
examples were answered for is added up with the sum and compared with how many were drawn.

**Noise once, and secret.** The generator is rank 0's and never leaves it. Rank 0 adds the noise to the reduced sum: a sum over
all ranks is a reduction followed by a broadcast, and the noise comes between the two. No other rank has a key or draws anything.
**Event**: the measurement's own, from the same fields as ever.

**Replay with another number of ranks.** A killed run repeats its noise, which is free only if it hides the same sum: of the same
noise on sums that differ in the last bit, the difference is their exact difference, and that depends on the data. The sum of
floating-point numbers depends on their order, so here it has none:

1. The pieces follow from the number of drawn rows alone (`cut`), and the random numbers of a piece from its place.
2. A piece's sum is computed by one process: same rows, same parameters (sent bit by bit), same code. Software, number of threads
   and instruction set are compared, between ranks and with the checkpoint.
3. Each coordinate of it is rounded to a multiple of g = 2^(e−50), where count × weight × bound ≤ 2^e (`ExactSum`). A total
   of such numbers is below 2^50 g, where double precision holds every multiple of g: additions are exact, in any order.

So the sum is a function of rows, parameters and clip, and the answer of a replay is the answer, bit for bit, with any number of
ranks. Rounding to the grid moves a coordinate of the sum by at most 12 g for 24 pieces, far below what single precision does to
it. A run in one process without torchrun adds up in another order: its checkpoint is refused here, and the reverse. With shards
the pieces follow from the shards too; the checkpoint knows them, and refuses others.
"""

import hashlib
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from privopt.checkpoint import software
from privopt.errors import PartFailed, RankFailed
from privopt.nets.data import content
from privopt.nets.ranks import KEPT, Ranks, arithmetic
from privopt.perexample.grads import ClipFactors
from privopt.perexample.networks import TorchOracle
from privopt.perexample.networks.layout import FlatParameters, Layout
from privopt.perexample.networks.model_state import training_mode
from privopt.perexample.networks.rng import Dropout, global_generators

PIECES = 24  # of a batch, if they are large enough: 2, 3, 4, 6, 8, 12 or 24 ranks have as many each
SMALLEST = 64  # examples of a piece, below which a batch is cut less
BLOCK = 1 << 16  # numbers that are rounded at a time, which fit into a cache
SAMPLED = 4096  # examples that ranks compare, of data sets that are not in memory
EXPONENT = 50  # bits of the grid below the largest possible sum


def cut(count: int, most: int | None = None) -> list[tuple[int, int]]:
    """Where the pieces of so many rows begin and end; none has more than `most`.

    >>> cut(130)
    [(0, 43), (43, 86), (86, 130)]
    """
    pieces = max(min(PIECES, -(-count // SMALLEST)), -(-count // most) if most else 0)
    edges = [count * piece // pieces for piece in range(pieces + 1)] if pieces else [0]
    return list(pairwise(edges))


@dataclass(frozen=True)
class Piece:
    """Rows that one process answers for, by their numbers in its own data; `place` tells it from all other pieces."""

    place: int
    rows: Any
    positions: Any  # of these rows among all that are asked for


@dataclass(frozen=True)
class Split:
    """Which rank answers for which rows: pieces in turn; with shards, each for the rows that it has."""

    rank: int
    ranks: int
    size: int  # examples of all ranks
    shards: tuple[int, ...] = ()  # how many examples each rank has; none: all have all

    def count(self, rows: Any) -> int:
        """How many rows are asked for, of all ranks."""
        return self.size if rows is None else len(rows)

    def pieces(self, rows: Any, most: int | None = None) -> list[Piece]:
        """The pieces of this rank."""
        wanted = np.arange(self.size) if rows is None else np.asarray(rows)
        if not self.shards:
            spans = list(enumerate(cut(len(wanted), most)))[self.rank :: self.ranks]
            return [Piece(place, wanted[start:stop], np.arange(start, stop)) for place, (start, stop) in spans]
        low, high = list(accumulate(self.shards, initial=0))[self.rank : self.rank + 2]
        positions = np.flatnonzero((wanted >= low) & (wanted < high))
        own, first = wanted[positions] - low, self.rank << 32
        spans = list(enumerate(cut(len(own), most), start=first))
        return [Piece(place, own[start:stop], positions[start:stop]) for place, (start, stop) in spans]


class ExactSum:
    """A sum that does not depend on the order of its parts: each is rounded to a grid on which additions are exact.

    `largest` bounds the sum of all parts' magnitudes; without a finite one nothing is rounded (a query without a clip, which
    has no guarantee). After the `size` numbers of the sum there is one for each of `slots`.

    >>> one, other = ExactSum(1, 4.0), ExactSum(1, 4.0)
    >>> parts = [torch.tensor([x]) for x in (0.1, 0.7, 1e-9)]
    >>> for part in parts: one.add(part)
    >>> for part in reversed(parts): other.add(part)
    >>> bool(one.vector == other.vector), round(float(one.vector), 6)
    (True, 0.8)
    """

    def __init__(self, size: int, largest: float, slots: int = 0) -> None:
        self._size = size
        self._shift = 0.0  # 1.5 × 2^52 grid steps: between 2^52 and 2^53 of them, double precision holds whole steps only
        if math.isfinite(largest):
            self._shift = math.ldexp(1.5, math.frexp(largest)[1] - EXPONENT + 52)
        self.vector = torch.zeros(size + slots, dtype=torch.float64)

    def add(self, part: Tensor) -> None:
        """Round a part to the grid and add it."""
        part = part.detach().cpu()
        for start in range(0, self._size, BLOCK):
            stop = min(start + BLOCK, self._size)
            rounded = part[start:stop].double()
            if self._shift:
                rounded.add_(self._shift).sub_(self._shift)
            self.vector[start:stop] += rounded

    @property
    def total(self) -> Tensor:
        """The sum, without what is behind it."""
        return self.vector[: self._size]

    @property
    def slots(self) -> Tensor:
        """What is behind the sum."""
        return self.vector[self._size :]


def largest_sum(clip: ClipFactors, weight: float, count: int) -> float:
    """What no coordinate of a clipped sum of so many vectors exceeds; infinite for a query without a clip."""
    return float(count * abs(weight) * getattr(clip, "bound", math.inf)) if count else 0.0


def reduce_sum(ranks: Ranks, total: ExactSum, count: int, answered: int, failed: bool) -> None:
    """Add up the ranks' sums on rank 0, which raises if a rank failed, or if not each drawn example was answered for once.

    The slots behind the sum are one flag for each rank, and the number of examples.
    """
    total.slots[ranks.rank] = float(failed)
    total.slots[ranks.size] = answered
    ranks.reduce(total.vector)
    if not ranks.leads:
        return
    flags = total.slots[: ranks.size].tolist()
    if others := [str(rank) for rank, flag in enumerate(flags) if flag and rank]:
        raise PartFailed(f"rank {', '.join(others)} could not compute its part: its own message says why. {KEPT}")
    if not failed and (found := int(total.slots[ranks.size])) != count:
        raise PartFailed(
            f"{count} examples were drawn, but the ranks answered for {found}: each has to count once. This is a bug of privopt. "
            f"{KEPT}"
        )


# ---------------------------------------------------------------- jobs


@dataclass(frozen=True)
class Job:
    """The ranks of a job that agree on what they train, and which of them answers for what."""

    ranks: Ranks
    split: Split
    data: str  # a fingerprint of all data of the job

    @classmethod
    def begin(
        cls, ranks: Ranks, model: nn.Module, data: Any, size: int, *, sharded: bool, full: bool, parts: Mapping[str, str]
    ) -> "Job":
        """Compare what the ranks were asked for, and give all of them rank 0's model.

        `full` reads all data to compare them, as shards are in any case; otherwise data sets that are not in memory are compared
        by `SAMPLED` examples.
        """
        own = content(data, None if full or sharded else SAMPLED)
        found, shards = own, list[int]()
        if sharded:
            held = ranks.gather((len(data), own))
            shards, found = [count for count, _ in held], hashlib.sha256(repr(held).encode()).hexdigest()
            _check_shards(held)
        common = {"software": software(), "processes": str(ranks.size), "threads or processor": arithmetic()}
        ranks.check_agreement({**common, "data": found, **parts})
        ranks.share_state(model)
        return cls(ranks, Split(ranks.rank, ranks.size, size, tuple(shards)), found)

    def fingerprint(self) -> dict[str, str]:
        """What a checkpoint has to know, so that a replay adds up the same numbers. The number of ranks is not in it."""
        return {"data": self.data, "one process or torchrun": "torchrun", "threads or processor": arithmetic()}

    @property
    def settings(self) -> dict[str, Any]:
        """For the statement."""
        return {"processes": self.ranks.size}

    @property
    def assumptions(self) -> list[str]:
        """For the statement."""
        sizes = ", ".join(map(str, self.split.shards))
        shards = f"no example is in the shards of two processes, which hold {sizes}; checked is only that no two shards are equal"
        return [shards] if self.split.shards else []

    def lead(self, oracle: TorchOracle) -> "RankedOracle":
        """Rank 0 has checked and planned: the others get ready, and are asked through this oracle."""
        self.ranks.share(("begin", (oracle.chunk, oracle.copies, oracle.way)))
        return RankedOracle(oracle, self.ranks, self.split)

    def follow(self) -> Any:
        """Wait until rank 0 has checked and planned; what it found out about the model."""
        return expect(self.ranks, "begin")

    def finish(self, oracle: TorchOracle, said: Any) -> None:
        """Rank 0 has no more questions: the others get what is said, and the parameters that the model now has."""
        self.ranks.share(("end", said))
        self.ranks.broadcast(oracle.layout.flat().cpu())


def expect(ranks: Ranks, *kinds: str) -> Any:
    """Wait for rank 0's next message, of one of these kinds; with one kind, what it says."""
    kind, said = ranks.share()
    if kind == "stop":
        raise RankFailed(f"rank 0 stopped: {said}")
    if kind not in kinds:
        raise RankFailed(f"rank 0 is elsewhere in the script ({kind} instead of {' or '.join(kinds)}): all ranks run the same.")
    return said if len(kinds) == 1 else (kind, said)


def _check_shards(held: Sequence[tuple[int, str]]) -> None:
    """Refuse shards, of so many examples with a fingerprint each, that are empty or the same."""
    if empty := [rank for rank, (count, _) in enumerate(held) if not count]:
        raise RankFailed(f"the shard of rank {empty[0]} has no examples: use fewer processes.")
    if len({one for _, one in held}) < len(held):
        raise RankFailed(
            "two processes hold the same shard, so each of its examples would count twice. A Shard holds what no other process "
            "has; if all have the same data set, give it without Shard: each then answers for its part."
        )


# ---------------------------------------------------------------- questions


@dataclass(frozen=True)
class Vectors:
    """Which vectors are asked for: gradients at a point, or what a query makes of them. Tensors are named by their numbers."""

    kind: str  # at, minus, scaled, shifted
    tensor: int = -1
    weight: float = 1.0
    parts: tuple["Vectors", ...] = ()


@dataclass(frozen=True)
class Question:
    """What rank 0 asks all ranks: the clipped sum of vectors, or losses (without a clip)."""

    rows: Any
    seed: int  # of dropout and random examples
    tensors: int  # how many follow
    vectors: Vectors | None = None
    clip: ClipFactors | None = None
    weight: float = 1.0


class RankedOracle:
    """An oracle that asks all ranks; rank 0 has it in place of its own."""

    counts = False  # of vectors within a bound: ranks are asked for sums

    def __init__(self, oracle: TorchOracle, ranks: Ranks, split: Split) -> None:
        self._oracle, self._ranks, self._split = oracle, ranks, split
        self.model, self.size, self.dimension, self.layers = oracle.model, split.size, oracle.dimension, oracle.layers

    @property
    def layout(self) -> Layout:
        """Where each parameter lies in θ."""
        return self._oracle.layout

    @property
    def flat(self) -> FlatParameters:
        """θ."""
        return self._oracle.flat

    def __call__(self, parameters: Tensor, rows: Any) -> "RankedGrads":
        """The gradients of these rows (None: all) at these parameters."""
        return RankedGrads(self, (parameters,), Vectors("at", 0), rows, self._seed())

    def losses(self, parameters: Tensor, rows: Any) -> Tensor:
        """The loss of each of these examples (None: all), in their order."""
        found = self.ask(Question(rows, self._seed(), 1), (parameters,))
        return found.to(self.layout.device, self.layout.dtype)

    def ask(self, question: Question, tensors: tuple[Tensor, ...]) -> Tensor:
        """Send a question to all ranks, answer for this one's part, and add up."""
        self._ranks.share(("ask", question))
        sent = [tensor.detach().to(self.layout.dtype).contiguous() for tensor in tensors]
        for tensor in sent:
            self._ranks.broadcast(tensor.cpu())
        return answer(self._oracle, self._ranks, self._split, question, sent)

    def _seed(self) -> int:
        return int(torch.randint(2**62, (1,)))  # from a generator that `run_network` has seeded for the round


class RankedGrads:
    """Vectors that are asked for when they are summed. Several points of a round have the same random numbers."""

    def __init__(self, oracle: RankedOracle, tensors: tuple[Tensor, ...], vectors: Vectors, rows: Any, seed: int) -> None:
        self._oracle, self._tensors, self._vectors, self._rows, self._seed = oracle, tensors, vectors, rows, seed

    def clipped_sum(self, clip: ClipFactors, weight: float = 1.0, out: Tensor | None = None) -> Tensor:
        """weight × Σ of the clipped vectors of all ranks, flat; added to `out`, which may hold noise already."""
        question = Question(self._rows, self._seed, len(self._tensors), self._vectors, clip, weight)
        total = self._oracle.ask(question, self._tensors)
        layout = self._oracle.layout
        total = total.to(layout.device, layout.dtype)
        return total if out is None else out.add_(total)

    def minus(self, other: "RankedGrads", weight: float = 1.0) -> "RankedGrads":
        """gᵢ − weight · g′ᵢ, for the same examples at another point."""
        its = _renumber(other._vectors, len(self._tensors))
        return self._replace((*self._tensors, *other._tensors), Vectors("minus", weight=weight, parts=(self._vectors, its)))

    def scaled(self, diagonal: Tensor) -> "RankedGrads":
        """gᵢ ⊙ diagonal."""
        own = Vectors("scaled", len(self._tensors), parts=(self._vectors,))
        return self._replace((*self._tensors, diagonal), own)

    def shifted(self, vector: Tensor, weight: float = 1.0) -> "RankedGrads":
        """gᵢ + weight · vector."""
        own = Vectors("shifted", len(self._tensors), weight, (self._vectors,))
        return self._replace((*self._tensors, vector), own)

    def _replace(self, tensors: tuple[Tensor, ...], vectors: Vectors) -> "RankedGrads":
        return RankedGrads(self._oracle, tensors, vectors, self._rows, self._seed)


def _renumber(vectors: Vectors, by: int) -> Vectors:
    parts = tuple(_renumber(part, by) for part in vectors.parts)
    return Vectors(vectors.kind, vectors.tensor + by if vectors.tensor >= 0 else -1, vectors.weight, parts)


# ---------------------------------------------------------------- answers


def answer(oracle: TorchOracle, ranks: Ranks, split: Split, question: Question, tensors: Sequence[Tensor]) -> Tensor:
    """This rank's part of the answer, added up on rank 0. A rank that fails says so in the reduction, and then raises."""
    count, slots = split.count(question.rows), ranks.size + 1
    if question.clip is None:
        total = ExactSum(count, math.inf, slots)
    else:
        total = ExactSum(oracle.dimension, largest_sum(question.clip, question.weight, count), slots)
    answered, error = 0, None
    try:
        for piece in split.pieces(question.rows):
            _add_piece(oracle, total, question, tensors, piece)
            answered += len(piece.rows)
    except BaseException as raised:
        error = raised
    try:
        reduce_sum(ranks, total, count, answered, error is not None)
    except RankFailed:
        if error is None:
            raise
    if error is not None:
        raise error
    return total.total


def _add_piece(oracle: TorchOracle, total: ExactSum, question: Question, tensors: Sequence[Tensor], piece: Piece) -> None:
    numbers = Dropout(question.seed)
    if question.vectors is None or question.clip is None:
        numbers.begin(piece.place)
        total.vector[torch.from_numpy(piece.positions)] = oracle.losses(tensors[0], piece.rows).double().cpu()
        return

    def vectors(asked: Vectors) -> Any:
        if asked.kind == "at":
            numbers.begin(piece.place)  # the same at every point
            return oracle(tensors[asked.tensor], piece.rows)
        found = [vectors(part) for part in asked.parts]
        if asked.kind == "minus":
            return found[0].minus(found[1], asked.weight)
        if asked.kind == "scaled":
            return found[0].scaled(tensors[asked.tensor])
        return found[0].shifted(tensors[asked.tensor], asked.weight)

    total.add(vectors(question.vectors).clipped_sum(question.clip, question.weight))


def serve(oracle: TorchOracle, ranks: Ranks, split: Split) -> Any:
    """Answer rank 0's questions until it has no more; what it says at the end. The model then has what was released.

    If anything fails, the model has the parameters that it had.
    """
    with training_mode(oracle.model), global_generators(oracle.layout.device), torch.no_grad():
        begun = oracle.flat.vector
        try:
            said = _serve(oracle, ranks, split)
            released = torch.empty(oracle.dimension, dtype=oracle.layout.dtype)
            ranks.broadcast(released)
            oracle.flat.assign(released.to(oracle.layout.device))
        except BaseException:
            oracle.flat.assign(begun)
            raise
        finally:
            oracle.flat.release()
    return said


def _serve(oracle: TorchOracle, ranks: Ranks, split: Split) -> Any:
    while True:
        kind, said = expect(ranks, "ask", "end")
        if kind == "end":
            return said
        received = list(_receive(ranks, oracle, said.tensors))
        try:
            answer(oracle, ranks, split, said, received)
        except BaseException as error:
            if not isinstance(error, RankFailed):
                with suppress(RankFailed):
                    ranks.share()  # rank 0, which was told by the reduction, says that it stops
            raise


def _receive(ranks: Ranks, oracle: TorchOracle, count: int) -> Iterator[Tensor]:
    for _ in range(count):
        tensor = torch.empty(oracle.dimension, dtype=oracle.layout.dtype)
        ranks.broadcast(tensor)
        yield tensor.to(oracle.layout.device)
