"""Several views of each example: one gradient of their mean, clipped once."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from privopt import Budget, Ledger, fit, make_private
from privopt.errors import InputError
from privopt.measure.clips import l2
from privopt.nets import UnsupportedLayer, Views
from privopt.perexample.networks import TorchOracle
from tests.problems import flat_parameters

IMAGES, LABELS = torch.randn(12, 2, 8, 8, generator=torch.Generator().manual_seed(0)), torch.arange(12) % 3


def convolutional() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(2, 4, 3), nn.GroupNorm(2, 4), nn.Tanh(), nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(16, 3)
    )


def shifted(images: Tensor) -> Tensor:
    """Each view shifted by its place among the views of its example: random numbers would not repeat below."""
    places = (torch.arange(len(images)) % 3).view(-1, 1, 1, 1)
    return torch.where(places == 0, images, torch.where(places == 1, images.roll(1, 2), images.flip(3)))


def test_an_example_has_one_gradient_the_mean_over_its_views() -> None:
    views = Views(convolutional(), shifted, 3)
    views.train()
    grads = TorchOracle(views, views.loss(nn.CrossEntropyLoss()), IMAGES, LABELS)(None, None)
    lengths, total = [], torch.zeros(0)
    for image, label in zip(IMAGES, LABELS, strict=True):
        losses = [F.cross_entropy(views.model(view[None]), label[None]) for view in (image, image.roll(1, 1), image.flip(2))]
        own = torch.autograd.grad(torch.stack(losses).mean(), list(views.parameters()))
        flat = torch.cat([part.flatten() for part in own])
        lengths.append(flat.norm())
        total = flat * min(1.0, 0.5 / float(flat.norm())) + (total if len(total) else 0)
    torch.testing.assert_close(grads.norms(), torch.stack(lengths), rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(grads.clipped_sum(l2(0.5)), total, rtol=1e-4, atol=1e-5)


def test_removing_an_example_with_many_views_moves_the_sum_by_at_most_the_bound() -> None:
    sums = []
    for rows in (slice(0, 12), slice(1, 12)):
        views = Views(convolutional(), lambda images: 1e3 * shifted(images), 9)
        views.train()
        sums.append(
            TorchOracle(views, views.loss(nn.CrossEntropyLoss()), IMAGES[rows], LABELS[rows])(None, None).clipped_sum(l2(0.5))
        )
    moved = float((sums[0] - sums[1]).norm())
    assert 0.49 < moved <= 0.5 * (1 + 1e-5)


def test_views_cost_nothing() -> None:
    settings: dict[str, Any] = {"budget": Budget(3.0, 1e-3), "rounds": 3, "batch_size": 6, "accountant": "rdp", "seed": 0}
    events = []
    for count in (1, 4):
        views = Views(convolutional(), lambda images: images + 0.1 * torch.randn_like(images), count)
        before = flat_parameters(views.model)
        events.append(fit(views, views.loss(nn.CrossEntropyLoss()), (IMAGES, LABELS), **settings).ledger.event)
        assert not torch.equal(before, flat_parameters(views.model))
    assert events[0] == events[1]


def test_views_that_mix_examples_are_refused_before_anything_is_paid() -> None:
    """Mixup makes a view of two examples: one of them would move the gradients of both."""
    views = Views(convolutional(), lambda images: (images + images.flip(0)) / 2, 2)
    ledger = Ledger()
    with pytest.raises(UnsupportedLayer):
        fit(views, views.loss(nn.CrossEntropyLoss()), (IMAGES, LABELS), budget=Budget(3.0, 1e-3), rounds=2, ledger=ledger)
    optimizer = torch.optim.SGD(views.parameters(), lr=0.1)
    loss = views.loss(nn.CrossEntropyLoss())

    def train() -> None:
        private = make_private(
            views, optimizer, (IMAGES, LABELS), budget=Budget(3.0, 1e-3), rounds=2, batch_size=8, ledger=ledger
        )
        for inputs, targets in private.loader:
            private.step(lambda: loss(views(inputs), targets))  # noqa: B023

    with pytest.raises(UnsupportedLayer):
        train()
    assert ledger.entries == ()


def test_a_number_of_views_is_validated() -> None:
    with pytest.raises(InputError, match="at least 1"):
        Views(convolutional(), shifted, 0)
