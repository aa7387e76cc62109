"""Law 10: an audit never exceeds its claim, and comes close where the mechanism is tight."""

import os

import pytest

from privopt.measure import mechanisms
from privopt.methods import METHODS
from tests.audit.auditing import audit
from tests.audit.games import AT_ONCE, GAMES

LONGER = 100 if os.environ.get("PRIVOPT_LONG") else 1
CLOSE, CLOSER = 0.7, 0.8  # of a claim, where one Gaussian or Laplace answer is all there is; on very many replays


@pytest.mark.parametrize("name", GAMES)
def test_an_audit_never_exceeds_the_claim_and_comes_close_where_it_is_tight(name: str) -> None:
    game = GAMES[name].make()
    replays = GAMES[name].replays
    found = audit(game, LONGER * replays)
    assert not found.exceeded, f"{name}: ε ≥ {found.bound:.3f}, but {found.claim:.3f} is claimed"
    if game.tight:
        assert found.bound > (CLOSER if replays == AT_ONCE else CLOSE) * found.claim


def test_every_private_method_and_every_mechanism_is_audited() -> None:
    private = [name for name, method in METHODS.items() if method.private]
    for name in private:
        assert any(game.startswith(f"{name}, ") for game in GAMES)
        if "network" in METHODS[name].models and any(game.startswith("network, ") for game in GAMES):
            assert f"network, {name}" in GAMES
        if METHODS[name].pure:
            assert f"{name}, δ = 0" in GAMES
    classes = {name: value for name, value in vars(mechanisms).items() if isinstance(value, type)}
    kinds = {name for name, value in classes.items() if value.__module__ == mechanisms.__name__ and name.islower()}
    assert "gaussian" in kinds
    assert kinds <= set(GAMES)
