"""Randomness: the system's unless a seed says otherwise, and states that can be kept."""

import subprocess
import sys

import numpy as np
import pytest

from privopt.measure.randomness import generator, key, laplace, restored, state


def test_without_a_seed_no_two_generators_are_alike() -> None:
    firsts = {int(generator().integers(2**62)) for _ in range(200)}
    assert len(firsts) == 200


def test_without_a_seed_no_two_processes_are_alike() -> None:
    """In processes of their own, where no fixture sets the entropy."""
    draw = "from privopt.measure.randomness import generator; print(generator().integers(2**62))"
    drawn = {subprocess.run([sys.executable, "-c", draw], capture_output=True, check=True).stdout for _ in range(2)}
    assert len(drawn) == 2


def test_a_seed_repeats_and_another_does_not() -> None:
    one, same, other = (generator(seed).standard_normal(8) for seed in (1, 1, 2))
    np.testing.assert_array_equal(one, same)
    assert (one != other).all()


def test_a_generator_is_used_as_it_is_and_a_random_state_seeds_one() -> None:
    given = np.random.default_rng(0)
    assert generator(given) is given
    one, same = (generator(np.random.RandomState(3)).standard_normal(4) for _ in range(2))
    np.testing.assert_array_equal(one, same)


def test_the_numpy_seed_that_everybody_can_set_changes_nothing() -> None:
    """`np.random.seed(0)` in a notebook must not make noise predictable."""
    values = []
    for _ in range(2):
        np.random.seed(0)  # noqa: NPY002
        values.append(generator().standard_normal(4))
    assert (values[0] != values[1]).all()


@pytest.mark.parametrize("used", [0, 1, 7])
def test_a_restored_generator_goes_on_where_the_state_was_taken(used: int) -> None:
    rng = generator(4)
    rng.standard_normal(used)
    rng.integers(7, size=used, dtype="uint32")
    again = restored(state(rng))
    for draw in ("standard_normal", "random", "standard_exponential"):
        np.testing.assert_array_equal(getattr(again, draw)(5), getattr(rng, draw)(5))
    np.testing.assert_array_equal(again.choice(50, 9, replace=False), rng.choice(50, 9, replace=False))


def test_a_key_follows_from_the_state_and_leaves_it_as_it_is() -> None:
    rng = generator(3)
    before = state(rng)
    first = key(rng)
    assert key(rng) == first
    assert state(rng) == before
    assert key(restored(before)) == first
    rng.integers(9)
    assert key(rng) != first
    assert len({key(generator()) for _ in range(20)}) == 20
    assert first.bit_length() > 200


@pytest.mark.parametrize("precision", ["float32", "float64"])
def test_laplace_numbers_for_torch_are_those_for_numpy(precision: str) -> None:
    torch = pytest.importorskip("torch")
    like = torch.zeros(3, 5, dtype=getattr(torch, precision))
    drawn = laplace(like, generator(1))
    assert drawn.dtype == like.dtype
    np.testing.assert_allclose(drawn.numpy(), laplace(np.zeros((3, 5)), generator(1)), rtol=1e-6)
