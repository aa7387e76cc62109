"""Several views of each example, averaged before the clip: augmentation multiplicity.

De, Berrada, Hayes, Smith, Balle: Unlocking High-Accuracy Differentially Private Image Classification through Scale.

**Query** the gradient of one loss for each example, the mean of its losses on K random views of it (flips, shifts).
**Sensitivity** that of one clipped gradient, C, for any K: the views of an example are averaged into its own loss, so it still
has one gradient, and that is clipped once; no view of another example enters it. **Unit, sampling, event** are unchanged, so K
views cost K times the time and no privacy. The mean has less variance than the gradient of one view, and more of it survives the
clip.
"""

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

from privopt.errors import InputError
from privopt.perexample.networks.loss_modules import per_example


class Views(nn.Module):
    """A model that is trained on `count` random views of each example; afterwards, in evaluation, it is `model`.

    `augment` maps a batch of inputs to views of them, one for each, drawing from torch's global generator. Train it with
    `views.loss(loss)`:

    >>> import torch
    >>> import privopt
    >>> _ = torch.manual_seed(0)
    >>> x = torch.randn(200, 3)
    >>> y = (x[:, 0] > 0).long()
    >>> views = Views(nn.Linear(3, 2), lambda inputs: inputs + 0.1 * torch.randn_like(inputs), count=4)
    >>> _ = privopt.fit(views, views.loss(nn.CrossEntropyLoss()), (x, y), budget=privopt.Budget(8.0, 1e-4), rounds=30, seed=0)
    >>> bool((views.model(x).argmax(1) == y).float().mean() > 0.8)
    True
    """

    def __init__(self, model: nn.Module, augment: Callable[[Tensor], Tensor], count: int) -> None:
        super().__init__()
        if not isinstance(count, int) or count < 1:
            raise InputError(f"count is {count!r}, but it is a whole number of views, at least 1.")
        self.model, self.augment, self.count = model, augment, count

    def forward(self, inputs: Tensor) -> Any:
        """In training (examples, views, …): the outputs on every view."""
        if not self.training:
            return self.model(inputs)
        output: Tensor = self.model(self.augment(inputs.repeat_interleave(self.count, 0)))
        return output.view(len(inputs), self.count, *output.shape[1:])

    def loss(self, loss: Callable[..., Tensor]) -> Callable[[Tensor, Tensor], Tensor]:
        """The mean loss of an example over its views."""
        each = per_example(loss)

        def averaged(output: Tensor, targets: Tensor) -> Tensor:
            if not self.training:
                return each(output, targets)
            values = each(output.flatten(0, 1), targets.repeat_interleave(self.count, 0))
            return values.view(len(targets), self.count).mean(1)

        averaged.__wrapped__ = loss  # type: ignore[attr-defined]  # what kind of loss it is, for the default rule
        return averaged
