"""Clipped sums: a clip is a value, and vectors that are not finite are absent whatever it says of them."""

import math
import pickle
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
import pytest

from privopt.measure.clips import Clip, automatic, l1, l2, l2_moved, per_layer
from privopt.perexample.grads import Array, Materialized, PerExampleVectors, Vector
from privopt.perexample.losses import Squared
from tests.problems import linear_oracle

GOOD = np.array([[0.3, -0.4], [1.0, 2.0], [0.0, 0.0]])


@dataclass(frozen=True)
class unbounded:  # noqa: N801
    """A clip that leaves every vector as it is, and believes that each is finite."""

    order: ClassVar[Literal[1, 2]] = 2

    def factors(self, norms: Array, weight: float) -> Array:
        return weight + 0 * np.isnan(norms)


def formed(rows: Vector) -> PerExampleVectors:
    return Materialized(rows)


def linear(rows: Vector) -> PerExampleVectors:
    """Gradients −row."""
    oracle = linear_oracle(rows, np.ones(len(rows)), Squared())
    return oracle(np.zeros(rows.shape[1]), None)


@pytest.mark.parametrize("vectors", [formed, linear])
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_vector_that_is_not_finite_is_absent_whatever_the_clip_says(
    vectors: Callable[[Vector], PerExampleVectors], value: float
) -> None:
    wanted = vectors(GOOD).clipped_sum(unbounded(), 0.5)
    found = vectors(np.vstack([GOOD, [value, 1.0]])).clipped_sum(unbounded(), 0.5)
    np.testing.assert_allclose(found, wanted)


@pytest.mark.parametrize("vectors", [formed, linear])
def test_huge_and_infinite_norms_cause_no_warning(vectors: Callable[[Vector], PerExampleVectors]) -> None:
    """A warning, which is an error here, would tell something about the data."""
    rows = np.vstack([GOOD, [1e200, 0.0], [math.inf, 0.0]])
    for clip in (l2(0.0), l2(1.0), l1(1.0), automatic(1.0), per_layer({"": 1.0})):
        assert np.isfinite(vectors(rows).clipped_sum(clip)).all()


@pytest.mark.parametrize("vectors", [formed, linear])
def test_a_sum_is_added_to_what_is_given(vectors: Callable[[Vector], PerExampleVectors]) -> None:
    clipped = vectors(GOOD).clipped_sum(l2(1.0), 2.0)
    np.testing.assert_array_equal(
        vectors(GOOD).clipped_sum(l2(1.0), 2.0, np.array([10.0, 20.0])), np.array([10.0, 20.0]) + clipped
    )


@pytest.mark.parametrize(
    "clip", [l2(1.0), l1(0.5), automatic(1.0, stability=0.1), per_layer({"a": 1.0, "b": 2.0}), l2_moved(2.0, most=3.0)], ids=str
)
def test_a_clip_is_a_value_that_can_be_sent(clip: Clip) -> None:
    assert pickle.loads(pickle.dumps(clip)) == clip
