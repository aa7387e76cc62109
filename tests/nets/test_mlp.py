"""Networks for tables: their start, their scale, the rule of their steps, and the way back to rows as they were."""

import math
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from torch import nn

from privopt.loop import run
from privopt.measure.randomness import generator
from privopt.methods import METHODS
from privopt.methods.problem import Choices, LossFacts, Problem, huber_facts, logistic_facts, multinomial_facts
from privopt.methods.rules import CLIPPED, LONGEST, MOMENTUM, SHAKES, STEEPER, default_rounds, default_steps
from privopt.nets.facts import find_stable_move, gradient_facts
from privopt.nets.table_network import LENGTH, Rows, build_mlp, gradient_norm, unfold_layers
from privopt.perexample.design import Frame
from privopt.perexample.grads import Materialized
from privopt.postprocess.release import last

LOSSES = [logistic_facts(), multinomial_facts(4), huber_facts(0.2)]
NETWORKS = [name for name, method in METHODS.items() if "network" in method.models and not method.uses_public and method.private]


def rows(count: int, inputs: int, seed: int = 0) -> torch.Tensor:
    made = torch.randn(count, inputs, generator=torch.Generator().manual_seed(seed))
    return LENGTH * made / made.norm(dim=1, keepdim=True)


@pytest.mark.parametrize("inputs", [4, 300])
def test_units_start_with_variance_one_whatever_the_number_of_inputs(inputs: int) -> None:
    """2000 × 400 numbers; biases add up to 1/12 for four inputs. False alarms: none in practice, the start is fixed."""
    model = build_mlp(inputs, (400,), 1, generator(0))
    assert float(model[0](rows(2000, inputs)).detach().var()) == pytest.approx(1.0, abs=0.2)


def test_the_start_repeats_with_the_generator_and_leaves_torchs_own_alone() -> None:
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    one, same, other = (next(build_mlp(3, (4,), 1, generator(seed)).parameters()) for seed in (1, 1, 2))
    assert torch.equal(torch.rand(3), expected)
    assert torch.equal(one, same)
    assert not torch.equal(one, other)


def test_the_gradient_norm_is_that_of_each_score_alone() -> None:
    """Against autograd, on other made-up rows: the two means differ by a few per cent."""
    model = build_mlp(20, (64, 32), 3, generator(0))
    squares = []
    for row in rows(200, 20, seed=9):
        model.zero_grad()
        model(row)[0].backward()
        squares.append(sum(float(p.grad.square().sum()) for p in model.parameters() if p.grad is not None))
    assert gradient_norm(model, 20) == pytest.approx(math.sqrt(np.mean(squares)), rel=0.1)


@pytest.mark.parametrize("kind", ["dense", "sparse"])
def test_unfolded_layers_score_raw_rows_as_the_network_scores_framed_ones(kind: str) -> None:
    rng = np.random.default_rng(0)
    matrix = 100 + 20 * rng.standard_normal((50, 6))
    frame = Frame(np.full(6, 100.0), np.linspace(5, 50, 6), intercept=0.0)
    if kind == "sparse":
        matrix, frame = sp.random_array((50, 6), density=0.4, rng=rng, format="csr"), Frame(None, frame.scale, intercept=0.0)
    model = build_mlp(6, (16, 8), 2, generator(0))
    units = matrix
    *hidden, (slopes, intercepts) = unfold_layers(model, frame)
    for weights, biases in hidden:
        units = np.tanh(units @ weights.T + biases)
    framed, targets = Rows(matrix, frame, torch.arange(50))(list(range(50)))
    assert torch.equal(targets, torch.arange(50))
    np.testing.assert_allclose(units @ slopes.T + intercepts, model(framed).detach().numpy(), atol=1e-5)


def test_drawing_rows_changes_no_table() -> None:
    matrix = np.arange(12.0).reshape(4, 3)
    drawn = Rows(matrix, Frame(np.ones(3), np.full(3, 2.0), intercept=0.0), torch.arange(4))
    drawn([2, 0])
    np.testing.assert_array_equal(matrix, np.arange(12.0).reshape(4, 3))
    torch.testing.assert_close(drawn([2, 0])[0], torch.tensor([[2.5, 3.0, 3.5], [-0.5, 0.0, 0.5]]))


# ---------------------------------------------------------------- the rule


class Nothing:
    """Data without any signal: every gradient is zero."""

    size = 1

    def __init__(self, dimension: int) -> None:
        self._zero = np.zeros((1, dimension))

    def __call__(self, parameters: object, rows: object) -> Materialized:
        return Materialized(self._zero)


def problem(loss: LossFacts = LOSSES[0], **changes: Any) -> Problem:
    facts: dict[str, Any] = {"size": 100, "width": 21, "dimension": 500, "row_norm": 7.0, "single_release_noise": 1.0, **changes}
    return Problem("network", facts.pop("choices", Choices(rounds=300)), loss, **facts)


