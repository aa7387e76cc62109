"""A training run in the fork server: what is loaded, or compiled, when it is first used is there in all of its processes."""

import torch
from torch import nn

from privopt import Budget, fit

torch.set_num_threads(1)
fit(
    nn.Linear(2, 2),
    nn.CrossEntropyLoss(),
    (torch.zeros(8, 2), torch.zeros(8, dtype=torch.long)),
    budget=Budget(3.0, 1e-5),
    rounds=2,
    batch_size=4,
    accountant="rdp",
    progress=False,
)
