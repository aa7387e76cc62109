"""`make_private`: private training inside the user's own loop, with the user's own optimizer."""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import nn

from privopt.errors import InputError
from privopt.measure.clips import Clip, as_clip
from privopt.measure.measurement import Measurement
from privopt.measure.mechanisms import gaussian
from privopt.measure.queries import gradient
from privopt.measure.samplers import Sampler, poisson
from privopt.measure.units import Unit, each_person, each_row, rows_of_persons
from privopt.nets.attachment import OWN_CODE, Attachment
from privopt.nets.choices import (
    Independence,
    People,
    check_batch,
    check_clip,
    check_independence,
    check_physical,
    count_passes,
    find_people,
    helping_from_opacus,
    need_batch_size,
    require,
    sampler_of,
)
from privopt.nets.data import as_model
from privopt.nets.loading import Examples
from privopt.nets.private_loop import LoopPlan, Private
from privopt.nets.ranked import Job
from privopt.nets.ranked_loop import RankedPrivate, attach_rank, silence_other_ranks
from privopt.nets.ranks import Shard, count_examples, describe, join
from privopt.privacy.accountants import Accountant
from privopt.privacy.budget import Budget
from privopt.privacy.events import DpEvent, compose
from privopt.privacy.ledger import Ledger
from privopt.progress import preparing
from privopt.training.sampling import rows_need_less_noise
from privopt.training.session import Session, check_budget, check_ledger, settle_budget

MakeMeasurement = Callable[[float], Measurement]  # with this noise multiplier


