"""The private side of a training loop of the user's own: rounds that are drawn, begun and closed.

The loop is not ours, so it may end anywhere. What stays true:

- A pass of the loader has the rounds that make up one epoch. The batches of a round are Poisson samples, so a pass is no
  permutation of the data: an example may come twice in it, or not at all.
- A round is *drawn* when its first piece is handed out, *begun* by its first `step`, and *closed* by the step of its last piece.
- A round that is drawn and left is drawn again, the same rows, by the next entry of the loader: nothing of it was used.
- A round is begun once it is paid for, and its number is then used up. If anything raises in it, or the loop leaves it, it is
  closed without an update: what it summed up is dropped, gradients are cleared, and the next round is another one, with a payment
  of its own.
- After a round that failed, a state that was saved before leads elsewhere than this loop: to the round that failed, and past it.
  So the loop goes on as a new run of the ledger, with new randomness; what the old run paid ahead is left to the saved state.
"""

import os
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from privopt.checkpoint import different
from privopt.errors import InputError, warn
from privopt.measure import randomness
from privopt.measure.clips import l2
from privopt.measure.measurement import Measurement, OpenRound, RoundInPieces
from privopt.measure.units import each_person, rows_drawn
from privopt.needs import Offer, check_oracle, check_slots
from privopt.nets.attachment import Attachment, guarded
from privopt.nets.choices import People, assumptions, describe_examples
from privopt.nets.data import values
from privopt.nets.loading import like
from privopt.nets.rehearsal import RANDOM, ClosureCheck, check_recorded, explaining_outside
from privopt.perexample.networks import TorchGrads
from privopt.perexample.networks.examples import move_to_device
from privopt.perexample.networks.rng import Dropout, global_generators
from privopt.perexample.networks.unsupported import UnsupportedLoss
from privopt.perexample.persons import Persons
from privopt.privacy.accountants import epsilon
from privopt.privacy.budget import Budget
from privopt.privacy.ledger import Ledger
from privopt.privacy.statement import Statement
from privopt.progress import preparing
from privopt.training.session import PaidRounds, Session

READING, COMPUTING = 0, 1  # what random numbers of torch are used for
FORMAT = "privopt-private-4"
UNREPEATABLE = (
    "the loop draws random numbers outside of the closure, so a replay of its rounds would use the same noise for other losses, "
    "which reveals both. Draw them inside the closure, or in the dataset, and save a state of that loop; or start a new run."
)
OPACUS_HABITS = {  # what to write for what an engine, an optimizer or a loader of Opacus has
    "get_epsilon": "get_epsilon(delta) is Opacus'. Write private.epsilon(delta=…).",
    "accountant": "an accountant is Opacus'. Write private.epsilon(delta=…), or private.statement() for the whole claim.",
    "make_private": "this is private already: write `for batch in private.loader: private.step(…)`.",
    "zero_grad": "private.step(…) does what zero_grad, backward and optimizer.step do.",
}
SPENT = "The round of privopt in which this happened is spent, without an update of the model. The next round is another one."


@dataclass(frozen=True)
class LoopPlan:
    """What a loop measures in each round, after how many rounds its passes end, whose the examples are, and what is drawn."""

    measurement: Callable[[float], Measurement]  # with this noise multiplier
    passes: Sequence[int]
    people: People | None
    size: int  # how many units are drawn from: examples, persons, or the rows of persons


class Loader:
    """The Poisson batches of a loop, one pass at a time, in pieces that fit into memory: one `step` for each piece."""

    def __init__(self, private: "Private") -> None:
        self._private = private

    def __iter__(self) -> Iterator[Any]:
        return self._private._pass()

    def __len__(self) -> int:
        """How many rounds a pass has, and so how often it updates the model. How many pieces it has depends on chance."""
        return self._private._passes[0]

    @property
    def dataset(self) -> Any:
        """The private examples."""
        return self._private._examples.data