def test_noise_alone_shakes_scores_by_what_the_rule_allows() -> None:
    """The derivation's claim: T rounds of noise move the score of a typical row by about κ; κ = 2 for this much noise."""
    model, inputs, rounds, batch = build_mlp(10, (64,), 1, generator(0)), 10, 300, 500
    count = sum(parameter.numel() for parameter in model.parameters())
    noise = batch * math.sqrt(rounds) / (8.0 * (inputs + 1))  # so that q = 8
    asked = problem(size=batch, width=inputs + 1, dimension=count, row_norm=gradient_norm(model, inputs))
    recipe = METHODS["dp-adam"].build(asked.choosing(options={"release": last(), "stability": 1e-8}), noise)
    moved = run(recipe, Nothing(count), np.zeros(count), rng=generator(1)).parameters
    made = rows(64, inputs)
    before = model(made).detach()
    theta = nn.utils.parameters_to_vector(model.parameters()) + torch.from_numpy(moved).float()
    nn.utils.vector_to_parameters(theta, model.parameters())
    assert 1.0 < float((model(made) - before).detach().square().mean().sqrt()) < 4.0


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("loss", LOSSES)
def test_the_defaults_build_every_method_for_networks(name: str, loss: LossFacts) -> None:
    for noise in (0.5, 50.0, 1e6):
        assert METHODS[name].build(problem(loss), noise).rounds == 300


@pytest.mark.parametrize("loss", LOSSES)
def test_the_clip_bound_follows_the_longest_gradient(loss: LossFacts) -> None:
    for noise in (0.5, 50.0, 1e6):
        longest = 7.0 * loss.largest
        assert 0.5 * longest <= default_steps("adaptive", problem(loss), noise, 300)["clip_bound"] <= 1.2 * longest


def test_a_number_is_learnt_by_small_clip_bounds_and_steps_that_hold_only_with_these() -> None:
    number = problem(huber_facts(0.2), choices=Choices())
    for noise in (1e-9, 0.5, 50.0, 1e6):
        found = default_steps("momentum", number, noise, 300)
        assert 0.125 * 0.999 <= found["clip_bound"] / (7.0 * number.loss.largest) <= 0.3 * 1.001
        assert found["learning_rate"] <= STEEPER / number.smoothness
    free = default_steps("momentum", number, 1e-9, 300)
    assert free["learning_rate"] == pytest.approx(STEEPER / number.smoothness)
    chosen = default_steps("momentum", number.choosing(clip_bound=100.0), 1e-9, 300)
    assert chosen["learning_rate"] <= 1 / number.smoothness  # a bound that clips nothing keeps no step stable


def test_more_noise_means_shorter_steps_and_clips() -> None:
    low, high = (default_steps("adaptive", problem(), noise, 300) for noise in (1.0, 1000.0))
    assert high["learning_rate"] < low["learning_rate"]
    assert high["clip_bound"] < low["clip_bound"]


def test_descent_with_momentum_learns_classes_by_steps_in_units_of_a_small_clip_bound() -> None:
    """Whatever the clip bound is, noise alone moves each parameter by κ/G in T rounds; a step has a longest move."""
    for chosen in (None, 0.1, 5.0):
        asked = problem(LOSSES[1], size=60_000, dimension=10**7, choices=Choices(chosen, rounds=300, batch_size=2048))
        found = default_steps("momentum", asked, 2.0, 300)
        assert found["clip_bound"] == (chosen or pytest.approx(CLIPPED * 7.0 * math.sqrt(2)))
        walk = found["learning_rate"] / (1 - MOMENTUM) * math.sqrt(300) * 2.0 * found["clip_bound"] / 2048
        assert walk == pytest.approx(SHAKES["momentum"] / 7.0, rel=0.01)
        quiet = default_steps("momentum", asked, 1e-9, 300)
        assert quiet["learning_rate"] * found["clip_bound"] * 7.0 / (1 - MOMENTUM) == pytest.approx(LONGEST)


def test_batches_are_all_rows_or_2048_and_rounds_grow_with_what_the_budget_buys() -> None:
    free = Choices()
    assert problem(size=500, choices=free).batch == 500
    assert problem(size=50_000, choices=free).batch == 2048
    assert problem(size=50_000, choices=free).on_all_examples.batch == 50_000
    assert default_rounds(problem(size=500, choices=free)) == 300
    rounds = [default_rounds(problem(size=60_000, choices=free, single_release_noise=noise)) for noise in (10.0, 1.5, 0.1)]
    assert rounds == [300, round(2 * (60_000 / 1.5 / 2048) ** 2), round(30 * 60_000 / 2048)]


def deep(layers: int) -> nn.Sequential:
    torch.manual_seed(0)
    hidden = [part for _ in range(layers - 1) for part in (nn.Linear(32, 32), nn.ReLU())]
    return nn.Sequential(nn.Linear(10, 32), nn.ReLU(), *hidden, nn.Linear(32, 2))


def test_the_deeper_a_network_the_shorter_the_move_that_it_bears() -> None:
    moves = []
    for layers in (1, 3, 6):
        model, inputs = deep(layers), torch.zeros(1, 10)
        before = nn.utils.parameters_to_vector(model.parameters()).detach().clone()
        typical, outputs = gradient_facts(model, inputs)
        moves.append(find_stable_move(list(model.parameters()), lambda m=model, x=inputs: gradient_facts(m, x)[0], typical))  # type: ignore[misc]
        assert outputs == 2
        assert torch.equal(nn.utils.parameters_to_vector(model.parameters()), before)
    assert moves[0] >= moves[1] > moves[2]
    free = Choices(rounds=100)
    rates = [
        default_steps("adaptive", problem(choices=free, stable_move=move), 1.0, 100)["learning_rate"] for move in (np.inf, 1e-3)
    ]
    assert rates[1] == pytest.approx(1e-4)
    assert rates[1] < rates[0]
