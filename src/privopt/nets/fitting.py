"""`fit`: a private model in one call; and the run of a recipe on a network, with dropout that a replay repeats."""

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from os import PathLike
from typing import Any

import torch
from torch import Tensor, nn

from privopt.checkpoint import Checkpoint
from privopt.errors import InputError, warn
from privopt.loop import Result, check_finite, run
from privopt.measure.clips import Clip
from privopt.measure.randomness import Rng
from privopt.measure.units import each_person
from privopt.methods import Method, check_delta, find_method
from privopt.methods.problem import NETWORK_BATCH, Choices, Problem, SideFacts
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
from privopt.nets.data import PublicExamples, as_model, content, describe_public, physical_batch_size, public_loss
from privopt.nets.facts import count_inputs, facts_of_loss, find_stable_move, gradient_facts, probe_gradients, typical_norm
from privopt.nets.identity import identify, probe_model
from privopt.nets.loading import OWN_COLLATION, Examples, split_pair
from privopt.nets.ranked import Job, serve
from privopt.nets.ranks import Shard, count_examples, describe, join
from privopt.perexample.networks import TorchOracle, TorchPersonOracle, UnsupportedLayer
from privopt.perexample.networks.examples import call_model, compute_losses, move_to_device
from privopt.perexample.networks.model_state import evaluation_mode, training_mode
from privopt.perexample.networks.rng import Dropout, global_generators, without_randomness
from privopt.perexample.networks.torch_oracle import silent
from privopt.postprocess.release import ReleaseRule
from privopt.postprocess.side_information import least_seen, seen_sizes
from privopt.postprocess.updates import Schedule
from privopt.privacy.accountants import Accountant, choose
from privopt.privacy.budget import Budget
from privopt.privacy.calibration import calibrate
from privopt.privacy.events import DpEvent, GaussianDpEvent
from privopt.privacy.ledger import Ledger, Run
from privopt.privacy.statement import Privacy
from privopt.progress import Round, watching
from privopt.recipe import Recipe
from privopt.training.session import Released, Session, check_budget, check_ledger, settle_budget, single_release
from privopt.training.settings import check_model

# ---------------------------------------------------------------- the run


def run_network(
    recipe: Recipe,
    oracle: TorchOracle,
    start: None = None,
    *,
    spending: Run,
    rng: Rng,
    checkpoint: Checkpoint | None = None,
    progress: Callable[[int], None] | None = None,
) -> Result:
    """Run a recipe from where the oracle's model is. The model then has what was released, or its own parameters if that fails.

    The global generators of torch, NumPy and Python go on where they were.
    """
    repeatable = _Repeatable(oracle, Dropout.drawn(rng, replayed=checkpoint is not None))
    if checkpoint is not None and (saved := checkpoint.load()) is not None:
        repeatable.round = saved.round_

    def advance(done: int) -> None:
        repeatable.round = done
        if progress is not None:
            with torch.enable_grad():  # as in the user's own code
                progress(done)

    with training_mode(oracle.model), global_generators(oracle.layout.device), torch.no_grad():
        begun = oracle.flat.vector  # which a run leaves as it is
        try:
            result = run(recipe, repeatable, begun, spending=spending, rng=rng, checkpoint=checkpoint, progress=advance)
            check_finite(result.parameters)
            oracle.flat.assign(result.parameters)
        except BaseException:
            oracle.flat.assign(begun)  # public values, with which the same run can be asked for again
            raise
        finally:
            oracle.flat.release()
    return result


class _Repeatable:
    """An oracle with dropout that a replay repeats: each round has random numbers of its own, the same at every point."""

    def __init__(self, oracle: TorchOracle, dropout: Dropout) -> None:
        self._oracle, self._dropout = oracle, dropout
        self.round, self.size, self.dimension, self.layers = 0, oracle.size, oracle.dimension, oracle.layers
        self.counts, self.unit = getattr(oracle, "counts", True), getattr(oracle, "unit", "example")

    def __call__(self, parameters: Any, rows: Any) -> Any:
        self._dropout.begin(self.round)
        return self._oracle(parameters, rows)

    def losses(self, parameters: Any, rows: Any) -> Any:
        self._dropout.begin(self.round)
        return self._oracle.losses(parameters, rows)


