"""Laws 1 and 3 for persons of a network: all rows of a person together move a clipped sum by at most the bound.

That norms and sums are those of gradients formed one row at a time is in `test_random_architectures`, for every layer.
"""

import copy
import itertools
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from privopt.errors import CompositionError
from privopt.measure.clips import Clip, adaptive, automatic, l1, l2, per_layer
from privopt.measure.measurement import Measurement, OpenRound
from privopt.measure.mechanisms import gaussian
from privopt.measure.queries import gradient
from privopt.measure.randomness import generator
from privopt.measure.samplers import full_batch, poisson
from privopt.measure.units import each_person
from privopt.perexample.networks import PersonGrads, TorchGrads, TorchOracle, TorchPersonOracle, per_example_gradients
from privopt.perexample.networks.torch_grads import PersonSums
from privopt.perexample.persons import Persons
from privopt.state import PublicState

COUNTS = np.array([1, 5, 2, 3, 1, 9])
ROWS = int(COUNTS.sum())
CLIPS: dict[str, Callable[[float], Clip]] = {
    "l2": l2,
    "l1": l1,
    "automatic": automatic,
    "per layer": lambda bound: per_layer({"0": 0.6 * bound, "2": 0.8 * bound}),
}
EVERY_CLIP = pytest.mark.parametrize("name", CLIPS)


def model() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3)).double()


def rows() -> tuple[Tensor, Tensor]:
    draws = torch.Generator().manual_seed(1)
    return torch.randn(ROWS, 4, generator=draws).double(), torch.randint(3, (ROWS,), generator=draws)


def persons() -> Persons:
    """The rows of a person are anywhere."""
    return Persons(np.random.default_rng(2).permutation(ROWS), COUNTS)


def oracle(x: Tensor, y: Tensor, of: Persons, chunk: int | None = None) -> TorchPersonOracle:
    return TorchPersonOracle(TorchOracle(model(), nn.CrossEntropyLoss(), x, y, chunk=chunk, check=False), of)


def one_by_one(x: Tensor, y: Tensor, of: Persons) -> Tensor:
    """Each person's vector: the mean of gradients that are formed."""
    each = per_example_gradients(model(), nn.CrossEntropyLoss(reduction="none"), x, y).dense()
    return torch.stack([each[of.take(np.array([person])).rows].mean(0) for person in range(of.size)])


def moved(vectors: Callable[[Any], Any], clip: Clip) -> list[float]:
    """How far each person moves the clipped sum."""
    asked = oracle(*rows(), persons())
    everybody = vectors(asked(None, None)).clipped_sum(clip)
    found = []
    for person in range(len(COUNTS)):
        others = vectors(asked(None, np.delete(np.arange(len(COUNTS)), person))).clipped_sum(clip)
        found.append(float(torch.linalg.vector_norm(everybody - others, clip.order)))
    return found


# ---------------------------------------------------------------- law 1


@pytest.mark.parametrize("bound", [1e-3, 0.1, 10.0])
@EVERY_CLIP
def test_removing_one_person_moves_the_sum_by_at_most_the_bound(name: str, bound: float) -> None:
    distances = moved(lambda grads: grads, CLIPS[name](bound))
    assert max(distances) <= bound * (1 + 1e-9)
    if bound == 1e-3 and name == "l2":
        assert min(distances) == pytest.approx(bound)  # with one row or with nine


@EVERY_CLIP
def test_removing_one_person_from_scaled_differences_moves_the_sum_by_at_most_the_bound(name: str) -> None:
    diagonal = torch.linspace(0.1, 3.0, 43).double()

    def vectors(grads: Any) -> Any:
        return grads.minus(grads, 0.4).scaled(diagonal)

    assert max(moved(vectors, CLIPS[name](0.05))) <= 0.05 * (1 + 1e-9)
    assert max(moved(lambda grads: vectors(grads).shifted(diagonal, 0.3), l2(0.05))) <= 0.05 * (1 + 1e-9)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@EVERY_CLIP
