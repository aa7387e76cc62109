"""privopt's accounting for Flower's own DP strategies: Flower's `PrivacyAccountant` protocol, by privacy loss distributions."""

import itertools
import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from os import PathLike
from typing import Any

from flwr.serverapp import GaussianPrivacyEvent, PrivacyConfig, PrivacySpent, SamplingMethod

from privopt.errors import BudgetExceeded, InputError, LedgerError
from privopt.privacy.accountants import epsilon
from privopt.privacy.budget import UNITS
from privopt.privacy.calibration import COARSER
from privopt.privacy.events import (
    DpEvent,
    GaussianDpEvent,
    PoissonSampledDpEvent,
    SelfComposedDpEvent,
    atoms,
    compose,
    from_json,
    to_json,
)
from privopt.privacy.ledger import Ledger

METHOD = "pld"
SCHEMA = "privopt-pld-1"
LEAST_DELTA = 1e-14  # privacy loss distributions are cut off at tails of 1e-15
TOLERANCE = 1e-3  # of log δ, in a search for it


class PldAccountant:
    """Flower's `PrivacyAccountant` by privacy loss distributions, with a privopt ledger behind it.

    `ledger` is a `Ledger`, the path of a file, or None for one in memory. What it holds already counts: an accountant on the file
    of an earlier process goes on where that one stopped, and never below it.

    **Guarantee** `get_epsilon` is an upper bound on the ε of the events that were composed, if they were planned beforehand.
    `compose` writes an event to the ledger, durably if that is a file, before it returns; one that would exceed `max_epsilon`, or
    the ledger's own cap, is refused. `max_epsilon` bounds a plan, as in Flower's `RdpAccountant`. For a cap that holds
    although settings are changed after looking at results, give it a `Ledger(Budget(…, unit="user"))`.

    **Not its doing** An accountant prices the events that it is told of. Whether they are true is up to the strategy. With
    Flower's `DifferentialPrivacyServerSideFixedClipping` (1.41 and 1.42):

    - noise comes from `np.random.normal`, the global Mersenne Twister, which is predictable from its outputs and is not
      reseeded for you; it has the arrays' precision;
    - nodes are a fixed number, sampled by Python's `random`, and are priced without amplification: `sampling_method` has to be
      NO_AMPLIFICATION, and the POISSON that this class prices is refused there;
    - a client that changes nothing ends the run with a ZeroDivisionError, and NaN passes the clip and reaches the model;
    - if a node fails, the round is skipped: whether a node replied shows in the model, and is not priced;
    - the noise is drawn before `compose` is called, but the model is returned after it: if `compose` fails, nothing is released;
    - metrics of clients, for training and evaluation, leave without noise.

    `privopt.federated.strategy.PrivateStrategy` does these things itself.

    >>> from flwr.serverapp import NeighboringRelation
    >>> config = PrivacyConfig(1e-5, 60000, NeighboringRelation.ADD_OR_REMOVE_ONE, SamplingMethod.POISSON)
    >>> accountant = PldAccountant(config)
    >>> accountant.compose(GaussianPrivacyEvent(noise_multiplier=4.0, sample_size=128, population_size=60000), count=1000)
    >>> round(accountant.get_epsilon(1e-5), 3)
    0.05
    """

    def __init__(self, config: PrivacyConfig, ledger: Ledger | str | PathLike[str] | None = None) -> None:
        if config.sampling_method is SamplingMethod.WITHOUT_REPLACEMENT:
            raise InputError(
                "privacy loss distributions have no price for samples of a fixed size. Use SamplingMethod.POISSON if each client "
                "is drawn by a coin of its own, and NO_AMPLIFICATION otherwise."
            )
        held = ledger if isinstance(ledger, Ledger) else Ledger(path=ledger)
        if held.budget is not None and held.budget.unit != "user":
            raise InputError(
                f"the ledger's budget is for {UNITS[held.budget.unit]}, but Flower's events are for clients. "
                'Use a ledger with Budget(…, unit="user").'
            )
        self._config, self.ledger = config, held
        self._spending = held.run()

    @property
    def config(self) -> PrivacyConfig:
        """The configuration."""
        return self._config

    @property
    def num_releases(self) -> int:
        """How many releases the ledger holds."""
        return sum(entry.count for entry in self.ledger.entries)

    def compose(self, event: GaussianPrivacyEvent, count: int = 1) -> None:
        """Charge `count` such releases to the ledger, before this returns."""
        priced = self._translate(event, count)
        limit = self._config.max_epsilon
        if limit is not None and self._after(priced) > limit:
            raise BudgetExceeded(f"{count} more releases would exceed max_epsilon = {limit:.6g}. Nothing was charged.")
        self._spending.pay([priced])

    def get_epsilon(self, delta: float) -> float:
        """The ε of all releases at this δ."""
        if not 0 < delta < 1:
            raise InputError(f"delta is {delta!r}, but it is a probability: 0 < delta < 1.")
        return epsilon(self.ledger.event, delta)

    def get_delta(self, epsilon: float) -> float:
        """A δ for which all releases are (ε, δ)-DP: close to the smallest, but not below 1e-14."""
        if not 0 <= epsilon < math.inf:
            raise InputError(f"epsilon is {epsilon!r}, but it is a finite number ≥ 0.")
        if not self.num_releases:
            return 0.0
        if self._rough_epsilon(LEAST_DELTA) <= epsilon:
            return LEAST_DELTA
        low, high = math.log(LEAST_DELTA), 0.0
        while high - low > TOLERANCE:  # the ε at `low` is above, that at `high` is not
            middle = (low + high) / 2
            low, high = (low, middle) if self._rough_epsilon(math.exp(middle)) <= epsilon else (middle, high)
        return math.exp(high)

    def get_privacy_spent(self, delta: float | None = None) -> PrivacySpent:
        """The ε of all releases, as Flower reports it."""
        at = self._config.target_delta if delta is None else delta
        return PrivacySpent(self.get_epsilon(at), at, self.num_releases, METHOD)

    def would_exceed(self, event: GaussianPrivacyEvent, max_epsilon: float | None = None, count: int = 1) -> bool:
        """Whether such releases would exceed a limit on ε, or the ledger's own cap. Nothing is charged."""
        limit = self._config.max_epsilon if max_epsilon is None else max_epsilon
        if limit is None:
            raise InputError("there is no limit to exceed: give PrivacyConfig or would_exceed() a max_epsilon.")
        if not 0 < limit < math.inf:
            raise InputError(f"max_epsilon is {limit!r}, but it is a finite number above 0.")
        priced = self._translate(event, count)
        return self._after(priced) > limit or not self.ledger.allows([priced], self._spending.name)

    def state_dict(self) -> dict[str, object]:
        """What `load_state_dict` reads back; JSON can hold it."""
        return {
            "schema": SCHEMA,
            "config": _config_json(self._config),
            "releases": [{"event": to_json(entry.event), "count": entry.count} for entry in self.ledger.entries],
        }

    def load_state_dict(self, state: dict[str, object]) -> None:
        """Make sure that the ledger holds these releases: those that it lacks are charged.

        A ledger that holds more than the state, because it was written after the state was saved, keeps what it holds.
        """
        saved, held = _saved_releases(state, self._config), list(_each_release(self.ledger.event))
        shared = min(len(saved), len(held))
        if saved[:shared] != held[:shared]:
            raise LedgerError(
                "the ledger and the state to be loaded hold different releases. Load the state into an accountant with the "
                "ledger that it was saved from, or with a new one."
            )
        self._spending.pay(saved[shared:])

    def _rough_epsilon(self, delta: float) -> float:
        """The ε of all releases, on a coarser grid: at most 1 % larger, and quicker. It is never too small."""
        return epsilon(self.ledger.event, delta, coarser=COARSER)

    def _after(self, more: DpEvent) -> float:
        """The ε of all releases and these."""
        return epsilon(compose([self.ledger.event, more]), self._config.target_delta)

    def _translate(self, event: GaussianPrivacyEvent, count: int) -> DpEvent:
        """The event in dp-accounting's words."""
        if event.population_size != self._config.population_size:
            raise InputError(
                f"an event has population_size {event.population_size}, but {self._config.population_size} are configured."
            )
        if isinstance(count, bool) or not isinstance(count, int) or count < 1:
            raise InputError(f"count is {count!r}, but it is a whole number of 1 or more.")
        release: DpEvent = GaussianDpEvent(event.noise_multiplier)
        if self._config.sampling_method is SamplingMethod.POISSON and event.sample_size < event.population_size:
            release = PoissonSampledDpEvent(event.sample_size / event.population_size, release)
        return SelfComposedDpEvent(release, count)


def _config_json(config: PrivacyConfig) -> dict[str, object]:
    return asdict(config) | {
        "neighboring_relation": config.neighboring_relation.value,
        "sampling_method": config.sampling_method.value,
    }


def _saved_releases(state: Mapping[str, Any], config: PrivacyConfig) -> list[DpEvent]:
    """The releases that `state_dict` wrote, one by one."""
    if state.get("schema") != SCHEMA:
        raise InputError(f"the state has the schema {state.get('schema')!r}, not {SCHEMA!r}: another accountant wrote it.")
    if state.get("config") != _config_json(config):
        raise InputError("the state was saved with another PrivacyConfig. Load it with the configuration that it was saved with.")
    try:
        releases = [SelfComposedDpEvent(from_json(one["event"]), int(one["count"])) for one in state["releases"]]
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(f"the state's releases are damaged: {error}.") from error
    if any(release.count < 1 for release in releases):
        raise InputError("the state's releases are damaged: a count is below 1.")
    return list(_each_release(compose(releases)))


def _each_release(event: DpEvent) -> Iterator[DpEvent]:
    for release, count in atoms(event):
        yield from itertools.repeat(release, count)
