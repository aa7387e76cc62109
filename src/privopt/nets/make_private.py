"""`make_private`: private training inside the user's own loop, with the user's own optimizer."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset, default_collate

from privopt.errors import BudgetExceeded, InputError
from privopt.loop import warn_of_early_end
from privopt.measure import randomness
from privopt.measure.clips import Clip, as_clip, l2
from privopt.measure.measurement import Measurement
from privopt.measure.mechanisms import gaussian
from privopt.measure.open_round import OpenRound
from privopt.measure.queries import gradient
from privopt.needs import Offer, check_oracle, check_slots
from privopt.nets.attached import Attached
from privopt.nets.data import as_dataset, as_model, content, first_of, physical_batch_size, values
from privopt.nets.dropout import Dropout
from privopt.nets.plan import Schedule, check_given, schedule
from privopt.perexample.torch import Layout, Recorder, TorchGrads
from privopt.perexample.torch.check import tried
from privopt.perexample.torch.data import moved, rows_of
from privopt.perexample.torch.draws import Draws
from privopt.perexample.torch.errors import UnsupportedLoss
from privopt.perexample.torch.handed import Handed
from privopt.perexample.torch.mixing import check_losses
from privopt.privacy.accountants import Accountant
from privopt.privacy.budget import Budget, warn_of_delta
from privopt.privacy.calibrate import calibrate
from privopt.privacy.events import compose
from privopt.privacy.ledger import Ledger
from privopt.privacy.statement import Statement

AHEAD = 16  # rounds that are paid with one write
READING, COMPUTING = 0, 1  # what random numbers of torch are used for
FORMAT = "privopt-private-1"


def make_private(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    dataset: Any,
    *,
    budget: Budget,
    batch_size: int,
    epochs: float | None = None,
    rounds: int | None = None,
    clip_bound: float | Clip = 1.0,
    physical_batch_size: int | None = None,
    accountant: Accountant = "auto",
    ledger: Ledger | None = None,
    seed: int | None = None,
) -> "Private":
    """A loader of Poisson batches and a step that clips, hides and updates; any optimizer of torch, any learning-rate scheduler.

    **Guarantee** As `privopt.nets.fit`. Each round is paid for before its answer is used. Whatever the loop does with the model
    is post-processing; whatever it does with the batches or the losses is not covered.

    >>> _ = torch.manual_seed(0)
    >>> x = torch.randn(500, 3)
    >>> y = (x[:, 0] > 0).long()
    >>> model = nn.Linear(3, 2)
    >>> optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    >>> loss = nn.CrossEntropyLoss(reduction="none")
    >>> private = make_private(model, optimizer, (x, y), budget=Budget(3.0, 1e-5), epochs=5, batch_size=100, seed=0)
    >>> for inputs, targets in private.loader:
    ...     updated = private.step(lambda: loss(model(inputs), targets))
    >>> bool((model(x).argmax(1) == y).float().mean() > 0.8), private.epsilon() <= 3.0
    (True, True)
    """
    check_given(budget, ledger, clip_bound, physical_batch_size)
    data = as_dataset(dataset)
    planned = schedule(len(data), batch_size, epochs, rounds)  # type: ignore[arg-type]
    if budget.delta == 0:
        raise InputError("delta is 0, but Gaussian noise needs delta > 0: well below 1/n, such as 1e-6.")
    warn_of_delta(budget, planned.size, frames=1)
    return Private(as_model(model), optimizer, data, planned, budget, clip_bound, physical_batch_size, accountant, ledger, seed)


class Private:
    """The private side of a training loop."""

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        data: Any,
        planned: Schedule,
        budget: Budget,
        clip_bound: float | Clip,
        chunk: int | None,
        accountant: Accountant,
        ledger: Ledger | None,
        seed: int | None,
    ) -> None:
        self.model, self.optimizer = model, optimizer
        self._data, self._planned, self._budget, self._accountant = data, planned, budget, accountant
        self._recorder, self._layout, self._attached = Recorder(model), Layout(model), Attached(model)
        _check_optimizer(optimizer, self._layout)
        self._chunk = chunk or self._measured_chunk()
        clip = as_clip(clip_bound)

        def measurement(noise: float) -> Measurement:
            return Measurement(planned.sampler, [gradient() @ clip], gaussian(noise))

        def event(noise: float) -> Any:
            return compose(measurement(noise).event(round_) for round_ in range(planned.rounds))

        needs = measurement(1.0).needs
        check_slots(needs, frozenset(), "a training loop of your own")
        check_oracle(needs, Offer(planned.size, self._layout.size, tuple(self._layout.parameters)))
        self._clip = clip
        self.noise_multiplier = calibrate(event, budget, accountant=accountant)
        self._measurement = measurement(self.noise_multiplier)
        self._events = [self._measurement.event(round_) for round_ in range(planned.rounds)]
        self.ledger = ledger if ledger is not None else Ledger()
        self._spending = self.ledger.run()
        self._rng, self._seeded = randomness.generator(seed), seed is not None
        self._dropout = Dropout.drawn(self._rng)
        self._began = randomness.state(self._rng)  # the generator when this round began
        self._settings = repr((planned, budget, clip, accountant, self.noise_multiplier))
        self._content: str | None = None
        self._resumed: dict[str, Any] | None = None
        self._open: OpenRound | None = None
        self._place = self._handed = 0  # which piece is handed out, and how many examples it has; 0: none is
        self._piece: Any = None  # itself, until a closure has been checked
        self._ending = self._checked = False  # the piece is its round's last; a closure has been checked
        self._updating = False  # the optimizer is asked for a step by us
        self.rounds, self._last = 0, planned.rounds  # done, and affordable

    @property
    def planned_rounds(self) -> int:
        """How many rounds the budget was planned for; `rounds` are done."""
        return self._planned.rounds

    @property
    def loader(self) -> Iterator[Any]:
        """The batches of all remaining rounds, in pieces that fit into memory: one `step` for each piece."""
        self._check_resumed()
        paid = self._spending.position
        self._last = paid + self._spending.affordable(self._events[paid:])
        if self._last == self.rounds < self._planned.rounds:
            raise BudgetExceeded(f"not even one round fits into what is left of the ledger's budget: {self.ledger.budget}.")
        with self._guarded_optimizer():
            yield from self._pieces()
        if self.rounds < self._planned.rounds:
            warn_of_early_end(self.rounds, self._planned.rounds, self.ledger, frames=1)

    def _pieces(self) -> Iterator[Any]:
        while self.rounds < self._last:
            self._began = randomness.state(self._rng)
            zero = torch.zeros(self._layout.size, dtype=self._layout.dtype, device=self._layout.device)
            self._open = OpenRound(self._measurement, self._planned.size, self.rounds, self._rng, zero)
            parts = self._open.parts(self._chunk)
            if not parts:  # nobody was drawn: that is hidden like any other round
                self._finish()
            for place, rows in enumerate(parts):
                self._place, self._handed, self._ending = place, len(rows), place == len(parts) - 1
                with self._numbers(READING):
                    piece = self._fetch(rows)
                self._piece = None if self._checked else piece
                yield piece
                if self._handed:
                    raise InputError("a batch was handed out, but step(...) was not called: every batch has to be used once.")

    @contextmanager
    def _guarded_optimizer(self) -> Iterator[None]:
        """Refuse steps of the optimizer that are not ours: their gradients would not be private."""

        def refuse(*_: Any) -> None:
            if not self._updating:
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

        The last piece of a round updates it: `if private.step(...): scheduler.step()`. The first closure is called seven times,
        with rows of its batch overwritten, to check that no example's loss depends on another's; nothing is paid before that.
        """
        if self._open is None or not self._handed:
            raise InputError("step(...) uses a batch of the loader: call it once for each, inside `for … in private.loader`.")
        if not callable(closure):
            raise InputError(
                f"step(…) is given a {type(closure).__name__}, but it computes the losses itself: step(lambda: loss(…))."
            )
        self._attached.check()
        if not self._checked and self._handed > 1:
            with self._numbers(COMPUTING):
                handed = Handed(self._piece, self._handed)
                losses = partial(self._losses, closure)
                self._checked = check_losses(self._recorder, self._layout, losses, handed, plainly=True)
        with self._numbers(COMPUTING), torch.enable_grad(), self._recorder.record() as tape:
            factors = tape.factors(self._losses(closure))
        names = self._layout.names
        self._open.add(TorchGrads(self._layout, {names[key]: factor for key, factor in factors.items()}, self._handed))
        self._handed = 0
        if self._ending:
            self._finish()
        return self._ending

    def epsilon(self) -> float:
        """What has been paid so far, at the budget's δ; rounds are paid a few ahead."""
        return self.statement().epsilon

    def statement(self) -> Statement:
        """What may be claimed about the model as it is now."""
        return Statement(
            budget=self._budget,
            event=self._spending.since(0),
            released="the parameters of a network, after every round",
            accountant=self._accountant,
            examples=self._planned.size,
            assumed_public=[
                f"the number of examples ({self._planned.size}), their shapes and types",
                "the model, its start values, the optimizer and the settings",
            ],
            noise=None if self._seeded else randomness.SOURCE,
            cap=self.ledger.cap,
            seeded=self._seeded,
            settings={
                "rounds": self.rounds,
                "batch size": self._planned.phrase(),
                "noise multiplier": self.noise_multiplier,
                "clip bound": self._measurement.bound if isinstance(self._clip, l2) else str(self._clip),
                "optimizer": type(self.optimizer).__name__,
            },
        )

    # ------------------------------------------------------------ saving

    def state_dict(self) -> dict[str, Any]:
        """What a killed loop needs to go on, beside the state of model, optimizer and scheduler, taken at the same time.

        It holds the generator of the noise, so it is as sensitive as the data. Inside a round it is the state before that round.
        """
        return {
            "format": FORMAT,
            "run": self._spending.name,
            "round": self.rounds,
            "paid": self._spending.position,
            "generator": self._began if self._open is not None else randomness.state(self._rng),
            "dropout": self._dropout.seed,
            "chunk": self._chunk,
            "checked": self._checked,
            "seeded": self._seeded,
            "settings": self._settings,
            "content": self._fingerprint(),
            "values": values(self.model, self.optimizer),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where `state_dict` was taken: the same batches, noise and dropout, and nothing is paid twice.

        **Guarantee** That of the whole run, if the loop is the same program on the same data: replayed rounds then give the same
        answers. The data, the settings, and the values of model and optimizer are compared; what the loop does is not known here.
        """
        if self.rounds or self._open is not None:
            raise InputError("load_state_dict(...) comes before the first batch.")
        if state.get("format") != FORMAT:
            raise InputError(f"the state has the format {state.get('format')!r}, not {FORMAT!r}.")
        if (state["settings"], state["content"]) != (self._settings, self._fingerprint()):
            raise InputError(
                "the data or settings are not those that this state was saved with. Replaying its noise on other data would "
                "reveal both: resume with the same, or start a new run."
            )
        rng = randomness.restored(state["generator"])
        self._spending = self.ledger.run(state["run"])
        self._spending.pay(self._events[: state["paid"]])  # a durable ledger holds them already
        self.rounds, self._chunk, self._checked, self._seeded = (state[key] for key in ("round", "chunk", "checked", "seeded"))
        self._rng, self._dropout = rng, Dropout(state["dropout"])
        self._resumed = state

    def _check_resumed(self) -> None:
        if self._resumed is not None and self._resumed["values"] != values(self.model, self.optimizer):
            raise InputError(
                f"the model or the optimizer is not as it was when the state of round {self.rounds} was saved. Load both, as "
                "they were saved at that time; to go on with other ones, start a new run."
            )
        self._resumed = None

    def _fingerprint(self) -> str:
        if self._content is None:
            self._content = content(self._data)
        return self._content

    # ------------------------------------------------------------ inside

    @contextmanager
    def _numbers(self, use: int) -> Iterator[None]:
        """Random numbers of torch that belong to this piece; its own generators go on where they were."""
        with Draws(self._layout.device).again():
            self._dropout.begin(self.rounds, self._place, use)
            yield

    def _losses(self, closure: Callable[[], Tensor]) -> Tensor:
        losses = closure()
        if not isinstance(losses, Tensor) or losses.shape != (self._handed,):
            shape = tuple(losses.shape) if isinstance(losses, Tensor) else type(losses).__name__
            raise UnsupportedLoss(
                f"the closure gave {shape}, but one loss for each example of the batch is needed, a tensor of shape (examples,): "
                'reduction="none", averaged over what is not the batch.'
            )
        return losses

    def _finish(self) -> None:
        assert self._open is not None
        if self.rounds >= self._spending.position:
            self._spending.pay(self._events[self.rounds : min(self.rounds + AHEAD, self._last)])
        noisy = self._open.finish()
        for name, parameter in self._layout.parameters.items():
            parameter.grad = self._layout.view(name, noisy.value)
        self._updating = True
        try:
            self.optimizer.step()
        finally:
            self._updating = False
        self.optimizer.zero_grad(set_to_none=True)
        self._open = None
        self.rounds += 1

    def _fetch(self, rows: Any) -> Any:
        if isinstance(self._data, TensorDataset):
            piece = rows_of(tuple(self._data.tensors), torch.as_tensor(rows))
        else:
            piece = default_collate([self._data[int(row)] for row in rows])
        return moved(piece, self._layout.device)

    def _measured_chunk(self) -> int:
        first = first_of(self._data)
        inputs = first[0] if isinstance(first, tuple | list) else first
        try:
            return int(tried("the model", lambda: physical_batch_size(self.model, inputs), inputs, self._layout))
        except InputError as error:
            raise InputError(f"{error} If your loop calls the model in another way, say physical_batch_size=….") from None


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
