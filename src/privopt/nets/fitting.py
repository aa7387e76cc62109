"""`fit`: a private model in one call."""

from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from os import PathLike
from typing import Any, Self

import torch
from torch import Tensor, nn

from privopt.checkpoint import Checkpoint
from privopt.errors import InputError, warn
from privopt.measure.clips import Clip
from privopt.measure.units import each_person, rows_drawn
from privopt.methods import Method, check_delta, find_method
from privopt.methods.problem import NETWORK_BATCH, Choices, Problem
from privopt.needs import Offer
from privopt.nets.choices import (
    Independence,
    People,
    assumptions,
    check_batch,
    check_clip,
    check_independence,
    check_physical,
    check_rate,
    count_rounds,
    describe_examples,
    find_people,
    helping_from_opacus,
    need_batch_size,
    require,
)
from privopt.nets.data import as_model, content, describe_public, public_loss
from privopt.nets.facts import facts_of_loss
from privopt.nets.identity import identify, probe_model
from privopt.nets.loading import Examples, split_pair
from privopt.nets.network_problem import make_oracle, network_problem, side_facts
from privopt.nets.network_run import run_network
from privopt.nets.ranked import Job, serve
from privopt.nets.ranks import Ranks, Shard, count_examples, describe, join
from privopt.nets.target_range import TAKEN, TargetRange, is_regression, warn_of_unit_targets
from privopt.perexample.networks import TorchOracle, TorchPersonOracle, TorchRowsOfPersons
from privopt.postprocess.release import ReleaseRule
from privopt.postprocess.updates import Schedule
from privopt.privacy.accountants import Accountant, choose
from privopt.privacy.budget import Budget, UnitName
from privopt.privacy.calibration import calibrate
from privopt.privacy.events import DpEvent, GaussianDpEvent
from privopt.privacy.ledger import Ledger
from privopt.privacy.statement import Privacy
from privopt.progress import Round, watching
from privopt.training.sampling import choose_sampling
from privopt.training.session import Released, Session, check_budget, check_ledger, settle_budget, single_release
from privopt.training.settings import check_model


@dataclass(frozen=True)
class Fitted:
    """A privately trained model: the user's own object (with `target_range`, inside of one that maps answers), and its claim."""

    model: nn.Module
    privacy: Privacy
    rounds: int
    stopped_early: bool

    @property
    def ledger(self) -> Ledger:
        """What was spent."""
        return self.privacy.ledger


