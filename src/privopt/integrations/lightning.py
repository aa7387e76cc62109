"""A strategy of Lightning whose training is private.

The loop stays the Trainer's, and the module stays as it is, with automatic optimization; but `training_step` returns one loss for
each example. A step of the Trainer is a round, which may have several pieces: `training_step` is called for each of them, and a
few times more on the first batch, where it is checked that examples do not mix.

Hooks that are given a batch (`on_train_batch_start`, say) get a turn without examples. What `training_step` logs is measured on
private examples, and is not covered by the statement: log nothing there.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import lightning.pytorch as pl
import torch
from lightning.pytorch.callbacks import BatchSizeFinder, LearningRateFinder
from lightning.pytorch.loops.optimization.automatic import ClosureResult
from lightning.pytorch.strategies import SingleDeviceStrategy
from lightning.pytorch.trainer.states import TrainerFn
from torch import Tensor

from privopt.errors import InputError, warn
from privopt.integrations.rounds import ACCUMULATION, AGAIN, Turns, TurnTaker, refuse_accumulation
from privopt.measure.clips import Clip
from privopt.nets import Private, make_private
from privopt.nets.choices import helping_from_opacus
from privopt.privacy.budget import Budget
from privopt.privacy.ledger import Ledger


class PrivateStrategy(SingleDeviceStrategy):
    """Private training on one device: `Trainer(strategy=strategy)`, `trainer.fit(module, strategy.turns)`.

    The Trainer's `max_epochs` or `max_steps` say how long to train. `persons` are ids that say whose example each is, for a
    budget with `unit="person"`, as in `make_private`. `strategy.private.statement()` says what may be claimed.

    **Guarantee** That of `make_private`, for as many rounds as the Trainer takes steps.
    """

    strategy_name = "privopt"

    @helping_from_opacus
    def __init__(
        self,
        data: Any,
        *,
        budget: Budget | None = None,
        noise_multiplier: float | None = None,
        delta: float | None = None,
        batch_size: int | None = None,
        clip_bound: float | Clip = 1.0,
        physical_batch_size: int | None = None,
        ledger: Ledger | None = None,
        persons: Any = None,
        rows_per_person: int | None = None,
        seed: int | None = None,
        device: Any = "cpu",
    ) -> None:
        super().__init__(device=device)
        self.turns = Turns(data, batch_size, persons)
        self.private: Private | None = None
        self._data, self._piece, self._values = data, None, torch.zeros(0)
        self._begin = partial(
            make_private,
            budget=budget,
            noise_multiplier=noise_multiplier,
            delta=delta,
            batch_size=batch_size,
            clip_bound=clip_bound,
            physical_batch_size=physical_batch_size,
            ledger=Ledger() if ledger is None else ledger,
            persons=persons,
            rows_per_person=rows_per_person,
            seed=seed,
        )

    def setup(self, trainer: pl.Trainer) -> None:
        super().setup(trainer)
        if trainer.state.fn != TrainerFn.FITTING:
            return
        refuse_accumulation(trainer.accumulate_grad_batches, "accumulate_grad_batches")
        if trainer.gradient_clip_val is not None:
            raise InputError("gradient_clip_val clips a batch. Private gradients are clipped example by example: clip_bound=….")
        if len(self.optimizers) != 1 or self.lightning_module is None or not self.lightning_module.automatic_optimization:
            raise InputError("private training needs automatic optimization with one optimizer. For more, use make_private.")
        callbacks: Any = getattr(trainer, "callbacks", ())
        if any(isinstance(callback, LearningRateFinder | BatchSizeFinder) for callback in callbacks):
            raise InputError(
                "a search for the learning rate or the batch size trains on private examples, and looks at their losses. Do it "
                "with public data and another strategy; pieces that fit into memory come by themselves."
            )
        rounds = self._count_rounds(trainer)
        if self.private is not None:
            warn(AGAIN)
        self.private = self._begin(self.lightning_module, self.optimizers[0], self._data, rounds=rounds)
        self._turn_taker = TurnTaker(self.private)

    def _count_rounds(self, trainer: pl.Trainer) -> int:
        """How many steps the Trainer will take from where it is."""
        limit, length = trainer.limit_train_batches, len(self.turns)
        each = min(length, limit) if isinstance(limit, int) else int(length * (1.0 if limit is None else limit))
        ends = [trainer.max_steps - trainer.global_step] if trainer.max_steps > 0 else []
        epochs = trainer.max_epochs or 0
        ends += [(epochs - trainer.current_epoch) * each] if epochs > 0 else []
        if not ends:
            raise InputError("say how long to train, max_epochs=… or max_steps=…: the noise depends on the number of rounds.")
        return min(ends)

    def training_step(self, *arguments: Any, **named: Any) -> Any:
        """The module's, on the piece of a round in place of a turn."""
        turn, *others = arguments
        if not isinstance(turn, dict) or turn:
            raise InputError(
                "the Trainer has a loader of its own, but private batches are drawn by the strategy: trainer.fit(module, "
                "strategy.turns)."
            )
        if self._piece is None:
            raise InputError(f"a step of the module comes without one of the optimizer, but {ACCUMULATION}")
        return super().training_step(self._piece, *others, **named)

    def backward(self, closure_loss: Tensor, *arguments: Any, **named: Any) -> Tensor:
        """Keep the losses: their gradients are clipped example by example."""
        self._values = closure_loss
        return closure_loss

    def optimizer_step(self, optimizer: Any, closure: Callable[[], Any], model: Any = None, **named: Any) -> Any:
        """One round, instead of a step with the gradient of a batch."""
        self._turn_taker.take(partial(self._losses, closure))
        closure._result = ClosureResult(None)  # type: ignore[attr-defined]  # losses of private examples are shown to no callback
        self._piece = None

    def _losses(self, closure: Callable[[], Any], piece: Any) -> Tensor:
        self._piece = piece
        closure()
        return self._values

    def load_optimizer_state_dict(self, checkpoint: Any) -> None:
        raise InputError(
            "a checkpoint of Lightning has no state of the noise, and a run that went on from it would have to pay again. "
            "privopt.make_private has state_dict(), for a loop of your own."
        )