# ---------------------------------------------------------------- `fit`


@dataclass(frozen=True)
class Fitted:
    """A privately trained model: the user's own object, and what may be claimed about it."""

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
    method: str | Method = "dp-adam",
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
    the gradients of a person's examples (at most `rows_per_person`, 32 by default, drawn at random) is clipped as one. In a
    torchrun job the processes train together: `docs/distributed.md`.

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
    if noise_multiplier is None or budget is not None:
        budget = settle_budget(budget, noise_multiplier, delta, 1, GaussianDpEvent, accountant=accountant)
        check_budget(budget, ledger)
    check_independence(independence)
    check_clip(clip_bound)
    check_physical(physical_batch_size)
    ranks, sharded = join(), isinstance(dataset, Shard)
    examples = _examples(dataset.data if isinstance(dataset, Shard) else dataset)
    size = count_examples(ranks, examples, sharded)
    if people := find_people(persons, rows_per_person, size, budget, torchrun=ranks is not None):
        size = people.persons.size
    if examples.batch_size is not None:
        batch_size = need_batch_size(batch_size, examples.batch_size)
    check_batch(size, batch_size)
    chosen = find_method(method)
    check_model(chosen, "network")
    if budget is not None:
        check_delta(chosen, budget.delta)
    counted = count_rounds(size, min(batch_size or NETWORK_BATCH, size), epochs, rounds)
    if noise_multiplier is not None and counted is None:
        raise InputError("noise_multiplier costs what it costs in each round: say how many there are, epochs=… or rounds=….")
    check_rate(learning_rate, counted or 1)
    batch = None if batch_size is not None and batch_size >= size and "batch_size" in chosen.refuses else batch_size
    own = {**(options or {}), **({} if release is None else {"release": release})}
    regularizer = own.pop("regularizer", None)
    choices = Choices(clip_bound, counted, batch, learning_rate, own)
    known = None if public is None else _examples(public)
    model = as_model(model)
    # before anything runs the model, which may count its calls or keep what it computed
    code = {} if checkpoint is None else {"model": identify(model=model, torch=torch), "loss": identify(loss=loss)}
    if checkpoint is not None:
        code |= {"loader": identify(**examples.code)} | ({} if known is None else {"public loader": identify(**known.code)})
    asked = {name: getattr(choices, name) for name in ("clip_bound", "batch_size", "learning_rate", "options")}
    chosen.check(asked | {"release": release}, facts_of_loss(loss, 1), public=known is not None and chosen.uses_public)
    beside = (regularizer, _rates(learning_rate, counted), size, budget, noise_multiplier, delta, physical_batch_size, accountant)
    job = None
    if ranks is not None:
        parts = {
            "model": describe(model, values=False),
            "loss": describe(loss),
            "settings": describe((chosen, choices, beside)),
            "seed": describe(seed),
        }
        job = Job.begin(ranks, model, examples.data, size, sharded=sharded, full=checkpoint is not None, parts=parts)
        if not job.ranks.leads:
            return _follow(job, model, loss, examples, ledger)
    with nullcontext() if job is None else job.ranks.leading():
        oracle = _oracle(model, loss, examples, physical_batch_size)  # what is wrong with them is found here
        require(independence, oracle.doubts)
        first = split_pair(examples.first)
        problem = replace(_problem(oracle, size, loss, first[0], choices), regularizer=regularizer)
        if people is not None:
            problem = replace(problem, unit=each_person())
        if chosen.uses_public or not chosen.private:
            problem = replace(problem, side=_side(oracle, choices, known, first[0], problem.row_norm))
        if budget is None:
            plan = partial(_plan, chosen, problem)
            budget = settle_budget(None, noise_multiplier, delta, size, plan, accountant=accountant, unit=problem.unit.name)
            check_budget(budget, ledger)
            check_delta(chosen, budget.delta)
        noise = calibrate(single_release(budget), budget, accountant=accountant)
        problem = replace(problem, single_release_noise=noise, pure=budget.delta == 0)
        _check_recipe(chosen, problem, oracle, budget, accountant)
        store = None
        if checkpoint is not None:
            read = {} if known is None else {"public data": content(known.data)}
            read |= {"data": content(examples.data)} if job is None else job.fingerprint()
            read |= {} if people is None else {"persons": people.fingerprint()}
            settings = identify(method=chosen, plan=(choices, *beside, seed))
            store = _checkpoint(checkpoint, {**read, **code, "settings": settings}, probe_model(oracle, first))
        asked_oracle: Any = oracle if job is None else job.lead(oracle)  # whose vectors are only ever summed
        with watching(progress, observer, _public_metric(model, loss, public)) as observers:
            session = Session(
                budget,
                size,
                ledger=ledger,
                seed=seed,
                accountant=accountant,
                checkpoint=store,
                observer=observers,
                noise_multiplier=noise_multiplier,
            )
            if people is not None:
                asked_oracle = TorchPersonOracle(oracle, people.draw(session.rng))
            released = session.train(chosen, problem, asked_oracle, None, run=run_network, keep_result=True)
        if session.repeated:
            oracle.flat.assign(torch.from_numpy(released.parameters).to(oracle.layout.device))
            oracle.flat.release()
        claim = _claim(session, released, chosen, oracle, known, job, people)
        fitted = Fitted(model, claim, released.rounds, released.stopped_early)
        if job is not None:
            job.finish(oracle, (fitted.privacy, fitted.rounds, fitted.stopped_early))
        return fitted


