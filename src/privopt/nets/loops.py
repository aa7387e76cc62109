"""`make_private`: private training inside the user's own loop, with the user's own optimizer.

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
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from privopt.checkpoint import different, software
from privopt.errors import InputError, warn
from privopt.measure import randomness
from privopt.measure.clips import Clip, as_clip, l2
from privopt.measure.measurement import Measurement, OpenRound, RoundInPieces
from privopt.measure.mechanisms import gaussian
from privopt.measure.queries import gradient
from privopt.measure.samplers import Sampler
from privopt.measure.units import Unit, each_person, each_row
from privopt.needs import Offer, check_oracle, check_slots
from privopt.nets.choices import (
    Independence,
    People,
    assumptions,
    check_batch,
    check_clip,
    check_independence,
    check_physical,
    count_passes,
    describe_examples,
    find_people,
    helping_from_opacus,
    need_batch_size,
    require,
    sampler_of,
)
from privopt.nets.data import as_model, content, physical_batch_size, values
from privopt.nets.identity import identify
from privopt.nets.loading import LABELS, OWN_COLLATION, Examples, like
from privopt.nets.ranked import Job
from privopt.nets.ranks import Shard, count_examples, describe, join
from privopt.nets.rehearsal import RANDOM, Attached, Rehearsal, check_recorded, explaining_outside
from privopt.perexample.networks import Layout, Recorder, TorchGrads
from privopt.perexample.networks.examples import leaves, move_to_device
from privopt.perexample.networks.isolation.model_check import check_model, run_or_explain
from privopt.perexample.networks.isolation.one_by_one import DRAWN, draws_random_numbers
from privopt.perexample.networks.isolation.overwriting import BatchRows, check_losses
from privopt.perexample.networks.rng import Dropout, global_generators
from privopt.perexample.networks.unsupported import UnsupportedLayer, UnsupportedLoss
from privopt.perexample.persons import Persons
from privopt.privacy.accountants import Accountant, epsilon
from privopt.privacy.budget import Budget
from privopt.privacy.events import DpEvent, compose
from privopt.privacy.ledger import Ledger
from privopt.privacy.statement import Statement
from privopt.progress import preparing
from privopt.training.session import PaidRounds, Session, check_budget, check_ledger, settle_budget

OWN_CODE = "the losses are computed by the loop's own code"
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


@helping_from_opacus
def make_private(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    dataset: Any,
    *,
    budget: Budget | None = None,
    noise_multiplier: float | None = None,
    delta: float | None = None,
    batch_size: int | None = None,
    epochs: float | None = None,
    rounds: int | None = None,
    clip_bound: float | Clip = 1.0,
    physical_batch_size: int | None = None,
    accountant: Accountant = "auto",
    ledger: Ledger | None = None,
    independence: Independence = "checked",
    persons: Any = None,
    rows_per_person: int | None = None,
    seed: int | None = None,
) -> "Private":
    """A loader of Poisson batches and a step that clips, hides and updates; any optimizer of torch, any learning-rate scheduler.

    `dataset` is a pair of tensors, a map-style dataset, or a DataLoader: its dataset, `batch_size`, `collate_fn` and workers are
    used. With `epochs`, each pass of `private.loader` is one epoch; with `rounds`, one pass has all rounds. `noise_multiplier`
    instead of a budget takes the noise as it is; the statement says what that costs, at `delta` (by default below 1/(10 n)).

    **Guarantee** As `privopt.nets.fit`. Each round is paid for before anything is computed for it, and answers at most once, also
    if the loop fails in it or leaves it: then it is spent without an update. Whatever the loop does with the model is
    post-processing; whatever it does with the batches or the losses is not covered. With `persons` (`privopt.nets.fit`) a batch
    holds all counted examples of each drawn person, and a person's gradients are averaged and clipped as one.

    >>> _ = torch.manual_seed(0)
    >>> x = torch.randn(500, 3)
    >>> y = (x[:, 0] > 0).long()
    >>> model = nn.Linear(3, 2)
    >>> optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    >>> loss = nn.CrossEntropyLoss(reduction="none")
    >>> private = make_private(model, optimizer, (x, y), budget=Budget(3.0, 1e-5), epochs=5, batch_size=100, seed=0)
    >>> for epoch in range(5):
    ...     for inputs, targets in private.loader:
    ...         updated = private.step(lambda: loss(model(inputs), targets))
    >>> bool((model(x).argmax(1) == y).float().mean() > 0.8), private.epsilon() <= 3.0
    (True, True)
    """
    check_ledger(ledger)
    check_clip(clip_bound)
    check_physical(physical_batch_size)
    check_independence(independence)
    require(independence, [OWN_CODE])
    ranks, sharded = join(), isinstance(dataset, Shard)
    examples = Examples.given(dataset.data if isinstance(dataset, Shard) else dataset)
    size = count_examples(ranks, examples, sharded)
    if people := find_people(persons, rows_per_person, size, budget, torchrun=ranks is not None):
        size = people.persons.size
        if examples.own_collation:
            raise InputError(
                "persons=… with a collate_fn: batches that it puts together are sorted by length, so rows would count for other "
                "persons. Pad the examples in the dataset."
            )
    wanted = need_batch_size(batch_size, examples.batch_size)
    check_batch(size, wanted)
    batch = min(wanted, size)
    passes = count_passes(size, batch, epochs, rounds)
    unit: Unit = each_row() if people is None else each_person()
    measurement = partial(_measurement, sampler_of(size, batch), as_clip(clip_bound), unit)
    with preparing():
        plan = partial(_plan, measurement, passes[-1])
        budget = settle_budget(budget, noise_multiplier, delta, size, plan, accountant=accountant, unit=unit.name)
        check_budget(budget, ledger)
    if budget.delta == 0:
        raise InputError("delta is 0, but Gaussian noise needs delta > 0: well below 1/n, such as 1e-6.")
    chunk = physical_batch_size
    most = -(-batch // examples.workers) if examples.workers else None  # examples of a piece, so that each worker has one
    attach = partial(Attachment, as_model(model), optimizer, examples, chunk, most=most)
    begin = partial(Session, budget, size, seed=seed, accountant=accountant, noise_multiplier=noise_multiplier)
    if ranks is None:
        return Private(attach(), begin(ledger=ledger), measurement, passes, people)
    from privopt.nets.ranked_loop import RankedPrivate, attach_rank, silence_other_ranks  # which build on this file

    groups = [{name: value for name, value in group.items() if name != "params"} for group in optimizer.param_groups]
    parts = {
        "model": describe(model, values=False),
        "optimizer": describe((type(optimizer).__qualname__, groups)),
        "settings": describe((budget, batch, passes, clip_bound, physical_batch_size, accountant, noise_multiplier)),
        "seed": describe(seed),
    }
    job = Job.begin(ranks, model, examples.data, size, sharded=sharded, full=False, parts=parts)
    attached = attach_rank(attach, job)
    with silence_other_ranks(job), ranks.leading():
        session = begin(ledger=ledger if ranks.leads else None)
    return RankedPrivate(attached, session, measurement, passes, job)


def _plan(measurement: Callable[[float], Measurement], rounds: int, noise_multiplier: float) -> DpEvent:
    """What so many rounds with this noise cost."""
    planned = measurement(noise_multiplier)
    return compose(planned.event(round_) for round_ in range(rounds))


def _measurement(sampler: Sampler, clip: Clip, unit: Unit, noise_multiplier: float) -> Measurement:
    return Measurement(sampler, [gradient() @ clip], gaussian(noise_multiplier), unit=unit)


class Attachment:
    """A model, its optimizer and its data, checked to be fit for private training."""

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        examples: Examples,
        physical: int | None,
        *,
        most: int | None,
        chunk: int | None = None,
        doubts: list[str] | None = None,
    ) -> None:
        self.model, self.optimizer, self.examples = model, optimizer, examples
        self.code = _code_of(model, examples)  # before anything runs the model, which may count its calls
        self.recorder, self.layout, self.attached = Recorder(model), Layout(model), Attached(model)
        _check_optimizer(optimizer, self.layout)
        self._first = examples.first
        if doubts is None:
            examples.check_collation()
            doubts = [OWN_CODE, *([OWN_COLLATION] if examples.own_collation else []), *self._doubts_of_model()]
        self.doubts = doubts  # of another rank, which has checked
        if not (chunk := chunk or physical):
            chunk = self._measured_chunk() if most is None else min(self._measured_chunk(), most)
        self.chunk = chunk

    def _inputs(self) -> Any:
        if isinstance(self._first, dict):
            return {name: value for name, value in self._first.items() if name not in LABELS}
        return self._first[0] if isinstance(self._first, tuple | list) else self._first

    def _doubts_of_model(self) -> list[str]:
        """Refuse a model that mixes examples. Why that is not proved, of the model alone."""
        inputs = move_to_device(self._inputs(), self.layout.device)
        try:
            return check_model(self.recorder, _projected, inputs, torch.zeros(1, device=self.layout.device)).doubts
        except InputError:
            return ["the loop calls the model in a way of its own"]
        except UnsupportedLayer:
            if draws_random_numbers(self.model, inputs):
                return [DRAWN]
            raise

    def _measured_chunk(self) -> int:
        inputs = self._inputs()
        try:
            return int(
                run_or_explain(
                    "the model", lambda: physical_batch_size(self.model, inputs, self.recorder.formed), inputs, self.layout
                )
            )
        except InputError as error:
            raise InputError(f"{error} If your loop calls the model in another way, say physical_batch_size=….") from None


class Loader:
    """The Poisson batches of a loop, one pass at a time, in pieces that fit into memory: one `step` for each piece."""

    def __init__(self, private: "Private") -> None:
        self._private = private

    def __iter__(self) -> Iterator[Any]:
        return self._private._pass()

    def __len__(self) -> int:
        """How many rounds a pass has, and so how often it updates the model. How many pieces it has depends on chance."""
        return self._private._passes[0]


class Private:
    """The private side of a training loop."""

    def __init__(
        self,
        attachment: Attachment,
        session: Session,
        measurement: Callable[[float], Measurement],
        passes: Sequence[int],
        people: People | None = None,
    ) -> None:
        self.model, self.optimizer, self._examples = attachment.model, attachment.optimizer, attachment.examples
        self._code, self._attached = attachment.code, attachment.attached
        self._recorder, self._layout = attachment.recorder, attachment.layout
        self._chunk, self._doubts = attachment.chunk, attachment.doubts
        self._session, self._passes = session, passes
        needs = measurement(1.0).needs
        check_slots(needs, frozenset(), "a training loop of your own")
        check_oracle(needs, Offer(session.size, self._layout.size, tuple(self._layout.parameters)))
        with preparing():
            self.noise_multiplier, self._paid = self._open_session(measurement, passes[-1])
        self._measurement = measurement(self.noise_multiplier)
        self._sampler, self._clip = self._measurement.sampler, self._measurement.terms[0].clip
        batch = self._sampler.expected(session.size)
        self._batch = f"{batch:.10g} of {session.size} on average (Poisson)" if batch < session.size else "all examples"
        self._people, self._row_key = people, None if people is None else randomness.key(session.rng)
        self._persons = self._draw_rows()
        self._rng = session.rng
        self._dropout = Dropout.drawn(self._rng)
        self._drawing = self._rng  # of the round that is open; `_rng` is as it was before that round
        asked = (session.size, self._sampler, passes, session.budget, self._clip, session.accountant, self.noise_multiplier)
        self._settings = repr(asked) + ("" if people is None else f" {people.fingerprint()}")
        self._content: str | None = None
        self._resumed: dict[str, Any] | None = None
        self._replays = self._warned = False  # rounds may be replayed; a state that cannot be was saved
        self._using, self._process = threading.Lock(), os.getpid()
        self.loader = Loader(self)
        self._entry: object = None  # the newest entry of the loader
        self._coming: Iterator[Any] | None = None  # the pieces of the open round that workers read
        self._open: RoundInPieces | None = None
        self._of_job: dict[str, Any] = {}  # settings and assumptions of a torchrun job
        self._doubts_of_job: list[str] = []
        self._place = self._handed = 0  # which piece is handed out, and how many examples it has; 0: none is, or it is used
        self._piece: Any = None  # itself, until it is used
        self._part: Any = None  # what is handed out of it: all, or a part in a rehearsal
        self._rehearsal, self._rehearsing = Rehearsal(self._recorder, self._layout), False  # rehearsing: a part is handed out
        self._checked = False  # a closure has been checked
        self._updating = False  # the optimizer is asked for a step by us

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
        with self._guarded_optimizer():
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
                        self._rehearsal = Rehearsal(self._recorder, self._layout)
                    found = None if self._checked else self._rehearsal.part(self._piece, len(rows))
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
        size, number = self._session.size, self.rounds
        self._open = OpenRound(self._measurement, size, number, self._drawing, zero, self._chunk, self._persons)
        return self._open

    def _draw_rows(self) -> Persons | None:
        """The rows of each person that count in this run, drawn once."""
        return None if self._people is None or self._row_key is None else self._people.draw(randomness.from_key(self._row_key))

    @contextmanager
    def _guarded_optimizer(self) -> Iterator[None]:
        """Refuse steps of the optimizer that are not ours: their gradients would not be private.

        A step without any gradient changes nothing, and a trainer that has a loop of its own takes it after each of ours.
        """

        def refuse(*_: Any) -> None:
            held = (parameter for group in self.optimizer.param_groups for parameter in group["params"])
            if not self._updating and any(parameter.grad is not None for parameter in held):
                raise InputError(
                    "optimizer.step() in the loop would use gradients that are not private. private.step(…) calls it."
                )

        hook = self.optimizer.register_step_pre_hook(refuse)
        try:
            yield
        finally:
            hook.remove()

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
                    self._rehearse(losses, examples)
                    return False
                if not self._checked:
                    self._check(losses, examples)
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

    def _rehearse(self, losses: Callable[[], Tensor], examples: int) -> None:
        """Note the losses of a part of a batch."""
        try:
            with self._numbers(COMPUTING), self._unchanged(losses, examples) as again:
                self._rehearsal.note(again)
        except BaseException as error:
            error.add_note(f"This was a rehearsal with {examples} examples of the first batch: nothing was paid.")
            raise

    def _check(self, losses: Callable[[], Tensor], examples: int) -> None:
        """Refuse a closure that mixes the examples of its batch, or remembers those of others.

        A piece of one example shows the latter only, which is all there is where no piece has more.
        """
        with self._numbers(COMPUTING), self._unchanged(losses, examples) as again:
            conclusive = check_losses(
                self._recorder, self._layout, losses, BatchRows(self._part, examples), against_autograd=True
            )
            self._checked = conclusive and (examples > 1 or (self._chunk == 1 and self._people is None))
            self._doubts += [doubt for doubt in self._rehearsal.compare(again) if doubt not in self._doubts]

    @contextmanager
    def _unchanged(self, losses: Callable[[], Tensor], examples: int) -> Iterator[Callable[[], Tensor]]:
        """The same losses each time, of a batch that a closure may change in place; then the batch as it was."""
        batch = BatchRows(self._part, examples)

        def again() -> Tensor:
            batch.overwrite(batch.order)
            return losses()

        try:
            yield again
        finally:
            batch.overwrite(batch.order)

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
            assumed=[*assumptions(self._doubts), *self._doubts_of_job],
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
            if RANDOM in self._doubts and not self._warned:
                self._warned = True
                warn(f"this state cannot be loaded: {UNREPEATABLE}")
            return {
                "format": FORMAT,
                **self._paid.save(),
                "generator": randomness.save_state(self._rng),
                "dropout": self._dropout.seed,
                "rows of persons": self._row_key,
                "chunk": self._chunk,
                "checked": self._checked,
                "seeded": self._session.seeded,
                "draws": RANDOM in self._doubts,
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
        self._chunk, self._checked, self._session.seeded = (state[key] for key in ("chunk", "checked", "seeded"))
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
        if isinstance(self._code, InputError):
            raise self._code
        if self._content is None:
            self._content = content(self._examples.data)
        return {"data": self._content, "settings": self._settings, **self._code, "software": software()}

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
        if self._replays and RANDOM in self._doubts:
            raise InputError(UNREPEATABLE)
        self._paid.begin()

    def _leave(self) -> bool:
        """Close a round that is open: spent if it was begun, else as if it had not been drawn. Whether it was spent."""
        self._handed, self._piece, self._coming = 0, None, None
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


def _code_of(model: nn.Module, examples: Examples) -> dict[str, str] | InputError:
    """Fingerprints of the model's and the loader's code; or why there are none, which matters only if a state is saved."""
    try:
        return {"model's code": identify(values=False, model=model, torch=torch), "loader's code": identify(**examples.code)}
    except InputError as error:
        return error.with_traceback(None)


def _projected(output: Any, examples: Tensor) -> Tensor:
    """One number for each example, to which every output of the model contributes."""
    parts = [x for x in leaves(output) if isinstance(x, Tensor) and x.is_floating_point() and x.shape[:1] == examples.shape[:1]]
    if not parts:
        raise InputError("the model gives no tensor with one row for each example.")
    columns = torch.cat([part.flatten(1) if part.ndim > 1 else part.unsqueeze(1) for part in parts], 1)
    return columns @ torch.arange(1.0, columns.shape[1] + 1, device=columns.device).cos().to(columns.dtype)


def _check_optimizer(optimizer: torch.optim.Optimizer, layout: Layout) -> None:
    if isinstance(optimizer, torch.optim.LBFGS):
        raise InputError("LBFGS asks for more gradients inside a step than a round pays for. Use an optimizer that asks for one.")
    held = {parameter for group in optimizer.param_groups for parameter in group["params"] if parameter.requires_grad}
    if held - set(layout.names):
        raise InputError(
            "the optimizer holds trainable parameters that are not the model's: their gradients would not be private."
        )
    if left := [name for name, parameter in layout.parameters.items() if parameter not in held]:
        raise InputError(
            f"{', '.join(left[:5])}{' …' if len(left) > 5 else ''} can be trained, but the optimizer does not hold it: it would "
            "use a share of the clip bound and never move. Freeze it (requires_grad_(False)), or give it to the optimizer."
        )
