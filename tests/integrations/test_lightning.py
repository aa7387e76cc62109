"""The private strategy of Lightning, with the real library."""

from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from lightning.pytorch.callbacks import GradientAccumulationScheduler, LearningRateFinder
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from privopt import Budget, Ledger, make_private
from privopt.errors import InputError, PrivoptWarning
from privopt.integrations.lightning import PrivateStrategy
from privopt.perexample.networks import UnsupportedLoss
from tests.problems import flat_parameters, tanh_network, tensor_rows

pytestmark = pytest.mark.filterwarnings("ignore")  # those of the library

BUDGET = Budget(8.0, 1e-3)


class Classifier(pl.LightningModule):
    """A module whose loss is one for each example."""

    def __init__(self, reduction: str = "none") -> None:
        super().__init__()
        self.network, self.reduction = tanh_network(), reduction
        self.validated = 0

    def forward(self, inputs: Tensor) -> Tensor:
        scores: Tensor = self.network(inputs)
        return scores

    def training_step(self, batch: Any, place: int) -> Tensor:
        return F.cross_entropy(self(batch[0]), batch[1], reduction=self.reduction)

    def validation_step(self, batch: Any, place: int) -> None:
        self.validated += len(batch[0])

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.SGD(self.parameters(), lr=0.1)
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 4, 0.5)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}


def trainer(strategy: PrivateStrategy, folder: Path, **settings: Any) -> pl.Trainer:
    quiet: dict[str, Any] = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    fixed: dict[str, Any] = {"accelerator": "cpu", "devices": 1, "enable_checkpointing": False, "default_root_dir": folder}
    return pl.Trainer(strategy=strategy, **quiet | fixed | {"max_epochs": 2} | settings)


def trained(module: pl.LightningModule, folder: Path, *, fit: dict[str, Any] | None = None, **settings: Any) -> Any:
    parts: dict[str, Any] = {"batch_size": 60, "budget": BUDGET, "physical_batch_size": 25, "seed": 4}
    strategy = PrivateStrategy(tensor_rows(), **parts | settings)
    trainer(strategy, folder, **fit or {}).fit(module, strategy.turns, DataLoader(TensorDataset(*tensor_rows()), batch_size=100))
    return strategy


def test_a_strategy_makes_the_steps_of_a_loop_with_schedulers_and_validation(tmp_path: Path) -> None:
    module = Classifier()
    strategy = trained(module, tmp_path)
    assert strategy.private.rounds == 10 == module.trainer.global_step  # 2 epochs of 300/60 rounds, in several pieces each
    assert module.validated >= 2 * 300
    assert 0.99 * 8.0 <= strategy.private.statement().epsilon <= 8.0
    assert sum(entry.count for entry in strategy.private.ledger.entries) == 10
    other = Classifier()
    optimizer = torch.optim.SGD(other.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 4, 0.5)
    private = make_private(
        other, optimizer, tensor_rows(), budget=BUDGET, batch_size=60, rounds=10, physical_batch_size=25, seed=4
    )
    for inputs, targets in private.loader:
        if private.step(lambda: F.cross_entropy(other(inputs), targets, reduction="none")):  # noqa: B023
            scheduler.step()
    assert torch.equal(flat_parameters(module), flat_parameters(other))


def test_half_precision_of_the_trainer_reaches_the_private_step(tmp_path: Path) -> None:
    module, whole = Classifier(), Classifier()
    before = flat_parameters(module)
    strategy = trained(module, tmp_path, fit={"precision": "bf16-mixed", "max_steps": 4, "max_epochs": -1})
    trained(whole, tmp_path, fit={"max_steps": 4, "max_epochs": -1})
    assert strategy.private.rounds == 4
    torch.testing.assert_close(flat_parameters(module), flat_parameters(whole), rtol=0, atol=0.05)
    assert not torch.equal(flat_parameters(module), flat_parameters(whole))
    assert not torch.equal(flat_parameters(module), before)


def test_a_mean_loss_is_refused_before_anything_is_paid(tmp_path: Path) -> None:
    ledger = Ledger()
    with pytest.raises(UnsupportedLoss, match="one loss for each example"):
        trained(Classifier("mean"), tmp_path, ledger=ledger)
    assert ledger.entries == ()