def _follow(job: Job, model: nn.Module, loss: Callable[..., Tensor], examples: Examples, ledger: Ledger | None) -> Fitted:
    """Answer for this rank's part until rank 0 has trained; what it released, and what it claims."""
    chunk, copies, way = job.follow()
    oracle = _oracle(model, loss, examples, chunk, check=False)  # which rank 0 has done
    oracle.copies, oracle.way = copies, way
    privacy, rounds, early = serve(oracle, job.ranks, job.split)
    if ledger is not None:
        ledger.mirror(privacy.ledger)
        privacy = replace(privacy, ledger=ledger)
    return Fitted(model, privacy, rounds, early)


def _examples(data: Any) -> Examples:
    """Validate data of which the loss is given the targets."""
    examples = Examples.given(data)
    if examples.tensors is None and len(examples):
        split_pair(examples.first)
    elif examples.tensors is not None:
        split_pair(examples.tensors)
    if examples.workers:
        warn("num_workers is for loops of your own (make_private): fit reads examples in its own process.")
    return examples


def _plan(method: Method, problem: Problem, noise_multiplier: float) -> DpEvent:
    """What the method costs with this noise, in as many rounds as were said."""
    return method.build(problem, noise_multiplier).planned_event()


def _check_recipe(method: Method, problem: Problem, oracle: TorchOracle, budget: Budget, accountant: Accountant) -> None:
    """Refuse a recipe that does not fit the model, or that no accountant can price; nothing is paid."""
    planned = method.build(problem, 1.0)
    planned.check(replace(Offer.of(oracle), size=problem.size, unit=problem.unit.name), oracle.layout.flat())
    if method.private:
        choose(planned.planned_event(), budget.neighbours, accountant)


def _checkpoint(folder: str | PathLike[str], fingerprint: Mapping[str, str], answers: Sequence[float]) -> Checkpoint:
    """A checkpoint of this run and no other: of the same data, code of model and loss, method, settings and answers to probes."""
    if not isinstance(folder, str | PathLike) or not str(folder):
        raise InputError(f"checkpoint is {folder!r}, but it names a folder, or is None.")
    return Checkpoint(folder, dict(fingerprint), answers)


def _public_metric(model: nn.Module, loss: Callable[..., Tensor], public: Any) -> Callable[[], float] | None:
    """The loss on public tensors. It is computed once now: what does not fit is found before anything is paid."""
    if not isinstance(public, tuple | list):
        return None
    metric = partial(public_loss, model, loss, *public)
    metric()
    return metric


