"""What the fork server does once, so that all its processes find loaded, read and compiled what is so when it is first used.

A command that trains, evaluates nothing and writes a report; and a network, if torch is there.
"""

import io
from contextlib import redirect_stderr, redirect_stdout, suppress
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory

from privopt.cli.application import app
from tests.problems import patients

with TemporaryDirectory() as name, redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()), suppress(SystemExit):
    asked = [str(patients(Path(name) / "patients.csv", 300)), "--target", "readmitted", "--epsilon", "8", "--rounds", "2"]
    app(["train", *asked, "--out", str(Path(name) / "run")])

if find_spec("torch"):
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
