"""What one example's loss depends on: mixing is put into separable models in many ways and places, and found each time.

The models, the places and the ways are multiplied out, so the check is not written for the cases that it is tried on.
"""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from privopt import Budget, Ledger
from privopt.errors import InputError
from privopt.nets import UnsupportedLayer, clipped_sum, fit, make_private
from privopt.perexample.networks import TorchOracle, per_example_gradients
from privopt.perexample.networks.unsupported import SlowModel
from tests.problems import cross_entropies, tanh_network, tensor_rows

BUDGET = Budget(3.0, 1e-5)
MIXED = "depends on other examples|not those of each example alone"

Mix = Callable[[Tensor], Tensor]


def sizes(x: Tensor) -> Tensor:
    """One number for each row, in the shape of a column."""
    return x.flatten(1).square().sum(1).view(-1, *[1] * (x.ndim - 1))


MIXES: dict[str, Mix] = {
    "less the mean": lambda x: x - x.mean(0),
    "by the largest": lambda x: x / (1 + x.detach().abs().amax()),
    "divided by the size of the batch": lambda x: x / len(x),
    "plus the next row": lambda x: x + 0.1 * x.roll(1, 0),
    "a little of the mean": lambda x: x + 1e-5 * x.mean(0),
    "the mean, in the gradient only": lambda x: x + (x.mean(0) - x.mean(0).detach()),
    "the mean, in the value only": lambda x: x + x.mean(0).detach(),
    "sorted": lambda x: x[sizes(x).flatten().argsort()],
    "if some row is small": lambda x: x + (sizes(x) < 1e-6).any() * x.mean(0),
    "if some row is large": lambda x: x + (sizes(x) > 1e5).any() * x.mean(0),
    "if a Python number says so": lambda x: x - x.mean(0) if float(x.detach().sum()) > 0 else x,
    "first row twice": lambda x: torch.cat([x[:1], x[:1] + 0 * x[1:2], x[2:]]) if len(x) > 1 else x,
}