def _claim(
    session: Session,
    released: Released,
    method: Method,
    oracle: TorchOracle,
    known: Examples | None,
    job: Job | None,
    people: People | None,
) -> Privacy:
    statement = session.state(
        "the parameters of a network",
        assumed_public=[
            describe_examples(session.size, people),
            "the model, its start values and the settings",
        ],
        public_data=[] if known is None else [describe_public(known.data)],
        assumed=[*assumptions(oracle.doubts), *([] if job is None else job.assumptions)],
        settings={
            "method": method.name,
            "rounds": released.rounds,
            **released.settings,
            **({} if people is None else {"rows of a person, at most": people.most}),
            **({} if job is None else job.settings),
        },
    )
    return Privacy(statement, session.ledger)


def _problem(
    oracle: TorchOracle,
    size: int,
    loss: Callable[..., Tensor],
    inputs: Any,
    choices: Choices,
) -> Problem:
    """What is publicly known of a network, but for the budget: the rule for networks asks for no more."""
    typical, outputs = gradient_facts(oracle.model, inputs)
    stable = math.inf
    if choices.learning_rate is None:
        trained = list(oracle.layout.parameters.values())
        stable = find_stable_move(trained, lambda: gradient_facts(oracle.model, inputs)[0], typical)
    return Problem(
        model="network",
        chosen=choices,
        loss=facts_of_loss(loss, outputs),
        size=size,
        width=min(count_inputs(inputs), oracle.dimension) + 1,
        dimension=oracle.dimension,
        row_norm=typical,
        single_release_noise=1.0,
        stable_move=stable,
    )


def _side(oracle: TorchOracle, choices: Choices, known: Examples | None, inputs: Any, row_norm: float) -> SideFacts:
    """Public gradients, or a scale of the parameters, and how they change the length of a gradient."""
    scale = choices.options.get("scale")
    if known is None:
        return SideFacts(None, scale, row_norm, choices.options.get("stability", 0.0))
    public = PublicExamples(oracle, len(known), known.pair)
    sizes = seen_sizes(public, oracle.flat.vector)
    stability = choices.options.get("stability", least_seen(sizes))
    grads, _ = probe_gradients(oracle.model, inputs)
    return SideFacts(public, None, typical_norm(grads.scaled(1 / (sizes + stability))), stability)


def _rates(learning_rate: float | Schedule | None, rounds: int | None) -> Any:
    """A learning rate in a form that can be compared."""
    if not callable(learning_rate):
        return learning_rate
    return learning_rate if rounds is None else [learning_rate(round_) for round_ in range(rounds)]


def _oracle(
    model: nn.Module, loss: Callable[..., Tensor], examples: Examples, chunk: int | None, *, check: bool = True
) -> TorchOracle:
    with training_mode(model):
        if examples.tensors is not None:
            oracle = TorchOracle(model, loss, *examples.tensors, check=check)
        else:
            oracle = TorchOracle.of_dataset(model, loss, examples.data, collate=examples.collate_pairs, check=check)
        if examples.own_collation and check:
            examples.check_collation()
            _check_padding(oracle, examples)
            oracle.doubts = [*oracle.doubts, OWN_COLLATION]
        oracle.chunk = chunk or physical_batch_size(model, split_pair(examples.first)[0], oracle.formed)
    return oracle


def _check_padding(oracle: TorchOracle, examples: Examples) -> None:
    """Refuse losses that depend on how far collate_fn pads an example, which the longest of its batch decides."""
    device = oracle.layout.device

    def losses(items: list[Any]) -> Tensor:
        inputs, targets = move_to_device(examples.collate_pairs(items), device)
        return compute_losses(oracle.loss, call_model(oracle.model, inputs), targets)

    with silent(), global_generators(device), evaluation_mode(oracle.model), torch.no_grad():
        items = examples.few_items()
        with without_randomness(oracle.model):
            together, alone = losses(items), torch.cat([losses([item]) for item in items])
    if not torch.allclose(together, alone, rtol=1e-3, atol=1e-5, equal_nan=True):
        raise UnsupportedLayer(
            "the loss of an example changes with the padding that collate_fn adds, so the longest example of a batch would "
            "change the gradients of the others. Give the model a mask that hides the padding (attention_mask), leave padding "
            "out of the loss (label -100), or pad all examples to one public length."
        )