@helping_from_opacus
def fit(
    model: nn.Module,
    loss: Callable[..., Tensor],
    dataset: Any,
    *,
    budget: Budget | None = None,
    noise_multiplier: float | None = None,
    delta: float | None = None,
    batch_size: int | None = None,
    epochs: float | None = None,
    rounds: int | None = None,
    method: str | Method = "dp-sgd",
    clip_bound: float | Clip | None = None,
    learning_rate: float | Schedule | None = None,
    release: ReleaseRule | None = None,
    options: dict[str, Any] | None = None,
    physical_batch_size: int | None = None,
    accountant: Accountant = "auto",
    ledger: Ledger | None = None,
    checkpoint: str | PathLike[str] | None = None,
    progress: bool | Callable[[int], None] = True,
    observer: Callable[[Round], None] | None = None,
    public: Any = None,
    independence: Independence = "checked",
    persons: Any = None,
    rows_per_person: int | None = None,
    target_range: tuple[float, float] | None = None,
    seed: int | None = None,
) -> Fitted:
    """Train a model privately; the model itself is changed, and is an ordinary one afterwards.

    `loss(output, targets)` gives one value for each example, or is a loss module of torch, which is asked for that. `dataset` is
    a pair of tensors, a map-style dataset of (inputs, targets) or of dicts with an entry "labels", or a DataLoader of one, whose
    `batch_size` and `collate_fn` are used. `noise_multiplier` instead of a budget takes the noise as it is, for as many rounds as
    are said; the statement says what that costs at `delta` (by default below 1/(10 n)). `options` go to the method's recipe
    (momentum_decay, ceiling, ...). `checkpoint` names a folder from which a killed run goes on, bit for bit; it is as sensitive
    as the data. `progress`: a bar, if standard error is a terminal; or False; or a function f(rounds_done). `public` are data
    like `dataset` that are not private: methods that use public data use them, and the bar shows the loss on a pair of tensors.
    `independence="proved"` refuses a model whose examples could only be checked not to mix; the statement says which it is.
    `persons` are ids that say whose example each is, for a budget with `unit="person"`: then persons are drawn, and the mean of
    the gradients of a person's examples (at most `rows_per_person`, 32 by default, drawn at random) is clipped as one; or, where
    that needs less noise, examples are drawn and clipped one by one (`privopt.training.sampling`). `target_range` is where the
    targets of a regression lie, which is public: they are clipped to it and mapped to [−1, 1], for which the defaults are made,
    and `result.model` maps answers back. In a torchrun job the processes train together: `docs/distributed.md`.

    **Guarantee** The released parameters are (ε, δ)-DP. Query: the sum of per-example gradients over a Poisson batch, each
    clipped to l2 norm `clip_bound` (a number, or a clip: `automatic`, `per_layer`); Gaussian noise calibrated to the budget. Loss
    values are never shown.

    >>> import torch
    >>> _ = torch.manual_seed(0)
    >>> x = torch.randn(500, 3)
    >>> y = (x[:, 0] > 0).long()
    >>> result = fit(nn.Linear(3, 2), nn.CrossEntropyLoss(), (x, y), budget=Budget(3.0, 1e-5), epochs=5, batch_size=100,
    ...              learning_rate=0.1, seed=0)
    >>> bool((result.model(x).argmax(1) == y).float().mean() > 0.8), round(result.privacy.statement.epsilon, 1)
    (True, 3.0)
    """
    check_ledger(ledger)
    price = Price(budget, noise_multiplier, delta, accountant)
    price.check(ledger)
    check_independence(independence)
    check_clip(clip_bound)
    check_physical(physical_batch_size)
    targets = TargetRange.given(target_range, loss)
    loss = loss if targets is None else targets.loss(loss)
    ranks = join()
    data = TrainingData.given(dataset, persons, rows_per_person, budget, ranks)
    batch = data.batch_size(batch_size)
    chosen = find_method(method)
    check_model(chosen, "network")
    price.check_delta(chosen)
    counted = count_rounds(data.size, min(batch or NETWORK_BATCH, data.size), epochs, rounds)
    price.check_rounds(counted)
    check_rate(learning_rate, counted or 1)
    own = {**(options or {}), **({} if release is None else {"release": release})}
    regularizer = own.pop("regularizer", None)
    whole = batch is not None and batch >= data.size and "batch_size" in chosen.refuses
    choices = Choices(clip_bound, counted, None if whole else batch, learning_rate, own)
    known = None if public is None else read_examples(public)
    asked = Asked(as_model(model), loss, data, known, chosen, choices, regularizer, price, physical_batch_size, seed, targets)
    code = {} if checkpoint is None else asked.identify_code()
    asked.check_method(release)
    job = None if ranks is None else asked.join(ranks, full=checkpoint is not None)
    if job is not None and not job.ranks.leads:
        return _follow(job, asked, ledger)
    with nullcontext() if job is None else job.ranks.leading():
        planned = _plan_training(asked, job, ledger, independence)
        store = None if checkpoint is None else planned.open_checkpoint(checkpoint, code)
        with watching(progress, observer, _public_metric(model, loss, public)) as observers:
            return planned.train(ledger, store, observers)


