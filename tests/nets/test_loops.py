"""`make_private` in a loop of the user's own: pieces, schedulers, checks before anything is paid, and loops that are killed."""

import copy
import functools
import io
import os
import pickle
import random
import threading
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn
from torch.utils.data import Dataset, TensorDataset

from privopt import Budget, Ledger
from privopt.durable import write_atomically
from privopt.errors import BudgetExceeded, InputError, PrivoptError, PrivoptWarning
from privopt.nets import Private, UnsupportedLayer, make_private
from privopt.perexample.networks import UnsupportedLoss
from tests.problems import flat_parameters, tanh_network, tensor_rows
from tests.processes import killed, one_fork_server, size, started, wait_for

BUDGET = Budget(3.0, 1e-5)
ROUNDS = 40


def losses(model: nn.Module, inputs: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(model(inputs), targets, reduction="none")


def begun(model: nn.Module | None = None, dataset: Any = None, **settings: Any) -> Private:
    model = model or tanh_network(dropout=0.3)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    given = {
        "budget": BUDGET,
        "rounds": ROUNDS,
        "batch_size": 60,
        "physical_batch_size": 25,
        "seed": 5,
        "accountant": "rdp",
    } | settings
    return make_private(model, optimizer, tensor_rows() if dataset is None else dataset, **given)


def trained(private: Private, after: Callable[[bool], None] = lambda updated: None) -> Tensor:
    for inputs, targets in private.loader:
        after(private.step(lambda inputs=inputs, targets=targets: losses(private.model, inputs, targets)))  # type: ignore[misc]
    return flat_parameters(private.model)


# ---------------------------------------------------------------- steps


def test_a_step_says_when_the_model_was_updated() -> None:
    private = begun()
    scheduler = torch.optim.lr_scheduler.StepLR(private.optimizer, 10, 0.5)
    said: list[bool] = []

    def after(updated: bool) -> None:
        said.append(updated)
        if updated:
            scheduler.step()

    trained(private, after)
    assert sum(said) == private.rounds == private.planned_rounds == ROUNDS
    assert len(said) > ROUNDS  # several pieces a round
    assert private.optimizer.param_groups[0]["lr"] == pytest.approx(0.02 * 0.5**4)
    assert 0.99 * 3.0 <= private.epsilon() <= 3.0


def test_a_loop_leaves_no_gradient_and_does_not_disturb_torchs_own_generator() -> None:
    private = begun(rounds=3)
    torch.manual_seed(3)
    wanted = torch.rand(2)
    torch.manual_seed(3)
    trained(private)
    torch.testing.assert_close(torch.rand(2), wanted)
    assert all(parameter.grad is None for parameter in private.model.parameters())


def test_batches_may_hold_anything_that_can_be_collated() -> None:
    x, y = tensor_rows()
    items = [{"features": x[i], "label": y[i]} for i in range(len(x))]
    model = tanh_network(dropout=0.3)
    private = begun(model, items, rounds=2)
    for batch in private.loader:
        private.step(lambda batch=batch: losses(model, batch["features"], batch["label"]))  # type: ignore[misc]
    assert private.rounds == 2
    triples = begun(model, TensorDataset(x, y, y), rounds=1)
    for inputs, targets, _ in triples.loader:
        triples.step(lambda inputs=inputs, targets=targets: losses(model, inputs, targets))  # type: ignore[misc]
    assert triples.rounds == 1


def test_a_loop_may_be_left_and_entered_again() -> None:
    private = begun(rounds=5)
    for inputs, targets in private.loader:
        if private.step(lambda inputs=inputs, targets=targets: losses(private.model, inputs, targets)):  # type: ignore[misc]
            break
    trained(private)
    assert private.rounds == 5
    assert private.statement().event == private.ledger.event


def test_under_autocast_a_loop_trains_as_well() -> None:
    private = begun(rounds=3, seed=0)
    for inputs, targets in private.loader:
        with torch.autocast("cpu", torch.bfloat16):
            private.step(lambda inputs=inputs, targets=targets: losses(private.model, inputs, targets))  # type: ignore[misc]
    half, whole = flat_parameters(private.model), trained(begun(rounds=3, seed=0))
    torch.testing.assert_close(half, whole, rtol=0, atol=0.05)
    assert not torch.equal(half, whole)


# ---------------------------------------------------------------- what is refused, before it is paid


def per_token(model: nn.Module, inputs: Tensor, targets: Tensor) -> Tensor:
    return losses(model, inputs.repeat(3, 1), targets.repeat(3))


def contrasted(model: nn.Module, inputs: Tensor, targets: Tensor) -> Tensor:
    similar = model(inputs) @ model(inputs).T
    return F.cross_entropy(similar, torch.arange(len(inputs)), reduction="none")


def normalised(model: nn.Module, inputs: Tensor, targets: Tensor) -> Tensor:
    return losses(model, inputs - inputs.mean(0), targets) / losses(model, inputs, targets).sum()


def outside(model: nn.Module, inputs: Tensor, targets: Tensor) -> Tensor:
    assert isinstance(model, nn.Sequential)
    assert isinstance(model[0].weight, Tensor)
    return F.linear(inputs, model[0].weight).square().sum(1) + losses(model, inputs, targets)


def without_graph(model: nn.Module, inputs: Tensor, targets: Tensor) -> Tensor:
    return losses(model, inputs, targets).detach()


@pytest.mark.parametrize(
    ("closure", "error", "message"),
    [
        (lambda model, x, y: F.cross_entropy(model(x), y), UnsupportedLoss, 'one loss for each example.*reduction="none"'),
        (lambda model, x, y: 1.0, UnsupportedLoss, "gave float"),
        (lambda model, x, y: model(x), UnsupportedLoss, r"shape \(examples,\)"),
        (per_token, UnsupportedLoss, "one loss for each example"),
        (contrasted, UnsupportedLayer, "mixes examples"),
        (normalised, UnsupportedLayer, "mixes examples"),
        (outside, UnsupportedLayer, "0.weight.*outside the module"),
        (without_graph, UnsupportedLoss, "depend on no trainable parameter"),
    ],
    ids=["mean", "number", "outputs", "tokens", "contrastive", "normalised", "outside", "detached"],
)
def test_losses_that_are_not_each_examples_own_are_refused_before_anything_is_paid(
    closure: Callable[..., Tensor], error: type[Exception], message: str
) -> None:
    private = begun()
    before = flat_parameters(private.model)
    with pytest.raises(error, match=message):  # noqa: PT012
        for inputs, targets in private.loader:
            private.step(functools.partial(closure, private.model, inputs, targets))
    assert private.ledger.entries == ()
    torch.testing.assert_close(flat_parameters(private.model), before)


def test_a_loss_that_is_computed_already_is_refused_with_what_would_do() -> None:
    private = begun()
    inputs, targets = next(iter(private.loader))
    computed: Any = losses(private.model, inputs, targets)
    with pytest.raises(InputError, match=r"step\(lambda: loss"):
        private.step(computed)
    assert private.ledger.entries == ()


class Sequences(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.memory, self.head = nn.LSTM(3, 4), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        states: Tensor = self.memory(x)[0]
        return self.head(states[:, -1])


@pytest.mark.parametrize("time", [2, 25], ids=["short", "as long as a piece"])
def test_a_batch_dimension_that_is_not_first_is_found_out(time: int) -> None:
    x = torch.randn(300, time, 3)
    with pytest.raises(UnsupportedLayer, match="batch"):
        begun(Sequences(), (x, tensor_rows()[1]))


def test_an_optimizer_that_lacks_a_trainable_parameter_is_refused() -> None:
    model = tanh_network(dropout=0.3)
    assert isinstance(model, nn.Sequential)
    optimizer = torch.optim.SGD(model[3].parameters(), lr=0.1)
    with pytest.raises(InputError, match=r"0\.weight, 0\.bias can be trained.*requires_grad_\(False\)"):
        make_private(model, optimizer, tensor_rows(), budget=BUDGET, rounds=2, batch_size=60)
    model[0].requires_grad_(False)
    private = make_private(model, optimizer, tensor_rows(), budget=BUDGET, rounds=2, batch_size=60)
    frozen = model[0].weight.clone() if isinstance(model[0].weight, Tensor) else None
    trained(private)
    assert frozen is not None
    torch.testing.assert_close(model[0].weight, frozen)


def test_steps_with_gradients_that_are_not_private_are_refused_whatever_optimizer_takes_them() -> None:
    model = tanh_network()
    before, private = flat_parameters(model), begun(model)
    other, inputs, targets = torch.optim.SGD(model.parameters(), lr=0.1), *tensor_rows()

    def mean() -> Any:
        loss = losses(model, inputs, targets).mean()
        loss.backward()  # type: ignore[no-untyped-call]
        return loss

    for optimizer in (private.optimizer, other):
        with pytest.raises(InputError, match="gradients that are not private"):  # noqa: PT012
            for _ in private.loader:
                optimizer.step(mean)
        mean()
        with pytest.raises(InputError, match="gradients that are not private"):  # noqa: PT012
            for _ in private.loader:
                optimizer.step()
        optimizer.zero_grad()
    assert torch.equal(flat_parameters(model), before)
    elsewhere = nn.Linear(1, 1)
    elsewhere(torch.ones(1)).backward()  # another model's optimizer is free, as that of a generator
    for _ in private.loader:
        torch.optim.SGD(elsewhere.parameters(), lr=0.1).step()
        break


def test_an_optimizer_of_sparse_gradients_is_refused() -> None:
    model = nn.Embedding(9, 2, sparse=True)
    ids = torch.zeros(20, dtype=torch.long)
    with pytest.raises(InputError, match="noise is added to every row"):
        make_private(model, torch.optim.SparseAdam(model.parameters()), (ids, ids), budget=BUDGET, rounds=1, batch_size=5)


def test_a_loader_may_be_entered_anew_for_each_batch() -> None:
    """As `next(iter(loader))` does: the rehearsal of the first batch ends in spite of it."""
    private = begun(rounds=4, physical_batch_size=300)
    for _ in range(3 + 3):  # two parts of the first batch, perhaps a third one, and all of it
        inputs, targets = next(iter(private.loader))
        private.step(lambda inputs=inputs, targets=targets: losses(private.model, inputs, targets))  # type: ignore[misc]
    assert private.rounds == 4
    whole = begun(rounds=4, physical_batch_size=300)
    assert torch.equal(flat_parameters(private.model), trained(whole))


def test_one_object_is_no_loader_and_no_triple() -> None:
    with pytest.raises(InputError, match=r"private = make_private\(…\)"):
        _, _, _ = begun()
    private = begun()
    assert len(private.loader.dataset) == 300


def test_a_budget_that_is_a_number_is_answered() -> None:
    with pytest.raises(InputError, match=r"Budget\(epsilon, delta\), such as"):
        begun(budget=3.0)


def test_an_optimizer_that_asks_for_more_gradients_is_refused() -> None:
    model = tanh_network(dropout=0.3)
    with pytest.raises(InputError, match="LBFGS"):
        make_private(model, torch.optim.LBFGS(model.parameters()), tensor_rows(), budget=BUDGET, rounds=2, batch_size=60)


def test_a_model_that_cannot_be_run_on_the_items_needs_a_batch_size() -> None:
    x, y = tensor_rows()
    with pytest.raises(InputError, match="physical_batch_size=…"):
        begun(tanh_network(dropout=0.3), (x[:, :5], y), physical_batch_size=None)


def test_a_loop_stops_when_the_ledger_holds_no_more() -> None:
    model = tanh_network(dropout=0.3)
    private = begun(model, ledger=Ledger(Budget(1.5, 1e-5)))
    with pytest.warns(PrivoptWarning, match="stopped after") as caught:
        trained(private)
    assert caught[0].filename == __file__
    assert 0 < private.rounds < ROUNDS
    assert private.ledger.epsilon() <= 1.5
    with pytest.raises(BudgetExceeded, match="not even one round"):
        trained(begun(tanh_network(dropout=0.3), ledger=private.ledger, budget=Budget(3.0, 1e-6), rounds=1))


@pytest.mark.parametrize("physical", [1, 25])
def test_a_closure_that_remembers_examples_is_refused_however_small_its_pieces_are(physical: int) -> None:
    """A running mean of inputs, as of a memory bank, brings examples into the losses of others."""
    private, mean = begun(physical_batch_size=physical), [torch.zeros(6)]

    def remembering(inputs: Tensor, targets: Tensor) -> Tensor:
        found = losses(private.model, inputs - mean[0], targets)
        mean[0] = 0.9 * mean[0] + 0.1 * inputs.mean(0)
        return found

    with pytest.raises(UnsupportedLayer, match="remembers"):  # noqa: PT012
        for inputs, targets in private.loader:
            private.step(functools.partial(remembering, inputs, targets))
    assert private.ledger.entries == ()


def test_a_loop_that_draws_outside_of_the_closure_is_not_resumed_though_its_pieces_are_single_examples() -> None:
    """Its replay would use the noise of one round for the losses of other random numbers."""
    private = begun(physical_batch_size=1, batch_size=3, rounds=3)
    for inputs, targets in private.loader:
        noisy = inputs + torch.randn_like(inputs)
        private.step(functools.partial(losses, private.model, noisy, targets))
    with pytest.warns(PrivoptWarning, match="cannot be loaded"):
        state = private.state_dict()
    with pytest.raises(InputError, match="draws random numbers outside"):
        begun(physical_batch_size=1, batch_size=3, rounds=3).load_state_dict(state)


def test_a_mask_as_long_as_a_batch_may_be_is_refused_before_it_is_paid() -> None:
    """Examples that go through a model apart would get a row of it each, in a batch that is as large as the mask."""

    class Attention(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.matrix, self.head = nn.Parameter(torch.eye(4)), nn.Linear(4, 2)

        def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
            scores = x @ self.matrix @ x.transpose(1, 2)
            scores = scores if mask is None else scores.masked_fill(mask, -1e9)
            return self.head((scores.softmax(-1) @ x).mean(1))

    torch.manual_seed(0)
    data = torch.randn(60, 6, 4), torch.arange(60) % 2
    mask = torch.ones(6, 6).triu(1).bool()

    ledger = Ledger()

    def train(mask: Tensor) -> Private:
        private = begun(model := Attention(), data, rounds=8, batch_size=6, physical_batch_size=12, ledger=ledger)
        for inputs, targets in private.loader:
            private.step(lambda x=inputs, y=targets: F.cross_entropy(model(x, mask), y, reduction="none"))  # type: ignore[misc]
        return private

    with pytest.raises(UnsupportedLayer, match=r"tensor of length 6 beside \d examples.*mask.unsqueeze"):
        train(mask)
    assert not ledger.entries
    assert train(mask.unsqueeze(0)).rounds == 8


# ---------------------------------------------------------------- killed and resumed


def saved(private: Private) -> dict[str, Any]:
    """As a file would hold it: only what `torch.load` reads without running code."""
    return dict(torch.load(io.BytesIO(written(private)), weights_only=True))


def written(private: Private) -> bytes:
    buffer = io.BytesIO()
    states = private.model.state_dict(), private.optimizer.state_dict(), private.state_dict()
    torch.save(dict(zip(("model", "optimizer", "private"), states, strict=True)), buffer)
    return buffer.getvalue()


def resumed(private: Private, state: dict[str, Any]) -> Private:
    private.model.load_state_dict(state["model"])
    private.optimizer.load_state_dict(state["optimizer"])
    private.load_state_dict(state["private"])
    return private


@pytest.mark.parametrize("at", [0, 1, 17, 39, 40])
@pytest.mark.parametrize("durable", [True, False])
def test_a_loop_goes_on_bit_for_bit_and_pays_once(at: int, durable: bool, tmp_path: Path) -> None:
    whole = begun(seed=7)
    wanted = trained(whole)

    def ledger() -> Ledger:
        return Ledger(path=tmp_path / "ledger.jsonl") if durable else Ledger()

    with ledger() as first:
        private = begun(seed=7, ledger=first)
        state = saved(private)

        def after(updated: bool) -> None:
            nonlocal state
            if updated and private.rounds == at:
                state = saved(private)

        trained(private, after)  # goes on after it was saved, as a killed loop would have
    with ledger() as second:
        again = resumed(begun(seed=99, ledger=second), state)
        assert again.rounds == at
        with nullcontext() if at < ROUNDS else pytest.warns(PrivoptWarning, match="all 40 rounds that were planned are done"):
            assert torch.equal(trained(again), wanted)
        assert second.event == whole.ledger.event
        assert again.statement().event == whole.statement().event
        assert again.epsilon() == whole.epsilon()


def test_inside_a_round_the_state_is_that_before_it() -> None:
    wanted = trained(begun())
    private = begun()
    states = []

    def after(updated: bool) -> None:
        if private.rounds == 3 and not updated:
            states.append(saved(private))

    trained(private, after)
    assert torch.equal(trained(resumed(begun(seed=1), states[0])), wanted)


def other_optimizer(state: dict[str, Any]) -> None:
    state["optimizer"]["param_groups"][0]["lr"] = 0.5


def other_model(state: dict[str, Any]) -> None:
    state["model"]["0.bias"] += 1


def other_format(state: dict[str, Any]) -> None:
    state["private"]["format"] = "something else"


@pytest.mark.parametrize("spoil", [other_optimizer, other_model, other_format])
def test_a_state_that_would_not_repeat_the_answers_is_refused(spoil: Callable[[dict[str, Any]], None]) -> None:
    private = begun()
    trained(private)
    state = saved(private)
    spoil(state)
    with pytest.raises(InputError, match=r"not as it was|format"):
        trained(resumed(begun(), state))


@pytest.mark.parametrize(
    "settings", [{"clip_bound": 2.0}, {"batch_size": 50}, {"dataset": (tensor_rows()[0] + 1, tensor_rows()[1])}]
)
def test_resuming_with_other_data_or_settings_is_refused(settings: dict[str, Any]) -> None:
    state = saved(begun())
    with pytest.raises(PrivoptError, match="not those that this state was saved with"):
        resumed(begun(**settings), state)


class Counting(nn.Module):
    """A model that counts its calls and keeps what it computed; a hook logs."""

    def __init__(self) -> None:
        super().__init__()
        self.network, self.calls, self.kept, self.log = tanh_network(dropout=0.3), 0, torch.zeros(0), list[float]()
        self.network.register_forward_hook(lambda module, given, output: self.log.append(float(output.detach().norm())))

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        self.kept = found = self.network(x)
        return found * 1


def test_a_model_that_counts_its_calls_goes_on() -> None:
    private, states = begun(Counting(), rounds=4), []

    def after(updated: bool) -> None:
        if private.rounds == 2 and updated:
            states.append(saved(private))

    wanted = trained(private, after)
    assert torch.equal(trained(resumed(begun(Counting(), rounds=4), states[0])), wanted)


def test_what_differs_from_a_saved_state_is_named() -> None:
    state = saved(begun())
    with pytest.raises(InputError, match=r"\(different: data\)"):
        resumed(begun(dataset=(tensor_rows()[0] + 1, tensor_rows()[1])), state)
    with pytest.raises(InputError, match=r"\(different: settings\)"):
        resumed(begun(clip_bound=2.0), state)
    with pytest.raises(InputError, match=r"\(different: model's code\)"):
        resumed(begun(nn.Sequential(*list(tanh_network(dropout=0.3).children())[:2], nn.Dropout(0.1), nn.Linear(8, 2))), state)


def test_a_model_that_cannot_be_told_is_trained_but_not_saved() -> None:
    model = tanh_network(dropout=0.3)
    model.guard = threading.Lock()  # type: ignore[assignment]
    private = begun(model, rounds=2)
    trained(private)
    with pytest.raises(InputError, match="a lock has no value"):
        private.state_dict()


class Augmented(Dataset[Any]):
    """Examples that are moved by numbers of Python's and NumPy's global generators."""

    def __len__(self) -> int:
        return 300

    def __getitem__(self, place: int) -> tuple[Tensor, Tensor]:
        x, y = tensor_rows()
        return x[place] + random.random() + np.random.rand(), y[place]  # noqa: NPY002


def test_a_resumed_loop_repeats_the_numbers_of_python_and_numpy() -> None:
    private = begun(dataset=Augmented(), rounds=3)
    state = saved(private)
    wanted = trained(private)
    random.seed(3)
    np.random.seed(3)  # noqa: NPY002
    assert torch.equal(trained(resumed(begun(dataset=Augmented(), rounds=3), state)), wanted)


def trained_with_noise(private: Private) -> None:
    """A loop that draws random numbers itself."""
    for inputs, targets in private.loader:
        moved = inputs + torch.randn_like(inputs)
        private.step(lambda moved=moved, targets=targets: losses(private.model, moved, targets))  # type: ignore[misc]


def test_a_loop_that_draws_random_numbers_is_not_replayed() -> None:
    private = begun(rounds=2)
    early = saved(private)
    trained_with_noise(private)
    with pytest.warns(PrivoptWarning, match="cannot be loaded: the loop draws random numbers"):
        late = saved(private)
    with pytest.raises(InputError, match="the loop draws random numbers"):
        resumed(begun(rounds=2), late)
    ledger = Ledger()
    again = resumed(begun(rounds=2, ledger=ledger), early)  # when nobody knew
    with pytest.raises(InputError, match="the loop draws random numbers"):
        trained_with_noise(again)
    assert ledger.entries == ()
    assert torch.equal(flat_parameters(again.model), flat_parameters(tanh_network(dropout=0.3)))


def test_a_state_is_loaded_before_the_first_batch() -> None:
    private = begun()
    state = saved(private)
    trained(private)
    with pytest.raises(InputError, match="before the first batch"):
        private.load_state_dict(state["private"])


def _train(folder: Path, seconds: float) -> None:
    import time

    torch.set_num_threads(1)
    with Ledger(path=folder / "ledger.jsonl") as ledger:
        private = begun(seed=None, ledger=ledger)
        file = folder / "state.pt"
        if file.exists():
            resumed(private, torch.load(file, weights_only=True))

        def save() -> None:
            write_atomically(file, written(private), private=True)

        def after(updated: bool) -> None:
            if updated and private.rounds % 4 == 0:
                save()
            time.sleep(seconds)

        save()
        end = trained(private, after)
        torch.save(end, folder / f"end{private.rounds}.pt")


@one_fork_server
def test_a_killed_loop_ends_as_one_that_was_not(tmp_path: Path) -> None:
    """Killed with `kill -9` wherever it is, three times: the ledger holds every round once, and the state leads to one end."""
    for kill in range(3):
        before = size(tmp_path / "ledger.jsonl")
        process = started(_train, tmp_path, 0.01)
        wait_for(lambda: (tmp_path / "state.pt").exists())
        if kill == 0:
            wait_for(lambda before=before: size(tmp_path / "ledger.jsonl") > before + 300)  # type: ignore[misc]
        else:
            process.join(0.3)
        killed(process)
    content = (tmp_path / "state.pt").read_bytes()
    ends = []
    for _ in range(2):
        (tmp_path / "state.pt").write_bytes(content)
        _train(tmp_path, 0.0)
        ends.append(torch.load(tmp_path / f"end{ROUNDS}.pt", weights_only=True))
    assert torch.equal(ends[0], ends[1])
    ledger = Ledger.read(tmp_path / "ledger.jsonl")
    assert sum(entry.count for entry in ledger.entries) == ROUNDS
    assert ledger.epsilon(1e-5) <= 3.0


def test_a_fork_may_not_go_on_with_a_loop() -> None:
    """It has the same generator: its noise would be the parent's, on another batch perhaps."""
    private = begun()
    batches = iter(private.loader)
    next(batches)
    child = os.fork()
    if child == 0:
        try:
            next(batches)
        except InputError:
            os._exit(0)
        os._exit(1)
    assert os.waitpid(child, 0)[1] == 0


# ---------------------------------------------------------------- a round that was begun is spent, whatever happens in it


class Broken(Exception):
    """Something in the loop."""


def broken() -> Tensor:
    raise Broken


def fail(private: Private, pieces: int = 1) -> None:
    """Fail in the piece with this number of the next round."""
    private._check.done = True  # without a rehearsal
    loader = iter(private.loader)
    for _ in range(pieces - 1):
        inputs, targets = next(loader)
        private.step(lambda inputs=inputs, targets=targets: losses(private.model, inputs, targets))  # type: ignore[misc]
    next(loader)
    with pytest.raises(Broken) as caught:
        private.step(broken)
    assert "is spent, without an update" in "".join(caught.value.__notes__)


@pytest.mark.parametrize("piece", [1, 2])
def test_a_round_that_fails_is_spent_and_the_rest_is_done(piece: int) -> None:
    private = begun(rounds=5)
    start = flat_parameters(private.model)
    fail(private, piece)
    assert private.rounds == 1
    assert torch.equal(flat_parameters(private.model), start)
    assert all(parameter.grad is None for parameter in private.model.parameters())
    with pytest.raises(InputError, match="uses a batch of the loader"):
        private.step(lambda: losses(private.model, *tensor_rows(25)))
    trained(private)
    assert private.rounds == 5
    assert private.statement().settings["rounds without an update"] == 1
    assert sum(entry.count for entry in private.ledger.entries) == 5
    assert private.epsilon() <= 3.0


def test_a_round_that_is_left_before_its_first_step_comes_again_for_free() -> None:
    private = begun(rounds=3)
    first = next(iter(private.loader))
    again = next(iter(private.loader))
    assert torch.equal(first[0], again[0])
    assert private.ledger.entries == ()
    assert torch.equal(trained(private), trained(begun(rounds=3)))
    assert "rounds without an update" not in private.statement().settings


def test_a_round_that_is_left_after_its_first_step_is_spent_with_a_warning() -> None:
    private = begun(rounds=3)
    private._check.done = True  # without a rehearsal
    inputs, targets = next(iter(private.loader))
    assert not private.step(lambda: losses(private.model, inputs, targets))
    with pytest.warns(PrivoptWarning, match="left inside a round.*spent") as caught:
        trained(private)
    assert caught[0].filename == __file__
    assert private.rounds == 3
    assert private.statement().settings["rounds without an update"] == 1


def test_a_round_belongs_to_one_loop() -> None:
    private = begun(rounds=3)
    first, second = iter(private.loader), iter(private.loader)
    next(first)
    inputs, targets = next(second)
    with pytest.raises(InputError, match="entered again"):
        next(first)
    private.step(lambda: losses(private.model, inputs, targets))
    with pytest.raises(InputError, match="call it once for each"):
        private.step(lambda: losses(private.model, inputs, targets))


def test_a_step_inside_a_step_or_in_another_thread_is_refused() -> None:
    private = begun(rounds=3)
    inputs, targets = next(iter(private.loader))
    refused: list[str] = []

    def nested() -> Tensor:
        def again() -> None:
            try:
                private.step(lambda: losses(private.model, inputs, targets))
            except InputError as error:
                refused.append(str(error))

        thread = threading.Thread(target=again)
        thread.start()
        thread.join()
        again()
        return losses(private.model, inputs, targets)

    private.step(nested)
    assert refused
    assert all("one thread at a time" in message for message in refused)


def test_an_optimizer_that_fails_leaves_no_gradient_and_no_second_answer() -> None:
    private = begun(rounds=3, physical_batch_size=100)

    def stop(*_: Any) -> None:
        broken()

    hook = private.optimizer.register_step_post_hook(stop)
    with pytest.raises(Broken):
        trained(private)
    hook.remove()
    assert private.rounds == 1
    assert all(parameter.grad is None for parameter in private.model.parameters())
    trained(private)
    assert sum(entry.count for entry in private.ledger.entries) == 3


def test_after_a_failure_a_state_that_was_saved_before_is_another_run() -> None:
    """Its rounds were not answered here, and those that were answered here are paid for apart from it."""
    private = begun(rounds=40)
    state = saved(private)
    fail(private)
    assert private.rounds == 16  # what was paid ahead is left to the state
    trained(private)
    assert sum(entry.count for entry in private.ledger.entries) == private.rounds == 40
    assert private.statement().event == private.ledger.event
    again = resumed(begun(rounds=40, ledger=private.ledger), state)
    assert torch.equal(trained(again), trained(begun(rounds=40)))
    assert sum(entry.count for entry in private.ledger.entries) == 40 + 24


def test_a_state_that_is_saved_after_a_failure_goes_on_from_there() -> None:
    private = begun(rounds=40)
    saved(private)
    fail(private)
    state = saved(private)
    wanted = trained(private)
    with Ledger() as other:
        again = resumed(begun(rounds=40, ledger=other), state)
        assert again.rounds == 16
        assert torch.equal(trained(again), wanted)
        assert again.statement().event == private.statement().event == other.event


def test_a_model_with_another_forward_is_not_resumed() -> None:
    class Halved(nn.Linear):
        def forward(self, input: Tensor) -> Tensor:  # noqa: A002
            return super().forward(input) / 2

    private = begun()
    other = tanh_network(dropout=0.3)
    assert isinstance(other, nn.Sequential)
    other[3] = Halved(8, 2)
    with pytest.raises(InputError, match="model's code"):
        resumed(begun(other), saved(private))


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, pickle.dumps])
def test_a_loop_is_not_copied(copied: Callable[[Private], object]) -> None:
    """A copy shares the ledger's run: the same round, paid once, would be answered twice."""
    with pytest.raises(InputError, match=r"second answer.*state_dict"):
        copied(begun())