class Private:
    """The private side of a training loop."""

    def __init__(self, attachment: Attachment, session: Session, plan: LoopPlan) -> None:
        measurement, passes, people = plan.measurement, plan.passes, plan.people
        self.model, self.optimizer, self._examples = attachment.model, attachment.optimizer, attachment.examples
        self._attachment, self._attached = attachment, attachment.attached
        self._recorder, self._layout = attachment.recorder, attachment.layout
        self._chunk = attachment.chunk
        self._check = ClosureCheck(self._recorder, self._layout, attachment.doubts)
        self._session, self._passes = session, passes
        needs = measurement(1.0).needs
        check_slots(needs, frozenset(), "a training loop of your own")
        most = rows_drawn(measurement(1.0).unit)
        check_oracle(needs, Offer(plan.size, self._layout.size, tuple(self._layout.parameters), most_rows=most))
        with preparing():
            self.noise_multiplier, self._paid = self._open_session(measurement, passes[-1])
        self._measurement = measurement(self.noise_multiplier)
        self._sampler, self._clip = self._measurement.sampler, self._measurement.terms[0].clip
        self._size, batch = plan.size, self._sampler.expected(plan.size)
        of = f"{plan.size}" if most is None else f"{plan.size} rows"
        self._batch = f"{batch:.10g} of {of} on average (Poisson)" if batch < plan.size else "all examples"
        self._people, self._row_key = people, None if people is None else randomness.key(session.rng)
        self._persons = self._draw_rows()
        self._rng = session.rng
        self._dropout = Dropout.drawn(self._rng)
        self._drawing = self._rng  # of the round that is open; `_rng` is as it was before that round
        asked = (session.size, self._sampler, passes, session.budget, self._clip, session.accountant, self.noise_multiplier)
        self._settings = repr(asked) + ("" if people is None else f" {self._measurement.unit} {people.fingerprint()}")
        self._content: str | None = None  # a fingerprint of the data, if it is known
        self._resumed: dict[str, Any] | None = None
        self._replays = self._warned = False  # rounds may be replayed; a state that cannot be was saved
        self._using, self._process = threading.Lock(), os.getpid()
        self.loader = Loader(self)
        self._entry: object = None  # the newest entry of the loader
        self._coming: Iterator[Any] | None = None  # the pieces of the open round that workers read
        self._open: RoundInPieces | None = None
        self._of_job: dict[str, Any] = {}  # settings and assumptions of a torchrun job
        self._assumed_of_job: list[str] = []
        self._place = self._handed = 0  # which piece is handed out, and how many examples it has; 0: none is, or it is used
        self._piece: Any = None  # itself, until it is used
        self._part: Any = None  # what is handed out of it: all, or a part in a rehearsal
        self._rehearsing = False  # a part is handed out
        self._updating = False  # the optimizer is asked for a step by us

    def __iter__(self) -> Iterator[Any]:
        raise InputError(
            "make_private returns one object; model and optimizer stay those that you have. Write `private = make_private(…)`, "
            "then `for batch in private.loader: private.step(…)`."
        )

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(OPACUS_HABITS.get(name, f"{type(self).__name__!r} object has no attribute {name!r}"))

    def _open_session(self, measurement: Callable[[float], Measurement], rounds: int) -> tuple[float, PaidRounds]:
        return self._session.open(measurement, rounds)

    @property
    def ledger(self) -> Ledger:
        """What was spent."""
        return self._session.ledger

    @property
    def rounds(self) -> int:
        """How many rounds are closed."""
        return self._paid.closed

    @property
    def planned_rounds(self) -> int:
        """How many rounds the budget was planned for; `rounds` are done."""
        return self._paid.planned

    @property
    def epoch(self) -> int:
        """How many passes of the loader are complete: a resumed loop goes on with `range(private.epoch, epochs)`."""
        return sum(end <= self.rounds for end in self._passes)

    def _pass(self) -> Iterator[Any]:
        """The pieces of the next pass, or of the rest of one that was left."""
        entry = self._enter()
        if self.rounds == self.planned_rounds:
            warn(
                f"all {self.planned_rounds} rounds that were planned are done, so this pass of private.loader has no batch. To "
                "train for longer, plan more epochs or rounds: a budget is divided among them before the first."
            )
            return
        end = self._passes[self.epoch]
        with guarded(self.model, lambda: self._updating):
            while handed := self._next(entry, end):
                yield handed[0]
        if self.rounds < end:
            self._ended_early()

    def _ended_early(self) -> None:
        """The ledger holds no more rounds."""
        self._session.warn_of_early_end(self.rounds, self.planned_rounds)

    def _enter(self) -> object:
        with self._alone():
            self._check_resumed()
            if self._leave():
                warn(f"a loop was left inside a round. {SPENT}")
            self._paid.afford()
            self._entry = entry = object()
            return entry

    def _next(self, entry: object, end: int) -> tuple[Any] | None:
        """Hand out the next piece, if there is one before this number of rounds is done."""
        with self._alone():
            if entry is not self._entry:
                raise InputError("this loop has ended: private.loader was entered again, and a round belongs to one loop.")
            with self._closed_by_errors():
                if self._handed:
                    raise InputError("a batch was handed out, but step(...) was not called: every batch has to be used once.")
                while self._open is not None or (self._paid.left and self.rounds < end):
                    round_ = self._open or self._draw()
                    if round_ is None:
                        return None
                    if not round_.parts:  # nobody was drawn: that is hidden like any other round
                        self._begin()
                        self._update(round_)
                        continue
                    rows = round_.parts[self._place]
                    if self._piece is None:
                        self._piece = move_to_device(self._fetch(round_), self._layout.device)
                        self._check.begin()
                    found = self._check.part(self._piece, len(rows))
                    if found is not None and self._examples.own_collation:
                        found = self._shorter(found, rows)
                    self._rehearsing = found is not None
                    self._part, self._handed = found or (self._piece, len(rows))
                    return (self._part,)
        return None

    def _draw(self) -> RoundInPieces | None:
        """Draw the next round; None if there is none after all."""
        self._drawing = randomness.restore_state(randomness.save_state(self._rng))
        zero = torch.zeros(self._layout.size, dtype=self._layout.dtype, device=self._layout.device)
        self._place = 0
        number = self.rounds
        self._open = OpenRound(self._measurement, self._size, number, self._drawing, zero, self._chunk, self._persons)
        return self._open

    def _draw_rows(self) -> Persons | None:
        """The rows of each person that count in this run, drawn once."""
        return None if self._people is None or self._row_key is None else self._people.draw(randomness.from_key(self._row_key))

    def step(self, closure: Callable[[], Tensor]) -> bool:
        """Use one piece of a batch: `closure` computes its losses, one for each example. Whether the model was updated.

        The last piece of a round updates it: `if private.step(...): scheduler.step()`. The first two pieces of a loop are parts
        of the third and count for nothing. They, and the third with rows overwritten, show whether an example's loss depends on
        others or on their number. Nothing is paid before that. (A piece of one example is handed out twice.)
        """
        with self._alone():
            round_ = self._open
            if round_ is None or not self._handed:
                raise InputError("step(...) uses a batch of the loader: call it once for each, inside `for … in private.loader`.")
            if not callable(closure):
                raise InputError(
                    f"step(…) is given a {type(closure).__name__}, but it computes the losses itself: step(lambda: loss(…))."
                )
            self._attached.check()
            losses, examples = partial(self._losses, closure, self._handed), self._handed
            with explaining_outside():
                if self._rehearsing:
                    self._handed = 0  # the part is used up, whatever happens
                    with self._numbers(COMPUTING):
                        self._check.rehearse(losses, self._part, examples)
                    return False
                if not self._check.done:
                    single = self._chunk == 1 and self._measurement.unit != each_person()
                    with self._numbers(COMPUTING):
                        self._check.finish(losses, self._part, examples, single=single)
            self._begin()
            with self._closed_by_errors():
                self._handed, self._piece, self._part = 0, None, None  # the piece is used up, whatever happens
                with self._numbers(COMPUTING), torch.enable_grad(), self._recorder.record() as tape:
                    factors = tape.factors(self._losses(closure, examples))
                check_recorded(factors)
                names = self._layout.names
                round_.add(self._place, TorchGrads(self._layout, {names[key]: own for key, own in factors.items()}, examples))
                self._place += 1
                if updated := self._place == len(round_.parts):
                    self._update(round_)
            return updated

    def epsilon(self, delta: float | None = None) -> float:
        """ε of the rounds that were begun so far, at this δ, or at the budget's.

        The ledger and the statement count more: rounds are paid a few ahead.
        """
        budget = self._session.budget
        wanted = Budget(1.0, budget.delta if delta is None else delta).delta
        return epsilon(self._paid.begun_event, wanted, budget.neighbours, accountant=self._session.accountant)

    def statement(self) -> Statement:
        """What may be claimed about the model as it is now."""
        return self._session.state(
            "the parameters of a network, after every round",
            event=self._paid.event,
            assumed_public=[
                describe_examples(self._session.size, self._people),
                "the model, its start values, the optimizer and the settings",
            ],
            assumed=[*assumptions(self._check.doubts), *self._assumed_of_job],
            settings={
                "rounds": self.rounds,
                **({"rounds without an update": self._paid.failed} if self._paid.failed else {}),
                "batch size": self._batch,
                "noise multiplier": self.noise_multiplier,
                "clip bound": self._measurement.bound if isinstance(self._clip, l2) else str(self._clip),
                **({} if self._people is None else {"rows of a person, at most": self._people.most}),
                "optimizer": type(self.optimizer).__name__,
                **self._of_job,
            },
        )

    # ------------------------------------------------------------ saving

    def state_dict(self) -> dict[str, Any]:
        """What a killed loop needs to go on, beside the state of model, optimizer and scheduler, taken at the same time.

        It holds the generator of the noise, so it is as sensitive as the data. Inside a round it is the state before that round;
        it is refused inside a step (a hook of the optimizer, a closure), where the model is between two rounds.
        """
        with self._alone():
            if RANDOM in self._check.doubts and not self._warned:
                self._warned = True
                warn(f"this state cannot be loaded: {UNREPEATABLE}")
            return {
                "format": FORMAT,
                **self._paid.save(),
                "generator": randomness.save_state(self._rng),
                "dropout": self._dropout.seed,
                "rows of persons": self._row_key,
                "chunk": self._chunk,
                "checked": self._check.done,
                "seeded": self._session.seeded,
                "draws": RANDOM in self._check.doubts,
                "parts": self._parts(),
                "values": values(self.model, self.optimizer),
            }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where `state_dict` was taken: the same batches, noise and dropout, and nothing is paid twice.

        **Guarantee** That of the whole run, if the loop is the same program on the same data: replayed rounds then give the same
        answers. The data, the settings, the software, the code of model and loader (as they were given to `make_private`), and
        the values of model and optimizer are compared; what the loop does is not known here. If it draws random numbers outside
        of the closure, the replay would be of other losses: that is refused.
        """
        if self._paid.begun or self._open is not None:
            raise InputError("load_state_dict(...) comes before the first batch.")
        if state.get("format") != FORMAT:
            raise InputError(f"the state has the format {state.get('format')!r}, not {FORMAT!r}.")
        if state["draws"]:
            raise InputError(UNREPEATABLE)
        if state["parts"] != (parts := self._parts()):
            raise InputError(
                "the data, the code of model or loader, the software or the settings are not those that this state was saved with"
                f"{different(state['parts'], parts)}. Replaying its noise on another query would reveal both: resume with the "
                "same, or start a new run."
            )
        rng = randomness.restore_state(state["generator"])
        self._paid.load(state)
        self._chunk, self._check.done, self._session.seeded = (state[key] for key in ("chunk", "checked", "seeded"))
        self._rng, self._dropout = rng, Dropout(state["dropout"])
        self._row_key = state["rows of persons"]
        self._persons = self._draw_rows()
        self._resumed, self._replays = state, True

    def _check_resumed(self) -> None:
        if self._resumed is not None and self._resumed["values"] != values(self.model, self.optimizer):
            raise InputError(
                f"the model or the optimizer is not as it was when the state of round {self.rounds} was saved. Load both, as "
                "they were saved at that time; to go on with other ones, start a new run."
            )
        self._resumed = None

    def _parts(self) -> dict[str, str]:
        """Fingerprints of what decides the query."""
        found = self._attachment.fingerprints(self._content)
        return {"data": found.pop("data"), "settings": self._settings, **found}

    # ------------------------------------------------------------ inside a round

    def _alone(self) -> threading.Lock:
        if os.getpid() != self._process:
            raise InputError(
                "this loop belongs to the process that made it: a fork would draw the same noise for another batch, revealing "
                "both. Call make_private in the process that trains."
            )
        if self._using.locked():
            raise InputError("the loader, step(…) and state_dict() are used by one thread at a time, and not inside a step.")
        return self._using

    @contextmanager
    def _closed_by_errors(self) -> Iterator[None]:
        """Leave the round if anything raises."""
        try:
            yield
        except BaseException as error:
            if self._leave():
                error.add_note(SPENT)
            raise

    def _begin(self) -> None:
        """Pay for the round that is open, if that was not done ahead, and use up its number."""
        if self._replays and RANDOM in self._check.doubts:
            raise InputError(UNREPEATABLE)
        self._paid.begin()

    def _leave(self) -> bool:
        """Close a round that is open: spent if it was begun, else as if it had not been drawn. Whether it was spent.

        A rehearsal goes on where it was left: it would never end in a loop that enters the loader anew for each batch.
        """
        rehearsed = self._rehearsing and not self._handed
        self._handed, self._coming = 0, None
        self._piece = self._piece if rehearsed else None
        if not self._paid.inside:
            self._open = None
            return False
        self._clear()
        if self._paid.renews:
            self._drawing = randomness.generator(randomness.key(self._drawing) if self._session.seeded else None)
        self._open, self._rng = None, self._drawing  # before the round is closed: no other round draws from the same state
        self._paid.fail()
        return True

    def _update(self, round_: RoundInPieces) -> None:
        """Draw the answer of a round, give it to the optimizer, and close the round."""
        noisy = round_.finish()
        for name, parameter in self._layout.parameters.items():
            parameter.grad = self._layout.view(name, noisy.value)
        try:
            self._updating = True
            self.optimizer.step()
        finally:
            self._updating = False
        self._clear()
        self._coming = None
        self._open, self._rng = None, self._drawing  # before the round is closed: no other round draws from the same state
        self._paid.close()

    def _clear(self) -> None:
        for parameter in self._layout.parameters.values():
            parameter.grad = None

    @contextmanager
    def _numbers(self, use: int) -> Iterator[None]:
        """Random numbers that belong to this piece; the user's global generators go on where they were."""
        with global_generators(self._layout.device):
            place = self._open.places[self._place] if self._open is not None else self._place
            self._dropout.begin(self.rounds, place, use)
            yield

    def _losses(self, closure: Callable[[], Tensor], examples: int) -> Tensor:
        losses = closure()
        if not isinstance(losses, Tensor) or losses.shape != (examples,):
            shape = tuple(losses.shape) if isinstance(losses, Tensor) else type(losses).__name__
            mean = " A model's own loss (output.loss) is a mean over the batch: compute losses from its outputs, output.logits."
            raise UnsupportedLoss(
                f"the closure gave {shape}, but one loss for each example of the batch is needed, a tensor of shape (examples,): "
                f'reduction="none", averaged over what is not the batch.{mean if shape in ((), "ModelOutput") else ""}'
            )
        return losses

    def _fetch(self, round_: RoundInPieces) -> Any:
        """The piece that comes next, read here or by workers; its random numbers are the same."""
        if not self._examples.workers:
            with self._numbers(READING):
                return self._examples.read_sorted(round_.parts[self._place])
        if self._coming is None:
            seeds = [self._dropout.seed_of(self.rounds, place, READING) for place in round_.places[self._place :]]
            self._coming = self._examples.ahead(round_.parts[self._place :], seeds)
        return next(self._coming)

    def _shorter(self, part: tuple[Any, int], rows: Any) -> tuple[Any, int]:
        """The first examples of a batch, padded no further than they need by themselves."""
        with self._numbers(READING):
            few = self._examples.read_first(rows, part[1])
        return tree_map(like, few, part[0]), part[1]

    def __reduce_ex__(self, protocol: object) -> Any:  # which copy, deepcopy and pickle ask
        raise InputError("a copy of a private loop would draw a second answer for a round that is paid once: save state_dict().")
