"""The loop: one for every recipe, stopped by budgets, killed at any moment, and gone on with as if nothing had happened."""

import os
import random
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import privopt.loop
import privopt.state
from privopt.checkpoint import Checkpoint
from privopt.durable import write_atomically
from privopt.errors import BudgetExceeded, InputError, LedgerError
from privopt.loop import Result, run
from privopt.measure.clips import l2
from privopt.measure.measurement import Measurement, Noisy
from privopt.measure.mechanisms import gaussian
from privopt.measure.queries import gradient
from privopt.measure.randomness import Rng, generator
from privopt.measure.samplers import Sampler, disjoint_batches, full_batch, poisson
from privopt.methods import METHODS
from privopt.methods.dp_adam import dp_adam
from privopt.methods.dp_sgd import dp_sgd
from privopt.perexample.grads import Materialized, Vector
from privopt.perexample.linear_oracle import LinearGrads, LinearOracle
from privopt.postprocess.release import ReleaseRule, average, last
from privopt.postprocess.updates import sgd
from privopt.privacy.accountants import epsilon
from privopt.privacy.budget import Budget
from privopt.privacy.calibration import calibrate
from privopt.privacy.events import GaussianDpEvent, SelfComposedDpEvent
from privopt.privacy.ledger import Entry, Ledger, Run
from privopt.recipe import Recipe, always
from tests.laws.table import LIMIT, METHODS_THAT_SAMPLE, RELEASES, ROW_METHODS, SAMPLERS, SAMPLES
from tests.problems import Given, linear_oracle
from tests.processes import killed, one_fork_server, started, wait_for
from tests.stopped import StopAt, Stopped

RNG = np.random.default_rng(0)
X = RNG.standard_normal((40, 3))
Y = (X[:, 0] > 0).astype(float)
START = np.zeros(4)


def oracle() -> LinearOracle:
    return linear_oracle(X, Y, intercept=1.0)


def adam_on_samples(rounds: int = 40, sampling: Sampler = poisson(0.3), release: ReleaseRule = last()) -> Recipe:  # noqa: B008
    return dp_adam(rounds=rounds, noise_multiplier=2.0, clip_bound=1.0, learning_rate=0.1, sampling=sampling, release=release)


# ---------------------------------------------------------------- one run


def test_a_run_repeats_itself_under_the_same_seed_and_under_no_other() -> None:
    one, same, other = (run(adam_on_samples(), oracle(), START, rng=generator(seed)).parameters for seed in (1, 1, 2))
    np.testing.assert_array_equal(one, same)
    assert (one != other).all()


def test_without_a_seed_no_two_runs_are_alike() -> None:
    one, other = (run(adam_on_samples(), oracle(), START).parameters for _ in range(2))
    assert (one != other).all()


def test_where_the_ledger_is_kept_does_not_change_the_model(tmp_path: Path) -> None:
    """Blocks are longer where the disk is slower, but rounds are the same."""
    memory = run(adam_on_samples(), oracle(), START, rng=generator(1))
    with Ledger(path=tmp_path / "ledger") as ledger:
        file = run(adam_on_samples(), oracle(), START, spending=ledger.run(), rng=generator(1))
    np.testing.assert_array_equal(memory.parameters, file.parameters)
    assert memory.event == file.event


def test_progress_is_told_after_every_round_and_nothing_else() -> None:
    told: list[int] = []
    result = run(adam_on_samples(rounds=9), oracle(), START, progress=told.append)
    assert told == list(range(1, 10))
    assert result.rounds == 9


def test_start_parameters_are_left_as_they_are() -> None:
    run(adam_on_samples(), oracle(), START)
    np.testing.assert_array_equal(START, np.zeros(4))


@pytest.mark.parametrize("name", ROW_METHODS)
def test_every_method_learns_something_under_little_noise(name: str) -> None:
    recipe = SAMPLES[name](150, 0.5)
    limited = linear_oracle(X, Y, intercept=1.0, limit=LIMIT)  # which cuts none of these rows
    parameters = run(recipe, limited, START, rng=generator(0)).parameters
    assert np.mean((X @ parameters[:3] + parameters[3] > 0) == Y) > 0.85