@dataclass(frozen=True)
class Price:
    """What training may cost: a budget, or the noise as it is, which costs what it costs at this δ."""

    budget: Budget | None
    noise_multiplier: float | None
    delta: float | None
    accountant: Accountant

    def settle(self, size: int, plan: Callable[[float], DpEvent], unit: UnitName = "example") -> Budget:
        """The budget; of a noise multiplier, what the plan costs with it."""
        wanted = (self.budget, self.noise_multiplier, self.delta)
        return settle_budget(*wanted, size, plan, accountant=self.accountant, unit=unit)

    def check(self, ledger: Ledger | None) -> None:
        """Validate what needs no plan."""
        if self.noise_multiplier is None or self.budget is not None:
            check_budget(self.settle(1, GaussianDpEvent), ledger)

    def check_delta(self, method: Method) -> None:
        """Refuse a δ that is not for this method."""
        if self.budget is not None:
            check_delta(method, self.budget.delta)

    def check_rounds(self, rounds: int | None) -> None:
        """Validate that a noise multiplier goes with a number of rounds."""
        if self.noise_multiplier is not None and rounds is None:
            raise InputError("noise_multiplier costs what it costs in each round: say how many there are, epochs=… or rounds=….")


@dataclass(frozen=True)
class TrainingData:
    """The private examples of all ranks, whose they are, and whether this process has a shard of them."""

    examples: Examples
    size: int  # units: persons if there are any, else examples
    people: People | None
    sharded: bool

    @classmethod
    def given(cls, dataset: Any, persons: Any, rows_per_person: Any, budget: Budget | None, ranks: Ranks | None) -> Self:
        """Validate what a user gave as data."""
        sharded = isinstance(dataset, Shard)
        examples = read_examples(dataset.data if sharded else dataset)
        size = count_examples(ranks, examples, sharded)
        people = find_people(persons, rows_per_person, size, budget, torchrun=ranks is not None)
        return cls(examples, size if people is None else people.persons.size, people, sharded)

    def batch_size(self, said: int | None) -> int | None:
        """The batch size that was said, or that of a DataLoader, validated."""
        batch_size = said if self.examples.batch_size is None else need_batch_size(said, self.examples.batch_size)
        check_batch(self.size, batch_size)
        return batch_size


@dataclass(frozen=True)
class Asked:
    """What `fit` was asked for, validated."""

    model: nn.Module
    loss: Callable[..., Tensor]
    data: TrainingData
    known: Examples | None  # public examples
    method: Method
    chosen: Choices
    regularizer: Any
    price: Price
    physical_batch_size: int | None
    seed: int | None
    targets: TargetRange | None  # to which the loss maps them

    @property
    def released(self) -> nn.Module:
        """The model that answers in the unit of the targets."""
        return self.model if self.targets is None else self.targets.model(self.model)

    @property
    def unit_targets(self) -> bool:
        """Whether the default rule has to take the targets of a regression to lie in [−1, 1]."""
        by_rule = self.chosen.clip_bound is None or self.chosen.learning_rate is None
        return by_rule and self.targets is None and is_regression(self.loss)

    @property
    def settings(self) -> tuple[Any, ...]:
        """What decides the run, beside data, code and method, in a form that can be compared."""
        price, rates = self.price, _rates(self.chosen.learning_rate, self.chosen.rounds)
        beside = (self.regularizer, rates, self.data.size, price.budget, price.noise_multiplier, price.delta)
        return (self.chosen, *beside, self.physical_batch_size, price.accountant)

    def identify_code(self) -> dict[str, str]:
        """Fingerprints of code, taken before anything runs the model, which may count its calls or keep what it computed."""
        found = {"model": identify(model=self.model, torch=torch), "loss": identify(loss=self.loss)}
        found["loader"] = identify(**self.data.examples.code)
        return found | ({} if self.known is None else {"public loader": identify(**self.known.code)})

    def check_method(self, release: ReleaseRule | None) -> None:
        """Validate the choices by what the method has."""
        asked = {name: getattr(self.chosen, name) for name in ("clip_bound", "batch_size", "learning_rate", "options")}
        public = self.known is not None and self.method.uses_public
        self.method.check(asked | {"release": release}, facts_of_loss(self.loss, 1), public=public)

    def join(self, ranks: Ranks, *, full: bool) -> Job:
        """Agree with the other ranks on what is asked for."""
        parts = {
            "model": describe(self.model, values=False),
            "loss": describe(self.loss),
            "settings": describe((self.method, *self.settings)),
            "seed": describe(self.seed),
        }
        data = self.data
        return Job.begin(ranks, self.model, data.examples.data, data.size, sharded=data.sharded, full=full, parts=parts)

    def make_problem(self, oracle: TorchOracle, inputs: Any) -> Problem:
        """What is publicly known of the training, but for the budget."""
        problem = replace(network_problem(oracle, self.data.size, self.loss, inputs, self.chosen), regularizer=self.regularizer)
        if self.data.people is not None:
            problem = replace(problem, unit=each_person())
        if self.method.uses_public or not self.method.private:
            problem = replace(problem, side=side_facts(oracle, self.chosen, self.known, inputs, problem.row_norm))
        return problem


