"""`fit`: a private model in one call."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from inspect import Parameter, signature
from numbers import Real
from os import PathLike
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from privopt.checkpoint import Checkpoint, Finished
from privopt.errors import InputError
from privopt.loop import Result, check_finite, run, warn_of_early_end
from privopt.measure.clips import Clip
from privopt.measure.randomness import SOURCE, Rng, generator
from privopt.needs import Offer
from privopt.nets.data import as_dataset, as_model, content, first_of, pairs, physical_batch_size
from privopt.nets.identity import identify
from privopt.nets.independence import Independence, assumptions, check_independence, require
from privopt.nets.plan import check_given, noise_for, schedule
from privopt.nets.probes import probe_model
from privopt.nets.public_examples import PublicExamples, described, public_loss
from privopt.perexample.networks import TorchOracle
from privopt.perexample.networks.model_state import training
from privopt.perexample.networks.rng import Dropout, global_generators
from privopt.postprocess.release import ReleaseRule, last
from privopt.postprocess.schedules import Schedule
from privopt.postprocess.side_information import least_seen, seen_sizes
from privopt.privacy.accountants import Accountant, epsilon
from privopt.privacy.budget import Budget, warn_of_delta
from privopt.privacy.ledger import Ledger, Run
from privopt.privacy.statement import Privacy, Statement
from privopt.progress import preparing, watched
from privopt.recipe import Recipe
from privopt.recipes import check_options, check_side, dp_sgd
from privopt.recipes import method as method_of

OWN = {
    "rounds",
    "max_rounds",
    "noise_multiplier",
    "clip_bound",
    "learning_rate",
    "release",
    "sampling",
    "expected_batch_size",
    "public",
}  # what `fit` gives a recipe itself
RATES = {"dp-adam": 1e-3, "dp-rmsprop": 1e-3, "dp-adam-bc": 1e-3}  # as torch.optim's; plain descent has no scale-free default


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


def fit(
    model: nn.Module,
    loss: Callable[..., Tensor],
    dataset: Any,
    *,
    budget: Budget,
    batch_size: int,
    epochs: float | None = None,
    rounds: int | None = None,
    method: str = "dp-adam",
    clip_bound: float | Clip = 1.0,
    learning_rate: float | Schedule | None = None,
    release: ReleaseRule = last(),  # noqa: B008  # frozen
    options: dict[str, Any] | None = None,
    physical_batch_size: int | None = None,
    accountant: Accountant = "auto",
    ledger: Ledger | None = None,
    checkpoint: str | PathLike[str] | None = None,
    progress: bool | Callable[[int], None] = True,
    public: Any = None,
    independence: Independence = "checked",
    seed: int | None = None,
) -> Fitted:
    """Train a model privately; the model itself is changed, and is an ordinary one afterwards.

    `loss(output, targets)` gives one value for each example, or is a loss module of torch, which is asked for that. `dataset` is
    a map-style dataset of (inputs, targets) or a pair of tensors. `options` go to the method's recipe (momentum_decay, ceiling,
    ...). `checkpoint` names a folder from which a killed run goes on, bit for bit; it is as sensitive as the data. `progress`:
    a bar, if standard error is a terminal; or False; or a function that is told how many rounds are done. `public` are data like
    `dataset` that are not private: methods that use public data use them, and the bar shows the loss on a pair of tensors.
    `independence="proved"` refuses a model whose examples could only be checked not to mix; the statement says which it is.

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
    check_given(budget, ledger, clip_bound, physical_batch_size)
    check_independence(independence)
    data = as_dataset(dataset)
    planned = schedule(len(data), batch_size, epochs, rounds)  # type: ignore[arg-type]
    data = pairs(data)
    warn_of_delta(budget, planned.size, frames=1)
    chosen = method_of(method)
    recipe_of, parameters = chosen.recipe, signature(chosen.recipe).parameters
    if not chosen.networks:
        raise InputError(f"{method} needs {chosen.needs}, so it is not for networks. dp-adam, dp-sgd and rrpsgd are.")
    if "release" not in parameters and release != last():
        raise InputError(f"{method} has a release rule of its own: leave release out.")
    if "learning_rate" not in parameters and learning_rate is not None:
        raise InputError(f"{method} chooses its steps itself: leave learning_rate out.")
    if "learning_rate" in parameters and learning_rate is None and method not in RATES:
        raise InputError(f"{method} has no default learning rate for networks: say learning_rate=….")
    rate = RATES.get(method) if learning_rate is None else learning_rate
    for value in map(rate, range(planned.rounds)) if callable(rate) else [] if rate is None else [rate]:
        if not (isinstance(value, Real) and 0 <= value < math.inf and (value > 0 or callable(rate))):
            raise InputError(f"learning_rate is {value!r}, but it is a finite number > 0, or a function of the round to one.")
    allowed = [name for name in parameters if name not in OWN]
    check_options(chosen, options or {}, OWN)
    if missing := [name for name in allowed if parameters[name].default is Parameter.empty and name not in (options or {})]:
        raise InputError(f"{method} has no defaults for networks: say {' and '.join(missing)} in options={{…}}.")
    if planned.batch_size < planned.size and "sampling" not in parameters:
        raise InputError(f"{method} uses every example in every round: batch_size is {planned.size}, or choose another method.")
    known = None if public is None else pairs(as_dataset(public))
    named = None if known is None else described(known)
    check_side(chosen, options or {}, public=known is not None and "public" in parameters)
    side: dict[str, Any] = {}

    def recipe(noise: float) -> Recipe:
        common = {
            "rounds": planned.rounds,
            "max_rounds": planned.rounds,
            "noise_multiplier": noise,
            "clip_bound": clip_bound,
            "learning_rate": rate,
            "release": release,
            "sampling": planned.sampler,
            "expected_batch_size": planned.batch_size,
            **side,
        }
        return recipe_of(**{name: value for name, value in common.items() if name in parameters}, **(options or {}))

    def as_if_private(noise: float) -> Recipe:
        """What a method without a guarantee is compared with."""
        sampling = planned.sampler
        return dp_sgd(rounds=planned.rounds, noise_multiplier=noise, clip_bound=1.0, learning_rate=1.0, sampling=sampling)

    model = as_model(model)
    # before anything runs the model, which may count its calls or keep what it computed
    code = {} if checkpoint is None else {"model": identify(model=model, torch=torch), "loss": identify(loss=loss)}
    oracle = _oracle(model, loss, data, physical_batch_size)  # what is wrong with them is found here
    require(independence, oracle.doubts)
    if known is not None and "public" in parameters:
        side["public"] = PublicExamples(oracle, known)
        if "stability" not in (options or {}):
            side["stability"] = least_seen(seen_sizes(side["public"], oracle.flat.vector))
    recipe(1.0).check(Offer.of(oracle), oracle.layout.flat())  # what does not fit the model is found here
    with preparing(progress):
        noise = noise_for(recipe if chosen.private else as_if_private, budget, accountant)
    rng = generator(seed)
    ledger = ledger if ledger is not None else Ledger()
    name = ledger.run().name
    store = ended = None
    if checkpoint is not None:
        rates = [rate(round_) for round_ in range(planned.rounds)] if callable(rate) else rate
        plan = (planned, clip_bound, budget, options, rates, release, physical_batch_size, accountant, noise, seed)
        read = {name: content(part) for name, part in (("data", data), ("public data", known)) if part is not None}
        settings = identify(method=method, recipe=recipe_of, plan=plan)
        store = Checkpoint(checkpoint, {**read, **code, "settings": settings}, probe_model(oracle, first_of(data)))
        ended = store.finished()
    if ended is not None:  # whoever asked was killed before it had the model, or asks again
        spending, noise = ledger.run(ended.run), ended.noise_multiplier
        spending.pay([ended.event])  # free, unless the ledger that holds it was lost
        oracle.flat.assign(torch.from_numpy(ended.parameters).to(oracle.layout.device))
        oracle.flat.release()
        result = Result(ended.parameters, ended.rounds, ended.event, ended.stopped_early)
    else:
        if store is not None:
            name, rng = store.begin(name, rng)
        spending = ledger.run(name)
        if (stop := recipe(noise).stop(rng)) < planned.rounds:  # drawn before data are read: noise for these rounds is enough
            with preparing(progress):
                noise = noise_for(lambda z: recipe(z).stopped(stop), budget, accountant)
        ready = recipe(noise).stopped(stop)

        def spent(done: int) -> float:
            return epsilon(ready.planned_event(done), budget.delta, budget.neighbours, accountant=accountant)

        watch = partial(public_loss, model, loss, *public) if isinstance(public, tuple | list) else None
        with watched(progress, ready.rounds, spent, watch) as told:
            result = trained(oracle, ready, spending=spending, rng=rng, checkpoint=store, progress=told)
        if store is not None:
            store.finish(Finished(name, result.parameters, result.rounds, result.stopped_early, noise, result.event))
        if result.stopped_early:
            warn_of_early_end(result.rounds, ready.rounds, ledger, frames=1)
    statement = Statement(
        budget=budget,
        event=spending.since(0),
        released="the parameters of a network",
        accountant=accountant,
        examples=planned.size,
        assumed_public=[
            f"the number of examples ({planned.size}), their shapes and types",
            "the model, its start values and the settings",
        ],
        public_data=[] if named is None else [named],
        noise=SOURCE if seed is None else None,
        cap=ledger.cap,
        assumed=assumptions(oracle.doubts),
        seeded=seed is not None,
        settings={
            "method": method,
            "rounds": result.rounds,
            "batch size": planned.phrase(),
            **({"noise multiplier": noise} if "noise_multiplier" in parameters else {}),
            **(
                {"clip bound": clip_bound if isinstance(clip_bound, Real) else str(clip_bound)}
                if "clip_bound" in parameters
                else {}
            ),
            **({"learning rate": "a schedule" if callable(rate) else rate} if "learning_rate" in parameters else {}),
        },
    )
    return Fitted(model, Privacy(statement, ledger), result.rounds, result.stopped_early)