class Dense(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(6, 5), nn.Linear(5, 2)

    def forward(self, x: Tensor, mix: Mix, place: str) -> Tensor:
        x = mix(x) if place == "inputs" else x
        hidden = self.first(x).tanh()
        return self.last(mix(hidden) if place == "hidden" else hidden)


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cells, self.last = nn.LSTM(6, 5, batch_first=True), nn.Linear(5, 2)

    def forward(self, x: Tensor, mix: Mix, place: str) -> Tensor:
        x = x.unsqueeze(1) * torch.tensor([1.0, -0.5, 0.25]).to(x).view(1, -1, 1)
        hidden = self.cells(mix(x) if place == "inputs" else x)[0]
        return self.last((mix(hidden) if place == "hidden" else hidden).mean(1))


class Gated(nn.Module):
    """Mixing begins when a gate, which is 0 at the start, has learnt to open."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last, self.gate = nn.Linear(6, 5), nn.Linear(5, 2), nn.Parameter(torch.zeros(()))

    def forward(self, x: Tensor, mix: Mix, place: str) -> Tensor:
        x = x + self.gate * (mix(x) - x) if place == "inputs" else x
        hidden = self.first(x).tanh()
        return self.last(hidden + self.gate * (mix(hidden) - hidden) if place == "hidden" else hidden)


class Dwarfed(nn.Module):
    """Mixing happens in a branch that is a million times smaller than another."""

    def __init__(self) -> None:
        super().__init__()
        self.large, self.small = nn.Linear(6, 2), Dense()

    def forward(self, x: Tensor, mix: Mix, place: str) -> Tensor:
        return 1e6 * self.large(x) + self.small(x, mix, place)


class Spoilt(nn.Module):
    def __init__(self, inner: nn.Module, mix: Mix, place: str) -> None:
        super().__init__()
        self.inner, self.mix, self.place = inner, mix, place

    def forward(self, x: Tensor) -> Tensor:
        output: Tensor = self.inner(x, self.mix, self.place)
        return self.mix(output) if self.place == "outputs" else output


MODELS = {"dense": Dense, "recurrent": Recurrent, "gated": Gated, "dwarfed": Dwarfed}


def linear(output: Tensor, targets: Tensor) -> Tensor:
    return (output * (1.5 + targets.unsqueeze(1))).sum(1)


def places(mix: str, model: str) -> list[str]:
    """Where a way to mix has an effect: inputs have no gradient, units of tanh are neither tiny nor huge."""
    if mix.startswith("if some row"):
        return ["inputs"]
    hidden = ["hidden"] if mix == "the mean, in the gradient only" else ["inputs", "hidden"]
    return hidden if model in ("gated", "dwarfed") else [*hidden, "outputs"]


@pytest.mark.parametrize(
    ("mix", "model", "place"), [(mix, model, place) for mix in MIXES for model in MODELS for place in places(mix, model)]
)
def test_mixing_is_found_in_every_place_of_every_model(mix: str, model: str, place: str) -> None:
    torch.manual_seed(0)
    inner = MODELS[model]()
    with pytest.raises(UnsupportedLayer, match=MIXED):
        TorchOracle(Spoilt(inner, MIXES[mix], place), linear, torch.randn(20, 6), torch.zeros(20))


@pytest.mark.parametrize("model", MODELS)
def test_the_same_models_are_proved_without_it(model: str) -> None:
    torch.manual_seed(0)
    oracle = TorchOracle(Spoilt(MODELS[model](), lambda x: 2 * x, "hidden"), linear, torch.randn(20, 6), torch.zeros(20))
    assert oracle.doubts == []


# ---------------------------------------------------------------- text


class Text(nn.Module):
    """The mean of a sequence's embeddings, of what is left after trimming."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.last = nn.Embedding(9, 4), nn.Linear(4, 2)

    def trim(self, ids: Tensor) -> Tensor:
        return ids

    def forward(self, ids: Tensor) -> Tensor:
        return self.last(self.table(self.trim(ids)).mean(1))


class TrimmedTogether(Text):
    """Padding that all rows of the batch share is cut off, and the mean is over what is left."""

    def trim(self, ids: Tensor) -> Tensor:
        return ids[:, : max(1, int((ids != 0).any(0).sum()))]


class TrimmedByOnes(Text):
    def trim(self, ids: Tensor) -> Tensor:
        return ids[:, : max(1, int((ids != 1).any(0).sum()))]


class MaskedTogether(Text):
    """The same without Python numbers."""

    def forward(self, ids: Tensor) -> Tensor:
        kept = (ids != 0).any(0).to(self.table.weight.dtype)
        return self.last((self.table(ids) * kept.view(1, -1, 1)).sum(1) / kept.sum().clamp_min(1))


class Guarded(Text):
    """Separable, but a Python number is read from the data."""

    def trim(self, ids: Tensor) -> Tensor:
        if int(ids.max()) > 9:
            raise ValueError("there are nine words")
        return ids


IDS = torch.randint(0, 9, (40, 7), generator=torch.Generator().manual_seed(0))
LABELS = IDS[:, 0] % 2


def settings(**more: Any) -> dict[str, Any]:
    return {"budget": BUDGET, "rounds": 2, "batch_size": 20, "accountant": "rdp", "seed": 0, "progress": False, **more}


@pytest.mark.parametrize("model", [TrimmedTogether, TrimmedByOnes, MaskedTogether])
def test_padding_that_a_batch_shares_may_not_be_trimmed(model: type[nn.Module]) -> None:
    ledger = Ledger()
    with pytest.raises(UnsupportedLayer, match=MIXED):
        fit(model(), nn.CrossEntropyLoss(), (IDS, LABELS), ledger=ledger, **settings())
    assert not ledger.entries


def test_what_is_only_checked_is_said_with_the_line_that_makes_it_so() -> None:
    private = fit(Guarded(), nn.CrossEntropyLoss(), (IDS, LABELS), **settings()).privacy
    (assumed,) = private.statement.assumed
    assert "not proved, because a tensor is read as a Python number" in assumed
    assert "test_isolation.py, line" in assumed
    assert "if int(ids.max()) > 9:" in assumed
    assert "Assumed (checked, but not proved):\n  - each example's loss" in str(private)


def test_a_model_that_vmap_runs_has_nothing_assumed() -> None:
    assert fit(Text(), nn.CrossEntropyLoss(), (IDS, LABELS), **settings()).privacy.statement.assumed == []


def test_only_proofs_will_do_if_they_are_asked_for() -> None:
    fit(Text(), nn.CrossEntropyLoss(), (IDS, LABELS), independence="proved", **settings())
    ledger = Ledger()
    with pytest.raises(UnsupportedLayer, match=r"not proved.*read as a Python number"):
        fit(Guarded(), nn.CrossEntropyLoss(), (IDS, LABELS), independence="proved", ledger=ledger, **settings())
    assert not ledger.entries
    with pytest.raises(InputError, match="'checked' or 'proved'"):
        fit(Text(), nn.CrossEntropyLoss(), (IDS, LABELS), independence="hoped", **settings())  # type: ignore[arg-type]


def test_a_check_leaves_the_model_as_it_was() -> None:
    model = nn.Sequential(nn.Linear(6, 4), nn.Dropout(), nn.GRU(4, 3, 2, dropout=0.5, batch_first=True))
    before = {name: value.clone() for name, value in model.state_dict().items()}
    TorchOracle(model, lambda output: output[0].flatten(1).sum(1), torch.randn(4, 5, 6))
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert all(value.dtype == torch.float32 for value in model.state_dict().values())
    assert model[2].dropout == 0.5


class SinglePrecision(nn.Module):
    """Code that insists on single precision cannot be checked in double, and still trains."""

    def __init__(self) -> None:
        super().__init__()
        self.last = nn.Linear(6, 2)
        self.shift = [torch.ones(6)]

    def forward(self, x: Tensor) -> Tensor:
        return self.last(torch.stack([x, self.shift[0].expand_as(x).to(torch.float32)]).sum(0).to(torch.float32))


def test_a_model_in_single_precision_only_is_checked_as_well() -> None:
    assert any(
        "single precision" in doubt for doubt in TorchOracle(SinglePrecision(), linear, torch.randn(9, 6), torch.zeros(9)).doubts
    )
    model = nn.Sequential(SinglePrecision(), Mean())
    with pytest.raises(UnsupportedLayer, match=MIXED):
        TorchOracle(model, linear, torch.randn(9, 6), torch.zeros(9))


class Mean(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x - x.mean(0)


# ---------------------------------------------------------------- tables that look like a batch


class Shifted(nn.Module):
    """A raw parameter times the example, and one times a table that all examples share."""

    def __init__(self) -> None:
        super().__init__()
        self.scale, self.own = nn.Parameter(torch.zeros(3)), nn.Parameter(torch.ones(3))

    def forward(self, x: Tensor, table: Tensor) -> Tensor:
        return self.own * x + (self.scale * table).sum(0)


class WithTable(nn.Module):
    def __init__(self, rows: int) -> None:
        super().__init__()
        self.shifted, self.last = Shifted(), nn.Linear(3, 1)
        self.register_buffer("table", torch.randn(rows, 3, generator=torch.Generator().manual_seed(1)))

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.shifted(x, self.table))


@pytest.mark.parametrize("spoilt", [False, True], ids=["", "one example is infinite"])
@pytest.mark.parametrize("rows", [4, 5])
def test_a_shared_table_with_as_many_rows_as_examples_is_not_taken_for_the_batch(rows: int, spoilt: bool) -> None:
    model, x = WithTable(rows), torch.randn(5, 3, generator=torch.Generator().manual_seed(0))
    if spoilt:
        x[2] = torch.inf
    found = per_example_gradients(model, lambda output: output.squeeze(1), x).dense()
    for i in (0, 1, 3, 4):
        own = torch.autograd.grad(model(x[i : i + 1]).sum(), list(model.parameters()))
        assert torch.allclose(found[i], torch.cat([part.reshape(-1) for part in own]), atol=1e-6)


# ---------------------------------------------------------------- loops of the user's own

X, Y = tensor_rows(60)


def losses(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(model(x), y, reduction="none")


def inside(step: Any, model: nn.Module, x: Tensor, y: Tensor) -> None:
    step(lambda: losses(model, x, y) / len(x))


def outside(step: Any, model: nn.Module, x: Tensor, y: Tensor) -> None:
    count = len(x)
    step(lambda: losses(model, x, y) / count)


def before(step: Any, model: nn.Module, x: Tensor, y: Tensor) -> None:
    centred = x - x.mean(0)
    step(lambda: losses(model, centred, y))


def weighted(step: Any, model: nn.Module, x: Tensor, y: Tensor) -> None:
    weights = (y == 1).float() / (y == 1).sum().clamp_min(1)
    step(lambda: losses(model, x, y) * (0.1 + weights))


def converted(step: Any, model: nn.Module, x: Tensor, y: Tensor) -> None:
    doubled = 2 * x
    step(lambda: losses(model, doubled, y))


def plain(step: Any, model: nn.Module, x: Tensor, y: Tensor) -> None:
    step(lambda: losses(model, x, y))


def noisy(step: Any, model: nn.Module, x: Tensor, y: Tensor) -> None:
    augmented = x + torch.randn_like(x)
    step(lambda: losses(model, augmented, y))


def loop(body: Any, model: nn.Module | None = None, **more: Any) -> Any:
    model = model or tanh_network(dropout=0.1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    given = {"budget": BUDGET, "rounds": 3, "batch_size": 30, "accountant": "rdp", "seed": 0, "ledger": Ledger()}
    private = make_private(model, optimizer, (X, Y), **(given | more))
    for x, y in private.loader:
        body(private.step, model, x, y)
    return private


@pytest.mark.parametrize("body", [inside, outside, before, weighted])
def test_a_loop_that_lets_the_size_or_the_rest_of_its_batch_in_is_refused(body: Any) -> None:
    ledger = Ledger()
    with pytest.raises(UnsupportedLayer, match=MIXED):
        loop(body, ledger=ledger)
    assert not ledger.entries


@pytest.mark.parametrize("body", [plain, converted])
def test_an_honest_loop_is_rehearsed_and_trains(body: Any) -> None:
    private = loop(body)
    assert private.rounds == 3
    assert private.statement().assumed == [
        "each example's loss depends on that example only; not proved, because the losses are computed by the loop's own code"
    ]


def test_rehearsals_count_for_nothing() -> None:
    """Two pieces more are handed out, the model does not move with them, and nothing is paid."""
    seen: list[tuple[int, bool]] = []

    def body(step: Any, model: nn.Module, x: Tensor, y: Tensor) -> None:
        seen.append((len(x), bool(step(lambda: losses(model, x, y)))))

    private = loop(body)
    assert [size for size, _ in seen[:3]] == [2, (seen[2][0] + 1) // 2, seen[2][0]]
    assert [updated for _, updated in seen] == [False, False, True, True, True]
    assert private.ledger.entries[0].count == 3


def test_a_loop_that_draws_random_numbers_itself_is_said_to_be_unchecked() -> None:
    assert any("draws random numbers outside" in item for item in loop(noisy).statement().assumed)


def test_a_gate_that_is_closed_at_the_start_hides_no_mixing_from_a_loop() -> None:
    with pytest.raises(UnsupportedLayer, match=MIXED):
        loop(plain, Spoilt(Gated(), MIXES["less the mean"], "hidden"))


def test_loops_cannot_be_proved() -> None:
    with pytest.raises(UnsupportedLayer, match="loop's own code"):
        loop(plain, independence="proved")


# ---------------------------------------------------------------- dependence at values that nobody makes up


class LongestInBatch(Text):
    """A sum over words, divided by the largest number of words in the batch; padding is an unusual word."""

    def forward(self, ids: Tensor) -> Tensor:
        words = (ids != 5).to(self.table.weight.dtype)
        return self.last((self.table(ids) * words.unsqueeze(2)).sum(1) / words.sum(1).max())


def balanced(output: Tensor, targets: Tensor) -> Tensor:
    share = (targets == 1).sum() / len(targets)
    return F.cross_entropy(output, targets, reduction="none") * torch.where(targets == 1, share, 1.0)


def of_words(output: Tensor, targets: Tensor) -> Tensor:
    """Relative to how many labels of the batch are not ignored; the check's random labels are all there."""
    kept = (targets != -77).to(output.dtype)
    return F.cross_entropy(output, targets.clamp_min(0), reduction="none") * kept / kept.mean()


class InLargeBatches(Text):
    def trim(self, ids: Tensor) -> Tensor:
        return ids.roll(1, 0) if len(ids) > 9 else ids


@pytest.mark.parametrize(
    ("model", "loss"),
    [(LongestInBatch, cross_entropies), (Text, balanced), (Text, of_words)],
    ids=["the longest of the batch", "the share of a class", "the number of words in a batch"],
)
def test_a_number_made_of_several_examples_may_not_reach_a_loss(model: type[nn.Module], loss: Any) -> None:
    with pytest.raises(UnsupportedLayer, match=MIXED):
        TorchOracle(model(), loss, IDS, LABELS)


class Imputing(nn.Module):
    """The mean of the batch where a number is missing: made-up numbers never are."""

    def __init__(self) -> None:
        super().__init__()
        self.last = nn.Linear(6, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(torch.where(x == -999, x.mean(0), x))


def test_what_combines_examples_without_an_effect_is_named_and_not_proved() -> None:
    (doubt,) = TorchOracle(Imputing(), linear, torch.randn(9, 6), torch.zeros(9)).doubts
    assert "combines the examples of a batch (mean at test_isolation.py, line" in doubt


def test_batches_of_several_sizes_are_compared() -> None:
    with pytest.raises(UnsupportedLayer, match=MIXED):
        TorchOracle(InLargeBatches(), cross_entropies, IDS, LABELS)


class InLongSequences(Text):
    """Mixes where sequences are long: most of what is made up is shorter, but not all of it."""

    def __init__(self, gradient: bool) -> None:
        super().__init__()
        self.gradient, self.seen = gradient, list[tuple[int, int]]()

    def forward(self, ids: Tensor) -> Tensor:
        self.seen.append((len(ids), ids.shape[1]))
        hidden = self.table(ids)
        if ids.shape[1] > 30 and self.gradient:
            hidden = hidden + (hidden.mean(0) - hidden.mean(0).detach())
        elif ids.shape[1] > 30:
            hidden = hidden + 1e-5 * hidden.mean(0)
        return self.last(hidden.mean(1))


@pytest.mark.parametrize("gradient", [False, True])
def test_mixing_of_long_sequences_only_is_found(gradient: bool) -> None:
    model, ids = InLongSequences(gradient), torch.randint(0, 9, (20, 64))
    with pytest.raises(UnsupportedLayer, match=MIXED):
        TorchOracle(model, cross_entropies, ids, ids[:, 0] % 2)
    assert {8, 64} <= {length for _, length in model.seen}


class Rolled(Text):
    def trim(self, ids: Tensor) -> Tensor:
        return ids.roll(len(ids), 0)  # as it was


class LongOnly(nn.Module):
    """Long sequences take another way, in which a value that none of the made-up ones has decides for the whole batch."""

    def __init__(self, decide: Mix) -> None:
        super().__init__()
        self.first, self.last, self.decide = nn.Linear(5, 8), nn.Linear(8, 3), decide

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.first(x).tanh()
        if x.shape[1] > 40:
            hidden = torch.where(self.decide(x), hidden - hidden.mean((0, 1)), hidden)
        return self.last(hidden.mean(1))


@pytest.mark.parametrize("decide", [lambda x: x.abs().amax() > 1e5, lambda x: (x == 0.25).sum() > 3])
def test_what_is_done_to_long_sequences_only_is_looked_at_in_long_ones(decide: Mix) -> None:
    x, y = torch.randn(4, 100, 5), torch.tensor([0, 1, 2, 0])
    try:
        doubts = TorchOracle(LongOnly(decide), nn.CrossEntropyLoss(), x, y).doubts
    except UnsupportedLayer:
        return
    assert any("combines the examples of a batch" in doubt for doubt in doubts)


class ManyOnly(nn.Module):
    """Subtracts the mean of a batch that is as large as none that is compared."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(6, 5), nn.Linear(5, 2)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.first(x).tanh()
        return self.last(hidden - hidden.mean(0) if len(x) > 13 else hidden)


def test_what_is_done_to_large_batches_only_is_named() -> None:
    (doubt,) = TorchOracle(ManyOnly(), nn.CrossEntropyLoss(), torch.randn(4, 6), torch.tensor([0, 1, 1, 0])).doubts
    assert "a batch of 16 examples" in doubt
    assert "hidden.mean(0)" in doubt


class ClippedGradient(nn.Module):
    """Shortens gradients inside of the model, by their length in the whole batch, if that is large."""

    def __init__(self, way: str) -> None:
        super().__init__()
        self.first, self.act, self.last, self.way = nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 2), way
        if way == "module":
            self.act.register_full_backward_hook(lambda module, given, out: tuple(map(self.shortened, given)))

    @staticmethod
    def shortened(gradient: Tensor) -> Tensor:
        return gradient * (100 / gradient.norm().clamp(min=1e-9)).clamp(max=1)

    def forward(self, x: Tensor) -> Tensor:
        hidden: Tensor = self.act(self.first(x))
        if self.way == "tensor" and hidden.requires_grad:
            hidden.register_hook(self.shortened)  # type: ignore[no-untyped-call]  # torch's is untyped
        return self.last(hidden)


@pytest.mark.parametrize("way", ["tensor", "module"])
def test_hooks_on_gradients_are_named(way: str) -> None:
    oracle = TorchOracle(ClippedGradient(way), nn.CrossEntropyLoss(), torch.randn(4, 6), torch.tensor([0, 1, 1, 0]))
    assert len(oracle.doubts) == 1
    assert "may change gradients" in oracle.doubts[0]


def test_operations_along_the_batch_are_named() -> None:
    doubts = TorchOracle(Rolled(), cross_entropies, IDS, LABELS).doubts
    assert any("combines the examples of a batch (roll" in doubt for doubt in doubts)


class LastWord(Text):
    """The word before the padding: each row is taken in its place."""

    def forward(self, ids: Tensor) -> Tensor:
        lengths = (ids != 0).sum(1).clamp_min(1)
        return self.last(self.table(ids)[torch.arange(len(ids)), lengths - 1])


class Attending(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table, self.layer = nn.Embedding(9, 8), nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
        self.last = nn.Linear(8, 2)

    def forward(self, ids: Tensor) -> Tensor:
        hidden = self.layer(self.table(ids), src_key_padding_mask=ids == 0)
        return self.last(hidden.mean(1))


@pytest.mark.parametrize("model", [LastWord, Attending])
def test_usual_text_models_are_proved(model: type[nn.Module]) -> None:
    assert TorchOracle(model(), cross_entropies, IDS, LABELS).doubts == []


# ---------------------------------------------------------------- random models


class Sampling(nn.Module):
    """Draws in its forward pass, in training and otherwise."""

    def __init__(self, draw: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.first, self.last, self.draw = nn.Linear(6, 5), nn.Linear(5, 2), draw

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.draw(self.first(x)))


DRAWS: dict[str, Callable[[Tensor], Tensor]] = {
    "normal numbers": lambda h: h + torch.randn_like(h),
    "torch.normal": lambda h: h + torch.normal(0.0, 1.0, h.shape).to(h),
    "whole numbers": lambda h: h * torch.randint(0, 2, h.shape),
    "gumbel": lambda h: F.gumbel_softmax(h),
    "units in any order": lambda h: h[:, torch.randperm(5)],
}


@pytest.mark.parametrize("name", DRAWS)
def test_models_that_draw_random_numbers_train_in_loops(name: str) -> None:
    assert loop(plain, Sampling(DRAWS[name])).rounds == 3


def test_random_numbers_inside_a_closure_are_no_mixing() -> None:
    def body(step: Any, model: nn.Module, x: Tensor, y: Tensor) -> None:
        step(lambda: losses(model, x.gather(1, torch.multinomial(torch.ones_like(x), 6)), y))

    assert any("closure draws random numbers" in item for item in loop(body).statement().assumed)


@pytest.mark.parametrize("decide", [lambda: bool(torch.rand(()) < 0.3), lambda: bool(torch.rand(1) > 0.8)])
def test_mixing_that_a_random_number_decides_on_is_found(decide: Callable[[], bool]) -> None:
    with pytest.raises(UnsupportedLayer, match=MIXED):
        TorchOracle(Sampling(lambda h: 0.5 * (h + h.flip(0)) if decide() else h), linear, torch.randn(20, 6), torch.zeros(20))


class Counting(nn.Module):
    """Mixes after so many calls that no check waits for it."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.calls = nn.Linear(6, 2), 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        found: Tensor = self.inner(x)
        return found if self.calls < 1000 else found - found.mean(0)


def test_a_model_that_counts_its_calls_is_not_proved() -> None:
    (doubt,) = TorchOracle(Counting(), linear, torch.randn(20, 6), torch.zeros(20)).doubts
    assert "count of calls" in doubt


class ByPrecision(nn.Module):
    """A weight is used a second time, outside of its layer, in one precision only: as a kernel that has no other."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.first, self.last, self.dtype = nn.Linear(6, 5), nn.Linear(5, 2), dtype

    def forward(self, x: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16, enabled=self.dtype == torch.bfloat16):
            hidden = self.first(x).tanh()
        if hidden.dtype == self.dtype:
            hidden = (hidden + 10 * F.linear(x, self.first.weight)).to(x.dtype)
        return self.last(hidden)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_what_a_model_does_in_its_own_precision_only_is_counted(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    model, x, y = ByPrecision(dtype), torch.randn(20, 6), torch.arange(20) % 2
    norms = TorchOracle(model, cross_entropies, x, y)(None, None).norms()
    for place, norm in enumerate(norms.tolist()):
        loss = F.cross_entropy(model(x[place : place + 1]), y[place : place + 1])
        own = torch.cat([part.flatten() for part in torch.autograd.grad(loss, list(model.parameters()))])
        assert norm == pytest.approx(float(own.norm()), rel=1e-2)


# ---------------------------------------------------------------- readings are not chosen by an example


def test_a_huge_example_does_not_change_how_the_others_are_read() -> None:
    model = WithTable(5)
    x = torch.randn(5, 3, generator=torch.Generator().manual_seed(0))
    x[0] = 1e9
    found = per_example_gradients(model, lambda output: output.squeeze(1), x).dense()
    own = torch.autograd.grad(model(x[3:4]).sum(), list(model.parameters()))
    assert torch.allclose(found[3], torch.cat([part.reshape(-1) for part in own]), atol=1e-5)


# ---------------------------------------------------------------- the check leaves the model as it was


class Windows(nn.Module):
    """A model that changes for good with the first short sequence, as Swin (its windows) and BigBird (its attention) do."""

    def __init__(self) -> None:
        super().__init__()
        self.window, self.inner, self.biases = 12, nn.Linear(1, 4), nn.Parameter(torch.zeros(12))
        self.long, self.short = nn.Linear(4, 2), nn.Linear(4, 2)
        self.last = self.long

    def forward(self, x: Tensor) -> Tensor:
        if x.shape[1] < self.window:
            self.window, self.last = x.shape[1], self.short
        weights = self.biases[: self.window].softmax(0)
        output: Tensor = self.last((self.inner(x[:, : self.window, None]).tanh() * weights[:, None]).sum(1))
        return output


def test_the_check_does_not_change_a_model_that_adapts_to_short_examples() -> None:
    torch.manual_seed(0)
    model, x, y = Windows(), torch.randn(5, 16), torch.tensor([0, 1, 1, 0, 1])
    found = clipped_sum(model, nn.CrossEntropyLoss(), x, y, 1e9)
    assert (model.window, model.last) == (12, model.long)
    F.cross_entropy(model(x), y, reduction="sum").backward()  # type: ignore[no-untyped-call]
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(found[name], torch.zeros_like(parameter) if parameter.grad is None else parameter.grad)


class Recomputed(nn.Module):
    """A block with dropout whose activations are computed again in the backward pass."""

    def __init__(self) -> None:
        super().__init__()
        self.block, self.last = nn.Sequential(nn.Linear(6, 8), nn.Dropout(0.5), nn.Tanh()), nn.Linear(8, 2)

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = self.last(checkpoint(self.block, x, use_reentrant=False))
        return scores


def test_gradient_checkpointing_of_dropout_trains_in_one_call_and_in_a_loop() -> None:
    fit(Recomputed(), nn.CrossEntropyLoss(), tensor_rows(), budget=BUDGET, rounds=2, batch_size=60, progress=False)
    model = Recomputed()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    private = make_private(model, optimizer, tensor_rows(), budget=BUDGET, rounds=2, batch_size=60)
    for inputs, targets in private.loader:
        private.step(lambda: F.cross_entropy(model(inputs), targets, reduction="none"))  # noqa: B023
    assert private.rounds == 2


def test_a_parameter_without_numbers_is_no_obstacle() -> None:
    class Empty(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner, self.none = nn.Linear(6, 2), nn.Parameter(torch.zeros(0, 3))

        def forward(self, x: Tensor) -> Tensor:
            scores: Tensor = self.inner(x) + self.none.sum()
            return scores

    x, y = tensor_rows(20)
    assert clipped_sum(Empty(), nn.CrossEntropyLoss(), x, y, 1.0)["none"].shape == (0, 3)


def test_a_norm_that_counts_its_passes_is_the_same_for_all_examples_of_a_batch() -> None:
    """Spectral normalisation makes a step of the power method in each training pass: one for a batch, however large it is."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.utils.parametrizations.spectral_norm(nn.Linear(6, 4)), nn.Tanh(), nn.Linear(4, 2))
    x, y = tensor_rows(5)
    singles, once = [copy.deepcopy(model) for _ in x], copy.deepcopy(model)
    with pytest.warns(SlowModel):
        found = clipped_sum(model, nn.CrossEntropyLoss(), x, y, 1e9)
    for place, single in enumerate(singles):
        F.cross_entropy(single(x[place : place + 1]), y[place : place + 1]).backward()  # type: ignore[no-untyped-call]
    for name, value in found.items():
        torch.testing.assert_close(value, sum(dict(single.named_parameters())[name].grad for single in singles))
    once(x)
    assert all(torch.equal(mine, other) for mine, other in zip(model.buffers(), once.buffers(), strict=True))