def _plan_training(asked: Asked, job: Job | None, ledger: Ledger | None, independence: Independence) -> "_Planned":
    """Check model and data, and calibrate; nothing is paid."""
    price, chosen = asked.price, asked.method
    oracle = make_oracle(asked.model, asked.loss, asked.data.examples, asked.physical_batch_size)  # what is wrong is found here
    require(independence, oracle.doubts)
    first = split_pair(asked.data.examples.first)
    problem = asked.make_problem(oracle, first[0])
    budget = price.budget
    if budget is None:
        budget = price.settle(asked.data.size, partial(_cost, chosen, problem), problem.unit.name)
        check_budget(budget, ledger)
        check_delta(chosen, budget.delta)
    noise = calibrate(single_release(budget), budget, accountant=price.accountant)
    problem = replace(problem, single_release_noise=noise, pure=budget.delta == 0)
    if asked.data.people is not None and price.budget is not None and (ledger is None or ledger.budget is None):
        people = asked.data.people
        problem = choose_sampling(chosen, problem, len(people.persons.rows), people.most, budget, price.accountant)
    _check_recipe(chosen, problem, oracle, budget, price.accountant)
    if asked.unit_targets:
        warn_of_unit_targets()
    return _Planned(asked, job, oracle, first, problem, budget)


@dataclass(frozen=True)
class _Planned:
    """A training that is checked and calibrated."""

    asked: Asked
    job: Job | None
    oracle: TorchOracle
    first: Any  # a batch of one example
    problem: Problem
    budget: Budget

    def open_checkpoint(self, folder: str | PathLike[str], code: Mapping[str, str]) -> Checkpoint:
        """A checkpoint of this run and no other: of the same data, code, method, settings and answers to probes."""
        if not isinstance(folder, str | PathLike) or not str(folder):
            raise InputError(f"checkpoint is {folder!r}, but it names a folder, or is None.")
        asked, known, people = self.asked, self.asked.known, self.asked.data.people
        read = {} if known is None else {"public data": content(known.data)}
        read |= {"data": content(asked.data.examples.data)} if self.job is None else self.job.fingerprint()
        read |= {} if people is None else {"persons": people.fingerprint()}
        settings = identify(method=asked.method, plan=(*asked.settings, asked.seed))
        return Checkpoint(folder, {**read, **code, "settings": settings}, probe_model(self.oracle, self.first))

    def train(self, ledger: Ledger | None, store: Checkpoint | None, observer: Any) -> Fitted:
        """Pay, train and state."""
        asked, oracle, job = self.asked, self.oracle, self.job
        session = Session(
            self.budget,
            asked.data.size,
            ledger=ledger,
            seed=asked.seed,
            accountant=asked.price.accountant,
            checkpoint=store,
            observer=observer,
            noise_multiplier=asked.price.noise_multiplier,
        )
        questioned: Any = oracle if job is None else job.lead(oracle)  # whose vectors are only ever summed
        if asked.data.people is not None:
            drawn, most = asked.data.people.draw(session.rng), rows_drawn(self.problem.unit)
            questioned = TorchPersonOracle(oracle, drawn) if most is None else TorchRowsOfPersons(oracle, drawn, most)
        released = session.train(asked.method, self.problem, questioned, None, run=run_network, keep_result=True)
        if session.repeated:
            oracle.flat.assign(torch.from_numpy(released.parameters).to(oracle.layout.device))
            oracle.flat.release()
        claim = self._claim(session, released)
        fitted = Fitted(asked.released, claim, released.rounds, released.stopped_early)
        if job is not None:
            job.finish(oracle, (fitted.privacy, fitted.rounds, fitted.stopped_early))
        return fitted

    def _claim(self, session: Session, released: Released) -> Privacy:
        known, people, ranged, job = self.asked.known, self.asked.data.people, self.asked.targets, self.job
        statement = session.state(
            "the parameters of a network",
            assumed_public=[
                describe_examples(session.size, people),
                "the model, its start values and the settings",
                *([TAKEN] if self.asked.unit_targets else []),
                *([] if ranged is None else [f"the range of the targets, {ranged.low:g} to {ranged.high:g}"]),
            ],
            public_data=[] if known is None else [describe_public(known.data)],
            assumed=[*assumptions(self.oracle.doubts), *([] if job is None else job.assumptions)],
            settings={
                "method": self.asked.method.name,
                "rounds": released.rounds,
                **released.settings,
                **({} if people is None else {"rows of a person, at most": people.most}),
                **({} if job is None else job.settings),
            },
        )
        return Privacy(statement, session.ledger)