@helping_from_opacus
def make_private(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    dataset: Any,
    *,
    budget: Budget | None = None,
    noise_multiplier: float | None = None,
    delta: float | None = None,
    batch_size: int | None = None,
    epochs: float | None = None,
    rounds: int | None = None,
    clip_bound: float | Clip = 1.0,
    physical_batch_size: int | None = None,
    accountant: Accountant = "auto",
    ledger: Ledger | None = None,
    independence: Independence = "checked",
    persons: Any = None,
    rows_per_person: int | None = None,
    seed: int | None = None,
) -> Private:
    """A loader of Poisson batches and a step that clips, hides and updates; any optimizer of torch, any learning-rate scheduler.

    `dataset` is a pair of tensors, a map-style dataset, or a DataLoader: its dataset, `batch_size`, `collate_fn` and workers are
    used. With `epochs`, each pass of `private.loader` is one epoch; with `rounds`, one pass has all rounds. `noise_multiplier`
    instead of a budget takes the noise as it is; the statement says what that costs, at `delta` (by default below 1/(10 n)).

    **Guarantee** As `privopt.nets.fit`. Each round is paid for before anything is computed for it, and answers at most once, also
    if the loop fails in it or leaves it: then it is spent without an update. Whatever the loop does with the model is
    post-processing; whatever it does with the batches or the losses is not covered. With `persons` (`privopt.nets.fit`) a batch
    holds all counted examples of each drawn person, and a person's gradients are averaged and clipped as one. Where that needs
    less noise, examples are drawn and clipped one by one instead: `privopt.training.sampling`.

    >>> _ = torch.manual_seed(0)
    >>> x = torch.randn(500, 3)
    >>> y = (x[:, 0] > 0).long()
    >>> model = nn.Linear(3, 2)
    >>> optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    >>> loss = nn.CrossEntropyLoss(reduction="none")
    >>> private = make_private(model, optimizer, (x, y), budget=Budget(3.0, 1e-5), epochs=5, batch_size=100, seed=0)
    >>> for epoch in range(5):
    ...     for inputs, targets in private.loader:
    ...         updated = private.step(lambda: loss(model(inputs), targets))
    >>> bool((model(x).argmax(1) == y).float().mean() > 0.8), private.epsilon() <= 3.0
    (True, True)
    """
    check_ledger(ledger)
    if budget is not None:
        check_budget(budget, ledger)
    check_clip(clip_bound)
    check_physical(physical_batch_size)
    check_independence(independence)
    require(independence, [OWN_CODE])
    ranks, sharded = join(), isinstance(dataset, Shard)
    examples = Examples.given(dataset.data if isinstance(dataset, Shard) else dataset)
    size = count_examples(ranks, examples, sharded)
    if people := find_people(persons, rows_per_person, size, budget, torchrun=ranks is not None):
        size = people.persons.size
        _check_order(examples)
    wanted = need_batch_size(batch_size, examples.batch_size)
    check_batch(size, wanted)
    batch = min(wanted, size)
    passes = count_passes(size, batch, epochs, rounds)
    unit: Unit = each_row() if people is None else each_person()
    measurement: MakeMeasurement = partial(_measurement, sampler_of(size, batch), as_clip(clip_bound), unit)
    drawn = size
    with preparing():
        if people is not None and budget is not None and (ledger is None or ledger.budget is None):
            measurement, drawn = _choose_drawing(measurement, people, batch, as_clip(clip_bound), passes[-1], budget, accountant)
        plan = partial(_plan, measurement, passes[-1])
        budget = settle_budget(budget, noise_multiplier, delta, size, plan, accountant=accountant, unit=unit.name)
        check_budget(budget, ledger)
    if budget.delta == 0:
        raise InputError("delta is 0, but Gaussian noise needs delta > 0: well below 1/n, such as 1e-6.")
    most = -(-batch // examples.workers) if examples.workers else None  # examples of a piece, so that each worker has one
    attach = partial(Attachment, as_model(model), optimizer, examples, physical_batch_size, most=most)
    begin = partial(Session, budget, size, seed=seed, accountant=accountant, noise_multiplier=noise_multiplier)
    asked = LoopPlan(measurement, passes, people, drawn)
    if ranks is None:
        return Private(attach(), begin(ledger=ledger), asked)
    settings = (budget, batch, passes, clip_bound, physical_batch_size, accountant, noise_multiplier)
    parts = _compared_parts(model, optimizer, settings, seed)
    job = Job.begin(ranks, model, examples.data, size, sharded=sharded, full=False, parts=parts)
    return _make_ranked(attach, begin, asked, job, ledger)


def _make_ranked(
    attach: Callable[..., Attachment], begin: Callable[..., Session], plan: LoopPlan, job: Job, ledger: Ledger | None
) -> RankedPrivate:
    """The private side of a loop on one rank of a job; rank 0 holds the ledger."""
    attached = attach_rank(attach, job)
    with silence_other_ranks(job), job.ranks.leading():
        session = begin(ledger=ledger if job.ranks.leads else None)
    return RankedPrivate(attached, session, plan, job)


def _choose_drawing(
    by_person: MakeMeasurement,
    people: People,
    batch: int,
    clip: Clip,
    rounds: int,
    budget: Budget,
    accountant: Accountant,
) -> tuple[MakeMeasurement, int]:
    """Draw persons, or rows of persons where that needs less noise; and how many of them there are."""
    size, rows = people.persons.size, len(people.persons.rows)
    if batch >= size:
        return by_person, size
    by_row = partial(_measurement, poisson(batch / size), clip, rows_of_persons(people.most))
    plans = partial(_plan, by_person, rounds), partial(_plan, by_row, rounds)
    return (by_row, rows) if rows_need_less_noise(*plans, size, rows, people.most, budget, accountant) else (by_person, size)


def _check_order(examples: Examples) -> None:
    if examples.own_collation:
        raise InputError(
            "persons=… with a collate_fn: batches that it puts together are sorted by length, so rows would count for other "
            "persons. Pad the examples in the dataset."
        )


def _compared_parts(model: nn.Module, optimizer: torch.optim.Optimizer, settings: Any, seed: int | None) -> dict[str, str]:
    """What the ranks of a job compare."""
    groups = [{name: value for name, value in group.items() if name != "params"} for group in optimizer.param_groups]
    return {
        "model": describe(model, values=False),
        "optimizer": describe((type(optimizer).__qualname__, groups)),
        "settings": describe(settings),
        "seed": describe(seed),
    }


def _plan(measurement: MakeMeasurement, rounds: int, noise_multiplier: float) -> DpEvent:
    """What so many rounds with this noise cost."""
    planned = measurement(noise_multiplier)
    return compose(planned.event(round_) for round_ in range(rounds))


def _measurement(sampler: Sampler, clip: Clip, unit: Unit, noise_multiplier: float) -> Measurement:
    return Measurement(sampler, [gradient() @ clip], gaussian(noise_multiplier), unit=unit)
