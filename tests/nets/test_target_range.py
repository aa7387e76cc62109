"""The range of a regression's targets: declared, clipped to, mapped; and what is said where it is not declared."""

import warnings
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from privopt import Budget, Ledger, fit
from privopt.errors import InputError, PrivoptWarning
from privopt.methods.problem import multinomial_facts, squared_facts
from privopt.nets import Views
from privopt.nets.facts import facts_of_loss
from privopt.nets.identity import identify
from privopt.nets.target_range import TargetRange
from tests.problems import flat_parameters

LOW, HIGH = 900_000.0, 1_300_000.0
BUDGET = Budget(3.0, 1e-5)


def prices(count: int = 2000) -> tuple[Tensor, Tensor]:
    """Targets near a million, that depend on their inputs."""
    inputs = torch.randn(count, 4, generator=torch.Generator().manual_seed(0))
    return inputs, 1_100_000 + 60_000 * (inputs[:, :1] - 0.5 * inputs[:, 1:2])


def explained(model: nn.Module, inputs: Tensor, targets: Tensor) -> float:
    """R²."""
    with torch.no_grad():
        return 1 - float((model(inputs) - targets).square().mean() / targets.var())


def linear() -> nn.Module:
    torch.manual_seed(0)
    return nn.Linear(4, 1)


@pytest.mark.parametrize("loss", [nn.MSELoss(), nn.HuberLoss(), F.smooth_l1_loss], ids=["mse", "huber", "function"])
def test_targets_near_a_million_are_learnt_in_their_own_unit(loss: Any) -> None:
    inputs, targets = prices()
    each = loss if isinstance(loss, nn.Module) else lambda output, target: loss(output, target, reduction="none").mean(1)
    result = fit(linear(), each, (inputs, targets), budget=BUDGET, target_range=(LOW, HIGH), rounds=100, seed=0)
    assert explained(result.model, inputs, targets) > 0.7
    assert "the range of the targets, 900000 to 1.3e+06" in result.privacy.statement.text()


def test_without_a_range_it_is_said_what_targets_are_taken_to_be() -> None:
    inputs, targets = prices()
    with pytest.warns(PrivoptWarning, match=r"taken to lie in \[-1, 1\].*target_range=\(low, high\)") as said:
        result = fit(linear(), nn.MSELoss(), (inputs, targets), budget=BUDGET, rounds=5, seed=0)
    assert said[0].filename == __file__
    assert "targets lie in [-1, 1]" in result.privacy.statement.text()


def test_the_same_is_said_whatever_the_targets_are() -> None:
    """The warning says nothing about the data."""
    inputs, targets = prices()
    said = []
    for given in (targets, targets / 2e6):
        with warnings.catch_warnings(record=True) as found:
            warnings.simplefilter("always")
            result = fit(linear(), nn.MSELoss(), (inputs, given), budget=BUDGET, rounds=2, seed=0)
        said.append(([str(warning.message) for warning in found], result.privacy.statement.text()))
    assert said[0] == said[1]
    assert said[0][0]


@pytest.mark.parametrize(
    "settings", [{"target_range": (-1, 1)}, {"clip_bound": 1.0, "learning_rate": 0.1}], ids=["declared", "chosen"]
)
def test_nothing_is_said_where_nothing_is_taken_for_granted(settings: dict[str, Any]) -> None:
    inputs, targets = prices()
    result = fit(linear(), nn.MSELoss(), (inputs, targets / 2e6), budget=BUDGET, rounds=2, seed=0, **settings)
    assert "[-1, 1]" not in result.privacy.statement.text()


def test_a_range_is_the_mapping_that_a_user_could_do() -> None:
    """The same run on targets that were clipped and mapped before; answers are mapped back."""
    inputs, targets = prices()
    targets[:5] = 1e9  # outside
    ranged = fit(linear(), nn.MSELoss(), (inputs, targets), budget=BUDGET, target_range=(LOW, HIGH), rounds=5, seed=0)
    mapped = ((targets - 1_100_000) / 200_000).clamp(-1, 1)
    plain = fit(linear(), nn.MSELoss(), (inputs, mapped), budget=BUDGET, target_range=(-1, 1), rounds=5, seed=0)
    torch.testing.assert_close(flat_parameters(ranged.model), flat_parameters(plain.model), rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(ranged.model(inputs), 1_100_000 + 200_000 * plain.model(inputs), rtol=1e-5, atol=1.0)


def test_whole_numbers_are_targets() -> None:
    inputs, targets = prices()
    years = (targets / 600).long()
    result = fit(linear(), nn.MSELoss(), (inputs, years), budget=BUDGET, target_range=(1500, 2200), rounds=100, seed=0)
    assert explained(result.model, inputs, years.float()) > 0.7


def test_what_is_released_is_an_ordinary_module() -> None:
    inputs, targets = prices()
    result = fit(linear(), nn.MSELoss(), (inputs, targets), budget=BUDGET, target_range=(LOW, HIGH), rounds=2, seed=0)
    before = result.model(inputs)
    torch.testing.assert_close(result.model.double()(inputs.double()).float(), before, rtol=1e-4, atol=1.0)
    assert next(result.model.half().parameters()).dtype == torch.float16


def test_another_range_is_another_loss() -> None:
    """A checkpoint of one is not continued with the other."""
    one, other = (TargetRange(0.0, high).loss(nn.MSELoss()) for high in (1.0, 2.0))
    assert identify(loss=one) != identify(loss=other)


@pytest.mark.parametrize("declared", [(1, 0), (0, float("inf")), (0, float("nan")), 3, "01", (0, 1, 2), ("0", "1")], ids=str)
def test_what_is_no_range_is_refused_before_anything_is_paid(declared: Any) -> None:
    ledger = Ledger()
    with pytest.raises(InputError, match="two finite numbers that are public"):
        fit(linear(), nn.MSELoss(), prices(), budget=BUDGET, target_range=declared, ledger=ledger)
    assert ledger.entries == ()


def test_classes_have_no_range() -> None:
    with pytest.raises(InputError, match="CrossEntropyLoss learns classes"):
        fit(linear(), nn.CrossEntropyLoss(), prices(), budget=BUDGET, target_range=(0, 1))


def test_counts_have_no_range() -> None:
    with pytest.raises(InputError, match="PoissonNLLLoss needs counts"):
        fit(linear(), nn.PoissonNLLLoss(), prices(), budget=BUDGET, target_range=(0, 9))


class Named(nn.Linear):
    """A model that names its answer."""

    def forward(self, inputs: Tensor) -> Any:
        return {"price": super().forward(inputs)}


def test_an_answer_that_cannot_be_mapped_back_is_refused_before_anything_is_paid() -> None:
    ledger = Ledger()
    with pytest.raises(InputError, match="a tensor, but this one answers with a dict"):
        fit(
            Named(4, 1),
            lambda output, targets: (output["price"] - targets).square().mean(1),
            prices(),
            budget=BUDGET,
            target_range=(LOW, HIGH),
            ledger=ledger,
        )
    assert ledger.entries == ()


def test_the_rule_sees_the_loss_inside_of_a_wrapper() -> None:
    assert facts_of_loss(TargetRange(0.0, 5.0).loss(nn.MSELoss()), 1) == squared_facts()
    views = Views(nn.Linear(4, 10), lambda inputs: inputs, 2)
    assert facts_of_loss(views.loss(nn.CrossEntropyLoss()), 10) == multinomial_facts(10)