def test_rounds_without_examples_do_not_stop_the_trainer(tmp_path: Path) -> None:
    """About one in e rounds has none."""
    module = Classifier()
    strategy = trained(module, tmp_path, batch_size=1, noise_multiplier=2.0, budget=None, fit={"max_steps": 12, "max_epochs": -1})
    assert strategy.private.rounds == 12


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"accumulate_grad_batches": 2}, "accumulate_grad_batches is 2, but a round is one batch"),
        ({"gradient_clip_val": 1.0}, "clipped example by example"),
        ({"max_epochs": -1}, "say how long to train"),
    ],
)
def test_what_a_private_strategy_cannot_keep_is_refused(settings: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=message):
        trained(Classifier(), tmp_path, fit=settings)


def test_callbacks_are_shown_no_losses_of_private_examples(tmp_path: Path) -> None:
    shown = list[Any]()

    class Watching(Classifier):
        def on_train_batch_end(self, outputs: Any, batch: Any, place: int) -> None:
            shown.append((outputs, batch))

    trained(Watching(), tmp_path)
    assert shown == [({}, {})] * 10


def test_a_loader_of_the_trainer_is_refused_before_anything_is_paid(tmp_path: Path) -> None:
    ledger, loader = Ledger(), DataLoader(TensorDataset(*tensor_rows()), batch_size=30, shuffle=True)
    strategy = PrivateStrategy(tensor_rows(), batch_size=60, budget=BUDGET, ledger=ledger)
    with pytest.raises(InputError, match=r"trainer\.fit\(module, strategy\.turns\)"):
        trainer(strategy, tmp_path).fit(Classifier(), loader)
    assert ledger.entries == ()


def test_searches_and_accumulation_by_callbacks_are_refused(tmp_path: Path) -> None:
    ledger = Ledger()
    with pytest.raises(InputError, match="looks at their losses"):
        trained(Classifier(), tmp_path, fit={"callbacks": [LearningRateFinder()]}, ledger=ledger)
    assert ledger.entries == ()
    with pytest.raises(InputError, match="without one of the optimizer, but a round is one batch"):
        trained(Classifier(), tmp_path, fit={"callbacks": [GradientAccumulationScheduler({1: 2})]})


def test_the_budget_is_planned_for_the_steps_that_the_trainer_takes(tmp_path: Path) -> None:
    strategy = trained(Classifier(), tmp_path, fit={"limit_train_batches": 2})
    assert strategy.private.rounds == strategy.private.planned_rounds == 4
    module, strategy = Classifier(), PrivateStrategy(tensor_rows(), batch_size=60, budget=BUDGET, seed=4)
    again = trainer(strategy, tmp_path, max_epochs=1)
    again.fit(module, strategy.turns)
    again.fit_loop.max_epochs = 3
    with pytest.warns(PrivoptWarning, match="what all runs cost together"):
        again.fit(module, strategy.turns)
    assert strategy.private is not None
    assert strategy.private.rounds == strategy.private.planned_rounds == 10
    assert sum(entry.count for entry in strategy.private.ledger.entries) == 15


def test_a_checkpoint_is_not_resumed(tmp_path: Path) -> None:
    module = Classifier()
    strategy = PrivateStrategy(tensor_rows(), batch_size=60, budget=BUDGET, seed=4)
    first = trainer(strategy, tmp_path, max_epochs=1)
    first.fit(module, strategy.turns)
    first.save_checkpoint(tmp_path / "saved.ckpt")
    again = PrivateStrategy(tensor_rows(), batch_size=60, budget=BUDGET, seed=4)
    with pytest.raises(InputError, match="no state of the noise"):
        trainer(again, tmp_path).fit(Classifier(), again.turns, ckpt_path=tmp_path / "saved.ckpt", weights_only=False)
    assert isinstance(module.network, nn.Module)


def test_a_strategy_protects_persons(tmp_path: Path) -> None:
    size = len(tensor_rows()[0])
    ids = [place % (size // 2) for place in range(size)]
    budget = Budget(8.0, 1e-3, unit="person")
    strategy = trained(Classifier(), tmp_path, budget=budget, persons=ids, rows_per_person=2)
    assert strategy.private is not None
    assert strategy.private.rounds == 2 * len(strategy.turns)
    assert len(strategy.turns) == round(size / 2 / 60)
    statement = strategy.private.statement()
    assert "Unit: one person" in statement.text()
    assert f"the number of persons ({size // 2})" in statement.text()
    assert statement.epsilon <= 8.0