def trained(
    oracle: TorchOracle,
    recipe: Recipe,
    *,
    spending: Run,
    rng: Rng,
    checkpoint: Checkpoint | None = None,
    progress: Callable[[int], None] | None = None,
) -> Result:
    """Run a recipe on a model, which then has the parameters that were released, or those it had if anything raises.

    The global generators of torch, NumPy and Python go on where they were.
    """
    repeatable = _Repeatable(oracle, Dropout.drawn(rng, replayed=checkpoint is not None))
    if checkpoint is not None and (saved := checkpoint.load()) is not None:
        repeatable.round = saved.round_

    def told(done: int) -> None:
        repeatable.round = done
        if progress is not None:
            with torch.enable_grad():  # as it is for whoever asked to be told
                progress(done)

    with training(oracle.model), global_generators(oracle.layout.device), torch.no_grad():
        start = oracle.flat.vector  # which a run leaves as it is
        try:
            result = run(recipe, repeatable, oracle.flat.vector, spending=spending, rng=rng, checkpoint=checkpoint, progress=told)
            check_finite(result.parameters)
            oracle.flat.assign(result.parameters)
        except BaseException:
            oracle.flat.assign(start)  # public values, with which the same run can be asked for again
            raise
        finally:
            oracle.flat.release()
    return result


def _oracle(model: nn.Module, loss: Callable[..., Tensor], data: Any, chunk: int | None) -> TorchOracle:
    with training(model):
        if isinstance(data, TensorDataset):
            oracle = TorchOracle(model, loss, *data.tensors)
        else:
            oracle = TorchOracle.of_dataset(model, loss, data)
        oracle.chunk = chunk or physical_batch_size(model, first_of(data)[0])
    return oracle


class _Repeatable:
    """An oracle with dropout that a replay repeats: each round has random numbers of its own, the same at every point."""

    def __init__(self, oracle: TorchOracle, dropout: Dropout) -> None:
        self._oracle, self._dropout = oracle, dropout
        self.round, self.size, self.dimension, self.layers = 0, oracle.size, oracle.dimension, oracle.layers

    def __call__(self, parameters: Any, rows: Any) -> Any:
        self._dropout.begin(self.round)
        return self._oracle(parameters, rows)

    def losses(self, parameters: Any, rows: Any) -> Any:
        self._dropout.begin(self.round)
        return self._oracle.losses(parameters, rows)
