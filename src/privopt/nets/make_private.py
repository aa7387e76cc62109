"""`make_private`: private training inside the user's own loop, with the user's own optimizer."""

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset, default_collate

from privopt.errors import InputError
from privopt.measure.clips import l2
from privopt.measure.measurement import Measurement
from privopt.measure.mechanisms import gaussian
from privopt.measure.open_round import OpenRound
from privopt.measure.queries import gradient
from privopt.measure.randomness import generator
from privopt.nets.data import as_dataset, physical_batch_size
from privopt.nets.plan import Schedule, schedule
from privopt.perexample.torch import Layout, Recorder, TorchGrads
from privopt.perexample.torch.data import rows_of
from privopt.privacy.accountants import Accountant
from privopt.privacy.budget import Budget
from privopt.privacy.calibrate import calibrate
from privopt.privacy.events import compose
from privopt.privacy.ledger import Ledger
from privopt.privacy.statement import Statement

AHEAD = 16  # rounds that are paid with one write


def make_private(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    dataset: Any,
    *,
    budget: Budget,
    batch_size: int,
    epochs: float | None = None,
    rounds: int | None = None,
    clip_bound: float = 1.0,
    physical_batch_size: int | None = None,
    accountant: Accountant = "auto",
    ledger: Ledger | None = None,
    seed: int | None = None,
) -> "Private":
    """A loader of Poisson batches and a step that clips, hides and updates; any optimizer of torch, any learning-rate scheduler.

    **Guarantee** As `privopt.nets.fit`. Each batch is paid for before it is handed out. Whatever the loop does with the model is
    post-processing; whatever it does with the batches or the losses is not covered.

    >>> _ = torch.manual_seed(0)
    >>> x = torch.randn(500, 3)
    >>> y = (x[:, 0] > 0).long()
    >>> model = nn.Linear(3, 2)
    >>> optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    >>> loss = nn.CrossEntropyLoss(reduction="none")
    >>> private = make_private(model, optimizer, (x, y), budget=Budget(3.0, 1e-5), epochs=5, batch_size=100, seed=0)
    >>> for inputs, targets in private.loader:
    ...     private.step(lambda: loss(model(inputs), targets))
    >>> bool((model(x).argmax(1) == y).float().mean() > 0.8), private.statement().epsilon <= 3.0
    (True, True)
    """
    data = as_dataset(dataset)
    planned = schedule(len(data), batch_size, epochs, rounds)  # type: ignore[arg-type]
    if budget.delta == 0:
        raise InputError("delta is 0, but Gaussian noise needs delta > 0: well below 1/n, such as 1e-6.")
    return Private(model, optimizer, data, planned, budget, clip_bound, physical_batch_size, accountant, ledger, seed)


class Private:
    """The private side of a training loop."""

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        data: Any,
        planned: Schedule,
        budget: Budget,
        clip_bound: float,
        chunk: int | None,
        accountant: Accountant,
        ledger: Ledger | None,
        seed: int | None,
    ) -> None:
        self.model, self.optimizer = model, optimizer
        self._data, self._planned, self._budget, self._accountant = data, planned, budget, accountant
        self._recorder, self._layout = Recorder(model), Layout(model)
        _check_optimizer(optimizer, self._layout)
        clip = [gradient() @ l2(clip_bound)]

        def measurement(noise: float) -> Measurement:
            return Measurement(planned.sampler, clip, gaussian(noise))

        def event(noise: float) -> Any:
            return compose(measurement(noise).event(round_) for round_ in range(planned.rounds))

        self.noise_multiplier = calibrate(event, budget, accountant=accountant)
        self._measurement = measurement(self.noise_multiplier)
        self.ledger = ledger if ledger is not None else Ledger()
        self._spending = self.ledger.run()
        self._rng, self._seeded = generator(seed), seed is not None
        first = default_collate([data[0]])
        self._chunk = chunk or physical_batch_size(model, first[0])
        self._open: OpenRound | None = None
        self._waiting = self._ending = False  # a piece is handed out; it is its round's last
        self.rounds = 0

    @property
    def loader(self) -> Iterator[Any]:
        """The batches of all remaining rounds, in pieces that fit into memory: one `step` for each piece."""
        while self.rounds < self._planned.rounds:
            if self.rounds >= self._spending.position:
                ahead = range(self.rounds, min(self.rounds + AHEAD, self._planned.rounds))
                self._spending.pay([self._measurement.event(round_) for round_ in ahead])
            zero = torch.zeros(self._layout.size, dtype=self._layout.dtype, device=self._layout.device)
            self._open = OpenRound(self._measurement, self._planned.size, self.rounds, self._rng, zero)
            parts = self._open.parts(self._chunk)
            if not parts:  # nobody was drawn: that is hidden like any other round
                self._finish()
            for place, rows in enumerate(parts):
                self._waiting, self._ending = True, place == len(parts) - 1
                yield self._fetch(rows)
                if self._waiting:
                    raise InputError("a batch was handed out, but step(...) was not called: every batch has to be used once.")

    def step(self, closure: Callable[[], Tensor]) -> None:
        """Use one piece of a batch: `closure` computes its losses, one for each example. The last piece updates the model."""
        if self._open is None or not self._waiting:
            raise InputError("step(...) uses a batch of the loader: call it once for each, inside `for … in private.loader`.")
        with torch.enable_grad(), self._recorder.record() as tape:
            losses = closure()
            factors = tape.factors(losses)
        names = {parameter: name for name, parameter in self._layout.parameters.items()}
        grads = TorchGrads(self._layout, {names[parameter]: factor for parameter, factor in factors.items()}, len(losses))
        self._open.add(grads)
        self._waiting = False
        if self._ending:
            self._finish()

    def statement(self) -> Statement:
        """What may be claimed about the model as it is now."""
        return Statement(
            budget=self._budget,
            event=self._spending.since(0),
            released="the parameters of a network, after every round",
            accountant=self._accountant,
            assumed_public=[
                f"the number of examples ({self._planned.size})",
                "the model, its start values, the optimizer and the settings",
            ],
            seeded=self._seeded,
            settings={
                "rounds": self.rounds,
                "batch size": self._planned.phrase(),
                "noise multiplier": self.noise_multiplier,
                "clip bound": self._measurement.bound,
                "optimizer": type(self.optimizer).__name__,
            },
        )

    def _finish(self) -> None:
        assert self._open is not None
        noisy = self._open.finish()
        for name, parameter in self._layout.parameters.items():
            parameter.grad = self._layout.view(name, noisy.value)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        self._open = None
        self.rounds += 1

    def _fetch(self, rows: Any) -> Any:
        if isinstance(self._data, TensorDataset):
            return rows_of(tuple(self._data.tensors), torch.as_tensor(rows))
        return default_collate([self._data[int(row)] for row in rows])


def _check_optimizer(optimizer: torch.optim.Optimizer, layout: Layout) -> None:
    own = {id(parameter) for parameter in layout.parameters.values()}
    held = {id(parameter) for group in optimizer.param_groups for parameter in group["params"] if parameter.requires_grad}
    if held - own:
        raise InputError(
            "the optimizer holds trainable parameters that are not the model's: their gradients would not be private."
        )