def test_several_recipes_may_share_a_run_of_the_ledger() -> None:
    ledger = Ledger()
    spending = ledger.run()
    first = run(adam_on_samples(rounds=3), oracle(), START, spending=spending)
    second = run(dp_sgd(rounds=2, noise_multiplier=9.0, clip_bound=1.0, learning_rate=0.1), oracle(), START, spending=spending)
    assert first.event == adam_on_samples(rounds=3).planned_event()
    assert second.event == SelfComposedDpEvent(GaussianDpEvent(9.0), 2)
    assert sum(entry.count for entry in ledger.entries) == 5


# ---------------------------------------------------------------- budgets


def test_a_run_stops_before_the_round_that_the_budget_does_not_hold_with_the_model_so_far() -> None:
    ledger = Ledger(Budget(1.0, 1e-5))
    recipe = dp_sgd(rounds=100, noise_multiplier=8.0, clip_bound=1.0, learning_rate=0.1)
    result = run(recipe, oracle(), START, spending=ledger.run(), rng=generator(1))
    assert result.stopped_early
    assert 0 < result.rounds < 100
    assert ledger.event == result.event == recipe.planned_event(result.rounds)
    assert ledger.epsilon() <= 1.0
    assert not ledger.allows([GaussianDpEvent(8.0)])
    shorter = dp_sgd(rounds=result.rounds, noise_multiplier=8.0, clip_bound=1.0, learning_rate=0.1)
    np.testing.assert_array_equal(result.parameters, run(shorter, oracle(), START, rng=generator(1)).parameters)
    with pytest.raises(BudgetExceeded):
        run(recipe, oracle(), START, spending=ledger.run())


@pytest.mark.parametrize("name", RELEASES)
def test_every_release_rule_has_a_model_for_a_run_that_stopped_early(name: str) -> None:
    ledger = Ledger(Budget(1.0, 1e-5))
    recipe = dp_sgd(rounds=100, noise_multiplier=8.0, clip_bound=1.0, learning_rate=0.1, release=RELEASES[name])
    result = run(recipe, oracle(), START, spending=ledger.run(), rng=generator(1))
    assert np.isfinite(result.parameters).all()
    assert ledger.event == recipe.planned_event(result.rounds)


def test_a_plan_calibrated_for_what_is_left_runs_to_its_end() -> None:
    ledger = Ledger(Budget(1.0, 1e-5))
    spending = ledger.run(budget=ledger.budget)
    spending.pay([GaussianDpEvent(10.0)])

    def recipe(noise_multiplier: float) -> Recipe:
        return dp_sgd(rounds=50, noise_multiplier=noise_multiplier, clip_bound=1.0, learning_rate=0.1)

    noise = calibrate(lambda z: recipe(z).planned_event(), Budget(1.0, 1e-5), spent=ledger.event)
    result = run(recipe(noise), oracle(), START, spending=spending)
    assert not result.stopped_early
    assert 0.99 <= ledger.epsilon() <= 1.0


# ---------------------------------------------------------------- interrupted and gone on with


def train(folder: Path, recipe: Recipe, *, budget: Budget | None = None, stop_after: int | None = None) -> Result:
    """As an application does it: one folder, one ledger, one checkpoint, which is removed at the end."""
    checkpoint = Checkpoint(folder / "checkpoint", "these data")
    with Ledger(budget, folder / "ledger") as ledger:
        name, rng = checkpoint.begin("the run", generator(7))
        result = run(
            recipe, oracle(), START, spending=ledger.run(name), rng=rng, checkpoint=checkpoint, progress=StopAt(stop_after)
        )
        checkpoint.remove()
    return result


@pytest.fixture
def checkpoint_every_round(monkeypatch: pytest.MonkeyPatch) -> None:
    """All the time may go into waiting for the disk."""
    monkeypatch.setattr(privopt.loop, "DURABILITY", 1e9)


