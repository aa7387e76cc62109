"""Mechanisms answer in the kind of array that they are asked in."""

import numpy as np
import pytest

from privopt.measure.randomness import generator
from tests.laws.table import MECHANISMS

torch = pytest.importorskip("torch")


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", MECHANISMS)
def test_tensors_get_noise_of_their_own_kind(name: str, dtype: str) -> None:
    total = torch.zeros(4000, dtype=getattr(torch, dtype))
    answer = MECHANISMS[name](2.0).begin(total, 0.5, generator(1))(lambda out: total if out is None else out.add_(total))
    assert (answer.dtype, answer.shape) == (total.dtype, total.shape)
    wanted = MECHANISMS[name](2.0).begin(np.zeros(4000), 0.5, generator(1))(lambda out: np.zeros(4000))
    assert float(answer.std()) == pytest.approx(wanted.std(), rel=0.1)
    if name != "gaussian":  # torch draws those numbers itself
        np.testing.assert_allclose(answer.numpy(), wanted, rtol=1e-6)