@pytest.mark.parametrize("chunk", [None, 4])
@pytest.mark.parametrize("person", [0, 1, 5])
def test_a_row_that_is_not_finite_makes_its_person_absent_and_moves_nobody_else(
    person: int, chunk: int | None, name: str, value: float
) -> None:
    (x, y), of = rows(), persons()
    x[of.take(np.array([person])).rows[-1]] = value
    clip, others = CLIPS[name](0.1), np.delete(np.arange(of.size), person)
    found = oracle(x, y, of, chunk)(None, None).clipped_sum(clip)
    wanted = oracle(*rows(), of, chunk)(None, others).clipped_sum(clip)
    torch.testing.assert_close(found, wanted, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("size", [1.0, 1e8, 1e30])
def test_rows_that_cancel_do_not_hide_how_long_a_person_s_vector_is(size: float) -> None:
    """Two huge gradients that differ by a little, in single precision."""
    linear = nn.Linear(3, 1)
    row = torch.tensor([1.0, 1.0, 1.0])
    x = torch.stack([row, row * (1 + 1e-6), row])
    of = Persons(np.arange(3), np.array([2, 1]))

    def loss(output: Tensor, weights: Tensor) -> Tensor:
        return output[:, 0] * weights

    asked = TorchPersonOracle(TorchOracle(linear, loss, x, torch.tensor([size, -size, 0.5]), check=False), of)
    distance = asked(None, None).clipped_sum(l2(1e-3)) - asked(None, np.array([1])).clipped_sum(l2(1e-3))
    assert float(distance.norm()) <= 1e-3 * (1 + 1e-3)


def test_persons_without_rows_and_an_empty_batch_add_nothing() -> None:
    x, y = rows()
    of = persons()
    with_empty = Persons(of.rows, np.insert(COUNTS, 2, 0))
    asked = oracle(x, y, with_empty)
    assert math.isinf(float(asked(None, None).norms()[2]))
    torch.testing.assert_close(asked(None, None).clipped_sum(l2(0.1)), oracle(x, y, of)(None, None).clipped_sum(l2(0.1)))
    for nobody in (np.arange(0), np.array([2])):
        assert not bool(asked(None, nobody).clipped_sum(l2(0.1)).any())


# ---------------------------------------------------------------- law 3


@EVERY_CLIP
@pytest.mark.parametrize("chunk", [None, 1, 4, 7])
def test_pieces_cut_nobody_in_two(chunk: int | None, name: str) -> None:
    wanted, clip = one_by_one(*rows(), persons()), CLIPS[name](0.1)
    found = oracle(*rows(), persons(), chunk)(None, None)
    torch.testing.assert_close(found.norms(clip.order), torch.linalg.vector_norm(wanted, clip.order, dim=1))
    if name != "per layer":
        factors = torch.from_numpy(clip.factors(found.norms(clip.order).numpy(), 1.0))
        torch.testing.assert_close(found.clipped_sum(clip), factors @ wanted)
    some = np.array([5, 0, 3])
    torch.testing.assert_close(oracle(*rows(), persons(), chunk)(None, some).norms(), wanted[some].norm(dim=1))


MANY = (1, 5, 0, 2, 12, 3, 1, 9)


def dense_layers(seed: int) -> nn.Sequential:
    """Some dense layers of random widths, with and without biases, in single precision."""
    torch.manual_seed(seed)
    widths = [30, *torch.randint(12, 40, (1 + seed % 3,)).tolist(), 3]
    layers = [nn.Linear(a, b, bias=(seed + place) % 4 > 0) for place, (a, b) in enumerate(itertools.pairwise(widths))]
    return nn.Sequential(*(part for layer in layers for part in (layer, nn.Tanh())), nn.Identity())


def sums_and_vectors(seed: int, change: Callable[[Tensor, Tensor], None]) -> tuple[TorchPersonOracle, Tensor]:
    """Persons of a network of dense layers; and their vectors, formed one row at a time in double precision."""
    network, (x, y) = dense_layers(seed), (torch.randn(sum(MANY), 30), torch.randint(3, (sum(MANY),)))
    change(x, y)
    of = Persons(np.random.default_rng(seed).permutation(len(x)), np.array(MANY))
    loss = nn.CrossEntropyLoss(reduction="none")
    each = per_example_gradients(copy.deepcopy(network).double(), loss, x.double(), y).dense()
    vectors = torch.stack([each[of.take(np.array([person])).rows].sum(0) / max(1, MANY[person]) for person in range(of.size)])
    return TorchPersonOracle(TorchOracle(network, loss, x, y, check=False), of), vectors


@pytest.mark.parametrize("seed", range(12))
def test_sums_of_rows_are_sums_of_persons_formed_one_row_at_a_time(seed: int) -> None:
    asked, vectors = sums_and_vectors(seed, lambda x, y: None)
    here = np.array(MANY) > 0
    for drawn in (None, np.array([4, 0, 2, 7])):
        found = asked(None, drawn)
        own, some = (vectors, here) if drawn is None else (vectors[drawn], here[drawn])
        norms = own.norm(dim=1).float()
        assert isinstance(found, PersonSums)
        torch.testing.assert_close(found.norms()[some], norms[some], rtol=1e-5, atol=1e-7)
        assert bool(torch.isinf(found.norms()[~some]).all())
        for clip in (l2(0.1), automatic(0.1), l2(100.0), l2(0.0)):
            wanted = torch.from_numpy(clip.factors(found.norms().numpy(), 1.0) * some).double() @ own
            torch.testing.assert_close(found.clipped_sum(clip).double(), wanted, rtol=1e-4, atol=1e-6)
        assert found.count_within(float(norms[some].median())) <= int(some.sum())
        in_parts = PersonGrads(found._parts, found.examples, found._layout)
        for other in (l1(0.1), per_layer({"": 0.1})):
            torch.testing.assert_close(found.clipped_sum(other), in_parts.clipped_sum(other))
        shifted = [
            one.minus(one, 0.3).shifted(torch.ones(vectors.shape[1]), 0.2).clipped_sum(l2(0.1)) for one in (found, in_parts)
        ]
        torch.testing.assert_close(*shifted)


@pytest.mark.parametrize("seed", range(6))
def test_persons_whose_rows_cancel_are_formed_and_move_the_sum_by_at_most_the_bound(seed: int) -> None:
    """Half a person's rows are the others again, with a loss of the other sign but for a little."""
    torch.manual_seed(seed)
    network, x, signs = dense_layers(3 + seed), torch.randn(sum(MANY), 30), torch.ones(sum(MANY))
    of = Persons(np.arange(len(x)), np.array(MANY))
    begin = sum(MANY[:7])
    x[begin : begin + 8 : 2] = x[begin + 1 : begin + 9 : 2]
    x[begin + 8] = 0.0
    signs[begin : begin + 8] = torch.tensor([1e4, -1e4 * (1 + 1e-6)] * 4)
    signs[begin + 8] = 0.0

    def loss(output: Tensor, weights: Tensor) -> Tensor:
        return output.square().sum(1) * weights

    asked = TorchPersonOracle(TorchOracle(network, loss, x, signs, check=False), of)
    found = asked(None, None)
    assert isinstance(found, PersonSums)
    assert found._vanished.tolist() == [7]
    for clip in (l2(1e-3), automatic(1e-3)):
        moved = found.clipped_sum(clip) - asked(None, np.arange(7)).clipped_sum(clip)
        assert float(moved.norm()) <= 1e-3 * (1 + 1e-3)


@pytest.mark.parametrize("value", [math.nan, math.inf, 1e38])
@pytest.mark.parametrize("seed", range(3))
def test_a_row_that_is_not_finite_leaves_sums_of_rows_as_they_are(seed: int, value: float) -> None:
    def change(x: Tensor, y: Tensor) -> None:
        x[int(np.random.default_rng(seed).permutation(len(x))[3])] = value  # of the second person

    asked, _ = sums_and_vectors(seed, change)
    others = np.delete(np.arange(len(MANY)), 1)
    moved = asked(None, None).clipped_sum(l2(0.1)) - asked(None, others).clipped_sum(l2(0.1))
    assert float(moved.norm()) <= (1e-6 if not math.isfinite(value) else 0.1 * (1 + 1e-4))


def test_persons_with_one_row_are_rows() -> None:
    x, y = rows()
    alone = oracle(x, y, Persons(np.arange(ROWS), np.ones(ROWS, dtype=int)))(None, None)
    each = TorchOracle(model(), nn.CrossEntropyLoss(), x, y, check=False)(None, None)
    torch.testing.assert_close(alone.norms(), each.norms(), rtol=0, atol=0)
    torch.testing.assert_close(alone.clipped_sum(l2(0.1)), each.clipped_sum(l2(0.1)))


def test_an_adaptive_clip_counts_persons() -> None:
    wanted = one_by_one(*rows(), persons()).norm(dim=1)
    bound = float(wanted.median()) * (1 + 1e-9)
    asked = oracle(*rows(), persons())
    assert asked(None, None).count_within(bound) == int((wanted <= bound).sum())
    measurement = Measurement(full_batch(), [gradient() @ adaptive(bound)], gaussian(1e-9), unit=each_person())
    found = measurement.measure(asked, PublicState(asked.flat.vector), 0, generator(0)).value
    torch.testing.assert_close(found, asked(None, None).clipped_sum(l2(bound)) / len(COUNTS), rtol=1e-5, atol=1e-8)


# ---------------------------------------------------------------- open rounds


def opened(most: int, of: Persons | None, **given: Any) -> OpenRound:
    measurement = Measurement(given.pop("sampler", full_batch()), [gradient() @ l2(0.1)], gaussian(1e-12), **given)
    return OpenRound(measurement, len(COUNTS), 0, generator(0), torch.zeros(43).double(), most, of)


def answer(round_: OpenRound) -> Tensor:
    x, y = rows()
    for place, part in enumerate(round_.parts):
        index = torch.from_numpy(part)
        round_.add(place, per_example_gradients(model(), nn.CrossEntropyLoss(reduction="none"), x[index], y[index]))
    value: Tensor = round_.finish().value
    return value


@pytest.mark.parametrize("most", [1, 6, 100])
def test_a_round_in_pieces_adds_up_persons_of_which_none_is_cut(most: int) -> None:
    round_ = opened(most, persons(), unit=each_person())
    assert all(len(part) <= max(most, max(COUNTS)) for part in round_.parts)
    wanted = oracle(*rows(), persons())(None, None).clipped_sum(l2(0.1)) / len(COUNTS)
    torch.testing.assert_close(answer(round_), wanted, rtol=1e-7, atol=1e-9)


def test_a_round_in_pieces_has_all_rows_of_who_was_drawn_and_nobody_else_s() -> None:
    of = persons()
    round_ = opened(6, of, sampler=poisson(0.5), unit=each_person())
    assert 0 < len(round_.rows) < len(COUNTS)
    assert np.array_equal(np.concatenate(list(round_.parts)), of.take(round_.rows).rows)
    wanted = oracle(*rows(), of)(None, round_.rows).clipped_sum(l2(0.1)) / 3
    torch.testing.assert_close(answer(round_), wanted, rtol=1e-7, atol=1e-9)


# ---------------------------------------------------------------- violations


def test_vectors_of_rows_where_persons_are_promised_are_refused() -> None:
    with pytest.raises(CompositionError, match="each_person"):
        opened(6, None, unit=each_person())
    with pytest.raises(CompositionError, match="each_row"):
        opened(6, persons())
    with pytest.raises(CompositionError, match="are not the 6"):
        opened(6, Persons(np.arange(3), np.array([2, 1])), unit=each_person())
    x, y = rows()
    grads = per_example_gradients(model(), nn.CrossEntropyLoss(reduction="none"), x, y)
    for changed, counts in ((grads, COUNTS[1:]), (grads.shifted(torch.ones(43)), COUNTS), (grads.scaled(torch.ones(43)), COUNTS)):
        with pytest.raises(CompositionError, match="need a gradient each"):
            changed.of_persons(counts)


def test_clipping_each_row_breaks_law_1(monkeypatch: pytest.MonkeyPatch) -> None:
    def each_row(self: TorchGrads, counts: Any) -> Any:
        return self

    assert isinstance(oracle(*rows(), persons())(None, None), PersonGrads)
    monkeypatch.setattr(TorchGrads, "of_persons", each_row)
    assert max(moved(lambda grads: grads, l2(1e-3))) > 2e-3