def _follow(job: Job, asked: Asked, ledger: Ledger | None) -> Fitted:
    """Answer for this rank's part until rank 0 has trained; what it released, and what it claims."""
    chunk, copies, way = job.follow()
    oracle = make_oracle(asked.model, asked.loss, asked.data.examples, chunk, check=False)  # which rank 0 has done
    oracle.copies, oracle.way = copies, way
    privacy, rounds, early = serve(oracle, job.ranks, job.split)
    if ledger is not None:
        ledger.mirror(privacy.ledger)
        privacy = replace(privacy, ledger=ledger)
    return Fitted(asked.released, privacy, rounds, early)


def read_examples(data: Any) -> Examples:
    """Validate data of which the loss is given the targets."""
    examples = Examples.given(data)
    if examples.tensors is None and len(examples):
        split_pair(examples.first)
    elif examples.tensors is not None:
        split_pair(examples.tensors)
        _check_finite(*examples.tensors)
    if examples.workers:
        warn("num_workers is for loops of your own (make_private): fit reads examples in its own process.")
    return examples


def _check_finite(inputs: Tensor, targets: Tensor) -> None:
    """Refuse missing and infinite numbers, as estimators do: their examples would be left out without a word.

    That there are any is what the error reveals, which a statement lists as not covered.
    """
    for name, values in (("inputs", inputs), ("targets", targets)):
        numbers = (values.is_floating_point() or values.is_complex()) and not values.is_meta
        if numbers and not bool(values.isfinite().all()):
            raise InputError(
                f"the {name} hold missing or infinite numbers, and an example with one has no gradient. Fill them in with a "
                "public number, mark missing ones in a column of their own, or leave such examples out."
            )


def _cost(method: Method, problem: Problem, noise_multiplier: float) -> DpEvent:
    """What the method costs with this noise, in as many rounds as were said."""
    return method.build(problem, noise_multiplier).planned_event()


def _check_recipe(method: Method, problem: Problem, oracle: TorchOracle, budget: Budget, accountant: Accountant) -> None:
    """Refuse a recipe that does not fit the model, or that no accountant can price; nothing is paid."""
    planned = method.build(problem, 1.0)
    planned.check(
        replace(Offer.of(oracle), size=problem.size, unit=problem.unit.name, most_rows=rows_drawn(problem.unit)),
        oracle.layout.flat(),
    )
    if method.private:
        choose(planned.planned_event(), budget.neighbours, accountant)


def _public_metric(model: nn.Module, loss: Callable[..., Tensor], public: Any) -> Callable[[], float] | None:
    """The loss on public tensors. It is computed once now: what does not fit is found before anything is paid."""
    if not isinstance(public, tuple | list):
        return None
    metric = partial(public_loss, model, loss, *public)
    metric()
    return metric


def _rates(learning_rate: float | Schedule | None, rounds: int | None) -> Any:
    """A learning rate in a form that can be compared."""
    if not callable(learning_rate):
        return learning_rate
    return learning_rate if rounds is None else [learning_rate(round_) for round_ in range(rounds)]