@pytest.mark.usefixtures("checkpoint_every_round")
@pytest.mark.parametrize("release", RELEASES)
@pytest.mark.parametrize("sampler", SAMPLERS)
@pytest.mark.parametrize("name", METHODS_THAT_SAMPLE)
def test_an_interrupted_run_goes_on_to_the_same_model_and_pays_once(
    tmp_path: Path, name: str, sampler: str, release: str
) -> None:
    recipe = METHODS[name].recipe(
        rounds=12,
        noise_multiplier=2.0,
        clip_bound=1.0,
        learning_rate=0.1,
        sampling=SAMPLERS[sampler](len(X)),
        release=RELEASES[release],
    )
    whole = run(recipe, oracle(), START, rng=generator(7))
    for stop in (1, whole.rounds // 2, whole.rounds // 2 + 1):
        if 0 < stop < whole.rounds:
            with pytest.raises(Stopped):
                train(tmp_path, recipe, stop_after=stop)
    result = train(tmp_path, recipe)
    np.testing.assert_array_equal(result.parameters, whole.parameters)
    assert result == Result(result.parameters, whole.rounds, whole.event, stopped_early=False)
    assert Ledger.read(tmp_path / "ledger").event == recipe.planned_event(whole.rounds)
    assert not (tmp_path / "checkpoint").exists()


@pytest.mark.usefixtures("checkpoint_every_round")
def test_a_ledger_that_was_lost_is_paid_again_for_what_the_checkpoint_holds(tmp_path: Path) -> None:
    recipe = dp_sgd(rounds=12, noise_multiplier=2.0, clip_bound=1.0, learning_rate=0.1)
    with pytest.raises(Stopped):
        train(tmp_path, recipe, stop_after=5)
    (tmp_path / "ledger").unlink()
    (tmp_path / "ledger.tip").unlink()
    result = train(tmp_path, recipe)
    np.testing.assert_array_equal(result.parameters, run(recipe, oracle(), START, rng=generator(7)).parameters)
    assert Ledger.read(tmp_path / "ledger").event == result.event == recipe.planned_event()


@pytest.mark.parametrize("rng", [None, generator(3)])
def test_new_noise_is_not_free_under_an_old_name(rng: Rng | None) -> None:
    recipe = dp_sgd(rounds=3, noise_multiplier=2.0, clip_bound=1.0, learning_rate=0.1)
    ledger = Ledger()
    run(recipe, oracle(), START, spending=ledger.run("a"), rng=rng)
    with pytest.raises(LedgerError, match="the run 'a' already"):
        run(recipe, oracle(), START, spending=ledger.run("a"), rng=rng)
    run(recipe, oracle(), START, spending=ledger.run("b"), rng=rng)
    assert sum(entry.count for entry in ledger.entries) == 6


@pytest.mark.usefixtures("checkpoint_every_round")
@pytest.mark.parametrize("name", [name for name in ROW_METHODS if SAMPLES[name](12, 0.3).rounds > 1])
def test_an_interrupted_run_of_every_method_goes_on_to_the_same_model_and_pays_once(tmp_path: Path, name: str) -> None:
    """Whatever a method keeps between rounds, on either side of the wall, is saved."""
    recipe = SAMPLES[name](12, 0.3)
    whole = run(recipe, oracle(), START, rng=generator(7))
    for stop in (1, 4, 9):
        if stop < whole.rounds:
            with pytest.raises(Stopped):
                train(tmp_path, recipe, stop_after=stop)
    np.testing.assert_array_equal(train(tmp_path, recipe).parameters, whole.parameters)
    assert Ledger.read(tmp_path / "ledger").event == whole.event


@pytest.mark.usefixtures("checkpoint_every_round")
@pytest.mark.parametrize("name", [name for name in ROW_METHODS if SAMPLES[name](12, 0.3).rounds > 1])
def test_a_run_whose_vectors_move_part_by_part_is_the_run_also_when_it_is_interrupted(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rules change their memory in place, so a checkpoint must not share it, nor an iterate that a method looks back at."""
    recipe = SAMPLES[name](12, 0.3)
    whole = run(recipe, oracle(), START, rng=generator(7))
    monkeypatch.setattr(privopt.state, "PART", 3)
    with pytest.raises(Stopped):
        train(tmp_path, recipe, stop_after=1)
    np.testing.assert_array_equal(train(tmp_path, recipe).parameters, whole.parameters)


@pytest.mark.usefixtures("checkpoint_every_round")
@pytest.mark.parametrize("lost", [False, True], ids=["progress kept", "progress lost"])
@pytest.mark.parametrize("share", [1.01, 0.7], ids=["all rounds fit", "some rounds fit"])
@pytest.mark.parametrize("sampling", [full_batch(), disjoint_batches(4, key=5)], ids=str)
def test_an_interrupted_run_under_a_tight_budget_goes_on_as_far_as_it_would_have_gone(
    tmp_path: Path, sampling: full_batch | disjoint_batches, share: float, lost: bool
) -> None:
    recipe = adam_on_samples(rounds=24, sampling=sampling)
    budget = Budget(share * epsilon(recipe.planned_event(), 1e-5), 1e-5)
    whole = run(recipe, oracle(), START, spending=Ledger(budget).run(), rng=generator(7))
    assert whole.stopped_early == (share < 1)
    with pytest.raises(Stopped):
        train(tmp_path, recipe, budget=budget, stop_after=whole.rounds - 1)
    if lost:
        (tmp_path / "checkpoint" / "progress.npz").unlink()
    result = train(tmp_path, recipe, budget=budget)
    assert (result.rounds, result.stopped_early) == (whole.rounds, whole.stopped_early)
    np.testing.assert_array_equal(result.parameters, whole.parameters)
    assert Ledger.read(tmp_path / "ledger").event == whole.event


@pytest.mark.usefixtures("checkpoint_every_round")
def test_a_run_gone_on_with_by_a_new_process_visits_the_same_parts_of_the_data(tmp_path: Path) -> None:
    """A new process makes its recipe anew. The same noise on other parts would reveal both, and would be paid for once."""

    def recipe() -> Recipe:
        return adam_on_samples(rounds=12, sampling=disjoint_batches(3, key=0))

    with pytest.raises(Stopped):
        train(tmp_path / "once", recipe(), stop_after=5)
    shutil.copytree(tmp_path / "once", tmp_path / "twice")
    one, other = (train(tmp_path / name, recipe()).parameters for name in ("once", "twice"))
    np.testing.assert_array_equal(one, other)


def test_a_run_that_lost_its_progress_is_repeated_from_the_beginning_at_no_cost(tmp_path: Path) -> None:
    recipe = adam_on_samples()
    with pytest.raises(Stopped):
        train(tmp_path, recipe, stop_after=30)
    (tmp_path / "checkpoint" / "progress.npz").unlink(missing_ok=True)
    result = train(tmp_path, recipe)
    np.testing.assert_array_equal(result.parameters, run(recipe, oracle(), START, rng=generator(7)).parameters)
    assert Ledger.read(tmp_path / "ledger").event == recipe.planned_event()


@pytest.mark.usefixtures("checkpoint_every_round")
def test_going_on_with_another_recipe_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Stopped):
        train(tmp_path, adam_on_samples(), stop_after=20)
    other = dp_adam(rounds=40, noise_multiplier=1.9, clip_bound=1.0, learning_rate=0.1, sampling=poisson(0.3))
    with pytest.raises(LedgerError, match=r"recorded as something else|planned"):
        train(tmp_path, other)


def answers_of(folder: Path, ledger: Ledger) -> bytes:
    """The first answer of a run with a generator of its own, stopped after one round."""
    checkpoint = Checkpoint(folder, "these data")
    (folder / "progress.npz").unlink(missing_ok=True)  # which a slow disk may have been worth
    with pytest.raises(Stopped):
        run(
            ONE_STEP,
            watched := Watched(X),
            np.zeros(3),
            spending=ledger.run("the run"),
            checkpoint=checkpoint,
            progress=StopAt(2),
        )
    return watched.points[1].tobytes()


ONE_STEP = dp_sgd(rounds=16, noise_multiplier=5.0, clip_bound=1.0, learning_rate=1.0)


class Watched(Given):
    """Remembers where it was asked: the second point shows the first answer."""

    def __init__(self, values: Vector) -> None:
        super().__init__(values)
        self.points: list[Vector] = []

    def __call__(self, parameters: Vector, rows: Vector | None) -> Materialized:
        self.points.append(np.array(parameters))
        return super().__call__(parameters, rows)


def test_a_run_repeated_with_another_generator_repeats_the_answers_that_were_paid_for(tmp_path: Path) -> None:
    ledger = Ledger()
    assert len({answers_of(tmp_path / "c", ledger) for _ in range(5)}) == 1
    assert sum(entry.count for entry in ledger.entries) <= 16


def test_start_and_generator_are_on_the_disk_before_anything_is_paid(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    append = Ledger._append

    def appended(ledger: Ledger, entries: list[Entry], *, exclusive: bool) -> None:
        saved = Checkpoint(tmp_path / "c", "these data").load()
        assert saved is not None
        append(ledger, entries, exclusive=exclusive)

    monkeypatch.setattr(Ledger, "_append", appended)
    run(ONE_STEP, Given(X), np.zeros(3), spending=Ledger().run(), checkpoint=Checkpoint(tmp_path / "c", "these data"))


def test_another_run_is_refused_the_noise_of_this_one(tmp_path: Path) -> None:
    ledger = Ledger()
    answers_of(tmp_path / "c", ledger)
    charged = ledger.entries
    with pytest.raises(LedgerError, match=r"is of the run 'the run'.*checkpoint of its own"):
        run(ONE_STEP, Given(X), np.zeros(3), spending=ledger.run("b"), checkpoint=Checkpoint(tmp_path / "c", "these data"))
    with pytest.raises(InputError, match="not those that this run began with"):
        run(ONE_STEP, Given(X), np.zeros(3), spending=ledger.run("the run"), checkpoint=Checkpoint(tmp_path / "c", "others"))
    with pytest.raises(LedgerError, match="the run 'the run' already"):  # a checkpoint that knows nothing of it
        run(ONE_STEP, Given(X), np.zeros(3), spending=ledger.run("the run"), checkpoint=Checkpoint(tmp_path / "d", "these data"))
    assert ledger.entries == charged


def test_a_second_recipe_of_a_run_is_refused_the_noise_of_the_first(tmp_path: Path) -> None:
    spending, checkpoint = Ledger().run(), Checkpoint(tmp_path / "c", "these data")
    run(ONE_STEP, Given(X), np.zeros(3), spending=spending, checkpoint=checkpoint)
    with pytest.raises(LedgerError, match="The same noise would hide two answers"):
        run(ONE_STEP, Given(X), np.zeros(3), spending=spending, checkpoint=checkpoint)


class Failing(Given):
    """Data that cannot be read twice."""

    asked = 0

    def __call__(self, parameters: Vector, rows: Vector | None) -> Materialized:
        self.asked += 1
        if self.asked == 2:
            raise OSError("the disk is gone")
        return super().__call__(parameters, rows)


def test_a_round_that_fails_was_paid_before_it_was_asked() -> None:
    ledger = Ledger()
    recipe = dp_sgd(rounds=5, noise_multiplier=1.0, clip_bound=1.0, learning_rate=0.1)
    with pytest.raises(OSError, match="the disk is gone"):
        run(recipe, Failing(X), np.zeros(3), spending=ledger.run())
    assert sum(entry.count for entry in ledger.entries) >= 2


def test_every_answer_was_paid_for_when_it_was_given(tmp_path: Path) -> None:
    """The oracle itself looks into the file: as many releases are recorded as it has been asked for, at least."""
    path = tmp_path / "ledger"

    class Watching(Given):
        asked = 0

        def __call__(self, parameters: Vector, rows: Vector | None) -> Materialized:
            self.asked += 1
            assert sum(entry.count for entry in Ledger.read(path).entries) >= self.asked
            return super().__call__(parameters, rows)

    with Ledger(path=path) as ledger:
        recipe = dp_sgd(rounds=30, noise_multiplier=1.0, clip_bound=1.0, learning_rate=0.1)
        watching = Watching(X)
        run(recipe, watching, np.zeros(3), spending=ledger.run())
    assert watching.asked == 30


# ---------------------------------------------------------------- killed


def work(folder: Path, recipe: Callable[[], Recipe], every_round: bool) -> None:
    """Train in a process of its own; the model is saved before the checkpoint goes."""
    if every_round:
        privopt.loop.DURABILITY = 1e9
    checkpoint = Checkpoint(folder / "checkpoint", "these data")
    with Ledger(path=folder / "ledger") as ledger:
        name, rng = checkpoint.begin(ledger.run().name, generator(7))
        result = run(recipe(), Slow(), START, spending=ledger.run(name), rng=rng, checkpoint=checkpoint)
        write_atomically(folder / "model", result.parameters.tobytes())
        checkpoint.remove()


class Slow:
    """The data, a millisecond away."""

    size = len(X)

    def __call__(self, parameters: Vector, rows: Vector | None) -> LinearGrads:
        time.sleep(0.001)
        return oracle()(parameters, rows)


def averaged() -> Recipe:
    return adam_on_samples(rounds=200, release=average("last half"))


@one_fork_server
@pytest.mark.parametrize("every_round", [True, False], ids=["saved every round", "saved when it pays"])
def test_a_run_killed_again_and_again_ends_with_the_same_model_paid_once(tmp_path: Path, every_round: bool) -> None:
    moments, kills = random.Random(3), 0
    while True:
        process = started(work, tmp_path, averaged, every_round)
        process.join(moments.uniform(0.02, 0.2) if kills < 12 else 60)
        if process.exitcode is not None:
            break
        killed(process)
        kills += 1
        modes = {path.name: path.stat().st_mode & 0o777 for path in (tmp_path / "checkpoint").glob("*")}
        assert all(mode == 0o600 for mode in modes.values()), modes
        if (tmp_path / "model").exists() and not modes:  # it was done, and about to exit
            break
    assert kills >= 2
    whole = run(averaged(), oracle(), START, rng=generator(7))
    np.testing.assert_array_equal(np.frombuffer((tmp_path / "model").read_bytes()), whole.parameters)
    assert Ledger.read(tmp_path / "ledger").event == averaged().planned_event()
    assert len({entry.run for entry in Ledger.read(tmp_path / "ledger").entries}) == 1
    assert not (tmp_path / "checkpoint").exists()


def pay_and_use(folder: Path) -> None:
    """A run whose every answer is written down; killed in the middle."""

    class Writing(Given):
        def __call__(self, parameters: Vector, rows: Vector | None) -> Materialized:
            with (folder / "used").open("ab", buffering=0) as file:
                file.write(b"x")
            return super().__call__(parameters, rows)

    with Ledger(path=folder / "ledger") as ledger:
        recipe = dp_sgd(rounds=20_000, noise_multiplier=1.0, clip_bound=1.0, learning_rate=0.1)
        run(recipe, Writing(X), np.zeros(3), spending=ledger.run())


@one_fork_server
def test_a_killed_run_has_spent_at_least_what_it_used(tmp_path: Path) -> None:
    for trial in range(4):
        folder = tmp_path / str(trial)
        folder.mkdir()
        process = started(pay_and_use, folder)
        wait_for((folder / "used").exists)
        time.sleep(0.03 * trial)
        killed(process)
        spent = sum(entry.count for entry in Ledger.read(folder / "ledger").entries)
        assert spent >= (folder / "used").stat().st_size > 0


# ---------------------------------------------------------------- what durability costs


@pytest.mark.parametrize("rounds", [500, 5000])
def test_a_fast_run_waits_for_the_disk_a_few_times_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rounds: int) -> None:
    waits = 0
    fsync = os.fsync

    def counted(descriptor: int) -> None:
        nonlocal waits
        waits += 1
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", counted)
    train(tmp_path, dp_sgd(rounds=rounds, noise_multiplier=20.0, clip_bound=1.0, learning_rate=0.1))
    assert 3 <= waits <= 30


def test_a_run_pays_no_further_ahead_than_it_will_run(tmp_path: Path) -> None:
    with Ledger(path=tmp_path / "ledger") as ledger:
        spending: Run = ledger.run()
        run(adam_on_samples(rounds=17), oracle(), START, spending=spending)
        assert spending.paid == spending.position == 17


class Cheaper(Measurement):
    """Plans and charges one event, and draws the noise of another."""

    def measure(self, *arguments: Any) -> Noisy:
        return super().measure(*arguments)._replace(event=GaussianDpEvent(1.0))


def test_a_round_that_draws_another_event_than_was_paid_ends_the_run() -> None:
    cheaper = Cheaper(full_batch(), [gradient() @ l2(1.0)], gaussian(20.0))
    recipe = Recipe(3, always(cheaper), sgd(0.1))
    with pytest.raises(LedgerError, match=r"round 1 drew .* but .* was planned and paid"):
        run(recipe, oracle(), START)
