"""One example's loss depends on no other's: what mixes is refused before anything is paid, and its honest neighbours train."""

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn
from torch.nn.utils.parametrizations import spectral_norm
from torch.nn.utils.rnn import pack_padded_sequence
from torch.utils.checkpoint import checkpoint as recomputed

from privopt import Budget
from privopt.errors import InputError
from privopt.nets import Private, UnsupportedLayer, clipped_sum, fit, make_private, per_example_norms
from privopt.perexample.networks import TorchGrads, TorchOracle
from tests.perexample.networks.reference import assert_grads, one_at_a_time, squared, targets_for
from tests.problems import cross_entropies, tanh_network, tensor_rows

BUDGET = Budget(3.0, 1e-5)
X, Y = tensor_rows(60)
WEIGHTS = torch.tensor([1.0, 50.0])

Closure = Callable[[nn.Module, Tensor, Tensor], Tensor]


def private(model: nn.Module, data: Any = (X, Y), **settings: Any) -> Private:
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1)
    given = {"budget": BUDGET, "rounds": 2, "batch_size": 60, "physical_batch_size": 60, "accountant": "rdp", "seed": 0}
    return make_private(model, optimizer, data, **(given | settings))


def run(loop: Private, closure: Closure) -> Private:
    for inputs, targets in loop.loader:
        loop.step(lambda inputs=inputs, targets=targets: closure(loop.model, inputs, targets))  # type: ignore[misc]
    return loop


# ---------------------------------------------------------------- loops of the user's own


def mixup(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return cross_entropies(model((x + x[torch.randperm(len(x))]) / 2), y)


def weighted(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return cross_entropies(model(x), y) * WEIGHTS[y] / WEIGHTS[y].sum()


def stretched(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return (model(x)[:, :1] - x[:, 0]).square().mean(1)


MIXING: dict[str, Closure] = {
    "inputs less their mean": lambda model, x, y: cross_entropies(model(x - x.mean(0)), y),
    "inputs standardised": lambda model, x, y: cross_entropies(model((x - x.mean(0)) / x.std(0)), y),
    "inputs mixed up": mixup,
    "attention over the batch": lambda model, x, y: cross_entropies(model((x @ x.T).softmax(1) @ x), y),
    "a mean of outputs, detached": lambda model, x, y: cross_entropies(model(x) - model(x).mean(0).detach(), y),
    "losses relative to their mean": lambda model, x, y: (
        cross_entropies(model(x), y) / cross_entropies(model(x), y).detach().mean()
    ),
    "weights that sum to one": weighted,
    "numbers that are stretched": stretched,
    "the row before": lambda model, x, y: cross_entropies(model(x + x.roll(1, 0)), y),
    "a little of the mean": lambda model, x, y: cross_entropies(model(x + 3e-4 * x.mean(0)), y),
}


@pytest.mark.filterwarnings("ignore:std")  # of one example
@pytest.mark.parametrize("name", MIXING)
@pytest.mark.parametrize("spoilt", [False, True], ids=["", "one example is no number"])
def test_a_loop_that_mixes_is_refused_and_the_batch_is_put_back(name: str, spoilt: bool) -> None:
    x = X.clone()
    x[3, 2] = torch.nan if spoilt else 0.0
    model = tanh_network()
    before = [parameter.detach().clone() for parameter in model.parameters()]
    loop, seen = private(model, (x, Y)), list[Any]()

    def closure(model: nn.Module, inputs: Tensor, targets: Tensor) -> Tensor:
        seen.append((inputs, targets))
        return MIXING[name](model, inputs, targets)

    with pytest.raises(UnsupportedLayer, match=r"depends on other examples.*mixes examples"):
        run(loop, closure)
    assert loop.ledger.entries == ()
    torch.testing.assert_close(seen[-1], (x, Y), rtol=0, atol=0, equal_nan=True)
    torch.testing.assert_close(list(model.parameters()), before)


def jittered(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """Random numbers of torch, numpy and Python."""
    return cross_entropies(model(x * random.random() + torch.rand(1) * np.random.rand()), y)  # noqa: NPY002


def in_place(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return cross_entropies(model(x.mul_(0.5)), y.bitwise_xor_(torch.ones_like(y)))


def of_two_views(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return (model(x) - model(x.flip(1))).square().sum(1)


HONEST: dict[str, Closure] = {
    "losses": lambda model, x, y: cross_entropies(model(x), y),
    "inputs only": lambda model, x, y: model(x).square().sum(1),
    "targets only": lambda model, x, y: cross_entropies(model(torch.ones(len(y), 6)), y),
    "a siamese network": of_two_views,
    "weights of classes": lambda model, x, y: cross_entropies(model(x), y) * WEIGHTS[y],
    "another type": lambda model, x, y: cross_entropies(model(x.double().float()), y.int().long()),
    "jitter": jittered,
    "dropout": lambda model, x, y: cross_entropies(model(F.dropout(x, 0.5)), y),
    "a batch that is changed in place": in_place,
    "inputs normalised each": lambda model, x, y: cross_entropies(model(x / x.norm(dim=1, keepdim=True)), y),
}


@pytest.mark.parametrize("name", HONEST)
def test_a_loop_whose_examples_are_each_for_themselves_trains(name: str) -> None:
    assert run(private(tanh_network()), HONEST[name]).rounds == 2


def test_checking_changes_no_step() -> None:
    """A model that changes its batch in place, with dropout and a memory of its weights, is the same after a check or without."""
    ends = []
    for checked in (False, True):
        torch.manual_seed(0)
        model = nn.Sequential(spectral_norm(nn.Linear(6, 8)), nn.Dropout(0.5), nn.Linear(8, 2))
        model[0].parametrizations.weight.original.requires_grad_(False)  # type: ignore[union-attr]
        loop = private(model)
        loop._check.done = checked
        run(loop, in_place)
        ends.append(torch.cat([value.reshape(-1) for value in model.state_dict().values()]))
    assert torch.equal(*ends)


def test_losses_that_cannot_be_told_are_checked_in_the_next_round() -> None:
    loop = private(tanh_network(), rounds=3)

    def closure(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        return cross_entropies(model(x - x.mean(0) + (torch.nan if loop.rounds == 0 else 0.0)), y)

    with pytest.raises(UnsupportedLayer, match="depends on other examples"):
        run(loop, closure)
    assert loop.rounds == 1


def test_batches_of_one_are_checked_alone_where_no_piece_has_more() -> None:
    loop = private(tanh_network(), rounds=1, physical_batch_size=1)
    assert run(loop, HONEST["losses"]).rounds == 1
    assert loop._check.done


def test_a_closure_with_a_generator_of_its_own_is_told_what_to_use() -> None:
    generator = torch.Generator()
    with pytest.raises(UnsupportedLayer, match=r"computed again.*generator of its own"):
        run(private(tanh_network()), lambda model, x, y: cross_entropies(model(x + torch.rand(1, generator=generator)), y))


def test_dicts_and_nested_batches_are_looked_into() -> None:
    items = [{"a": {"x": X[i]}, "y": (Y[i], "a text")} for i in range(60)]
    model = tanh_network()
    for mixes in (False, True):
        loop = private(model, items, rounds=1)

        def train(loop: Private = loop, mixes: bool = mixes) -> None:
            for batch in loop.loader:
                x, y = batch["a"]["x"], batch["y"][0]
                loop.step(lambda x=x, y=y: cross_entropies(model(x - x.mean(0) * mixes), y))  # type: ignore[misc]

        if mixes:
            with pytest.raises(UnsupportedLayer, match="depends on other examples"):
                train()
        else:
            train()
            assert loop.rounds == 1


# ---------------------------------------------------------------- models that are fitted


class Uses(nn.Module):
    """A model of two layers, used in some way."""

    def __init__(self, use: Callable[..., Tensor], *more: nn.Module, width: int = 6) -> None:
        super().__init__()
        self.first, self.last, self.more = nn.Linear(width, 8), nn.Linear(8, 2), nn.ModuleList(more)
        self._use = use

    def forward(self, *inputs: Tensor) -> Tensor:
        return self._use(self, *inputs)

    def plain(self, x: Tensor) -> Tensor:
        return self.last(self.first(x).tanh())


class OwnBatchNorm(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(width))
        self.register_buffer("variance", torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        return F.batch_norm(x, self.mean, self.variance, training=self.training)  # type: ignore[arg-type]


def centred_logarithms(m: Uses, x: Tensor) -> Tensor:
    hidden = m.first(x.log())
    return m.last(hidden - hidden.mean(0))


def averaged(shift: int) -> Callable[[Uses, Tensor], Tensor]:
    def use(m: Uses, x: Tensor) -> Tensor:
        hidden = m.first(x)
        return m.last((hidden + hidden.roll(shift, 0)).tanh())

    return use


def mixed_in_training(m: Uses, x: Tensor) -> Tensor:
    return m.plain((x + x[torch.randperm(len(x))]) / 2 if m.training else x)


MIXING_MODELS: dict[str, Callable[[], nn.Module]] = {
    "standardised, so that one alone is no number": lambda: Uses(lambda m, x: m.plain((x - x.mean(0)) / x.std(0))),
    "logarithms, so that some are no numbers": lambda: Uses(centred_logarithms),
    "a batch norm of the user's own": lambda: nn.Sequential(nn.Linear(6, 8), OwnBatchNorm(8), nn.Linear(8, 2)),
    "mixed up in training": lambda: Uses(mixed_in_training),
    "a little of the mean": lambda: Uses(lambda m, x: m.plain(x + 3e-4 * x.mean(0))),
    "a means over the batch, detached": lambda: Uses(lambda m, x: m.plain(x) - m.plain(x).mean(0).detach()),
    **{f"{k} rows above": lambda k=k: Uses(averaged(k)) for k in (1, 3, 5, 7)},  # type: ignore[misc]
}


def fitted(model: nn.Module, data: Any = (X, Y), loss: Any = None) -> None:
    fit(model, loss or nn.CrossEntropyLoss(), data, budget=BUDGET, rounds=1, batch_size=60, accountant="rdp", progress=False)


@pytest.mark.filterwarnings("ignore:std")  # of one example
@pytest.mark.parametrize("name", MIXING_MODELS)
def test_a_model_that_mixes_is_refused_and_stays_as_it_was(name: str) -> None:
    model = MIXING_MODELS[name]()
    before = {key: value.clone() for key, value in model.state_dict().items()}
    with pytest.raises(UnsupportedLayer, match="mixes examples"):
        fitted(model, (X.abs() + 0.1, Y))
    torch.testing.assert_close(model.state_dict(), before)


def test_a_model_that_is_finite_nowhere_is_told_so() -> None:
    with pytest.raises(UnsupportedLayer, match=r"not finite, so it cannot be checked.*away from 0"):
        fitted(Uses(lambda m, x: m.plain((-x.abs()).log())))


def steps_of(x: Tensor) -> Tensor:
    """Two numbers at a time."""
    return x.view(len(x), -1, 2)


def sorted_by_length(mark: float) -> Callable[..., Tensor]:
    """What is missing is marked, and sequences are sorted by what is there, as old code does for packed ones."""

    def use(m: Uses, x: Tensor) -> Tensor:
        order = (steps_of(x) != mark).any(2).sum(1).sort(descending=True, stable=True).indices
        return m.last(m.more[0](steps_of(x)[order])[1][-1][order.argsort()])

    return use


def only_what_is_there(m: Uses, x: Tensor) -> Tensor:
    there = (steps_of(x) != 0).any(2)
    rows = x.new_zeros(len(x), 3, 8)
    rows[there] = m.more[0](steps_of(x)[there]).tanh()
    return m.last(rows.mean(1))


MARKED_MODELS: dict[str, Callable[[], nn.Module]] = {
    "sorted by zeros": lambda: Uses(sorted_by_length(0.0), nn.GRU(2, 8, batch_first=True)),
    "sorted by minus ones": lambda: Uses(sorted_by_length(-1.0), nn.GRU(2, 8, batch_first=True)),
    "rows that are not zero": lambda: Uses(only_what_is_there, nn.Linear(2, 8)),
}


@pytest.mark.filterwarnings("ignore:this model is exact but slow")
@pytest.mark.parametrize("name", MARKED_MODELS)
def test_a_model_that_looks_for_marks_and_then_takes_rows_in_another_order_is_run_one_by_one(name: str) -> None:
    """No made-up number is such a mark by chance; the user's data are full of them."""
    marked = X[:9].clone()
    for place in range(9):
        marked[place, : place % 5] = (0.0, -1.0)[place % 2]
    assert_trains_exactly(MARKED_MODELS[name](), marked)


def assert_trains_exactly(model: nn.Module, inputs: Any) -> None:
    """The gradients that a check allows are those of each example alone."""
    targets = targets_for(model, inputs)
    oracle = TorchOracle(model, squared, inputs, targets)
    grads = oracle(None, None)
    assert isinstance(grads, TorchGrads)
    assert_grads(grads, one_at_a_time(model, inputs, targets))


def drawn_in_forward(m: Uses, x: Tensor) -> Tensor:
    return m.plain(x + torch.randn_like(x)) if m.training else m.plain(x)


HONEST_MODELS: dict[str, Callable[[], nn.Module]] = {
    "dropout": lambda: nn.Sequential(nn.Linear(6, 8), nn.Dropout(0.5), nn.Linear(8, 2)),
    "noise in training": lambda: Uses(drawn_in_forward),
    "logarithms": lambda: Uses(lambda m, x: m.plain(x.log())),
    "a spectral norm, frozen": lambda: nn.Sequential(spectral_norm(nn.Linear(6, 8)).requires_grad_(False), nn.Linear(8, 2)),
    "marks, each example for itself": lambda: Uses(lambda m, x: m.plain(torch.where(x == -1, 0.0, x)) / (x != 0).sum(1, True)),
    "two views": lambda: Uses(lambda m, x: m.plain(x) * m.plain(x.flip(1))),
    "inputs that are changed in place": lambda: Uses(lambda m, x: m.plain(x.clamp_(-1, 1))),
    "a fixed batch norm": lambda: nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8).eval(), nn.Linear(8, 2)),
}


@pytest.mark.parametrize("name", HONEST_MODELS)
def test_a_model_whose_examples_are_each_for_themselves_is_fitted(name: str) -> None:
    fitted(HONEST_MODELS[name](), (X.abs() + 0.1, Y))


@pytest.mark.parametrize("batch_size", [60, 20], ids=["full", "sampled"])
@pytest.mark.parametrize("piece", [None, 7], ids=["whole", "in pieces"])
def test_a_model_that_changes_its_inputs_in_place_leaves_the_user_s_data_alone(batch_size: int, piece: int | None) -> None:
    """Each round sees the data as they are: the in-place model and a pure one are trained alike."""

    def trained(use: Callable[..., Tensor], x: Tensor) -> dict[str, Tensor]:
        torch.manual_seed(0)
        model, settings = Uses(use), {"batch_size": batch_size, "physical_batch_size": piece, "accountant": "rdp", "seed": 1}
        fit(model, nn.CrossEntropyLoss(), (x, Y), budget=BUDGET, rounds=3, progress=False, **settings)  # type: ignore[arg-type]
        return model.state_dict()

    x = X.clone()
    found = trained(lambda m, x: m.plain(x.mul_(0.5) if m.training else x), x)
    torch.testing.assert_close(x, X, rtol=0, atol=0)
    torch.testing.assert_close(found, trained(lambda m, x: m.plain(x * 0.5 if m.training else x), x))


def packed(m: Uses, x: Tensor) -> Tensor:
    lengths = (x > 0).sum(1).clamp(min=1)
    steps = pack_padded_sequence(x[..., None], lengths, batch_first=True, enforce_sorted=False)
    return m.last(m.more[0](steps)[1][0][-1]) + 0 * m.first(x).sum(1, keepdim=True)


@pytest.mark.parametrize("by_loop", [False, True], ids=["fit", "loop"])
@pytest.mark.parametrize("kind", ["attention", "memory"])
def test_layers_that_draw_dropout_in_an_order_of_their_own_train(kind: str, by_loop: bool) -> None:
    if kind == "memory":
        model: nn.Module = Uses(packed, nn.LSTM(1, 8, 2, batch_first=True, dropout=0.5))
    else:
        layer = nn.TransformerEncoderLayer(6, 2, 8, dropout=0.5, batch_first=True)
        model = nn.Sequential(nn.Unflatten(1, (1, 6)), layer, nn.Flatten(), nn.Linear(6, 2))
    if by_loop:
        run(private(model), HONEST["losses"])
    else:
        fitted(model)


def test_a_model_is_fitted_where_gradients_are_turned_off() -> None:
    with torch.no_grad():
        fitted(tanh_network())


def test_recomputed_layers_that_hide_are_refused_in_first_place_as_well() -> None:
    def use(m: Uses, x: Tensor) -> Tensor:
        return m.last(recomputed(m.first, x.clone().requires_grad_(), use_reentrant=True).tanh())

    with pytest.raises(UnsupportedLayer, match="use_reentrant=False"):
        fitted(Uses(use))


# ---------------------------------------------------------------- rows that are selected or sorted by what is in them


def marked(m: Uses, x: Tensor, mask: Tensor) -> Tensor:
    """A head on the marked tokens only."""
    scores = torch.zeros(*mask.shape, 2).to(x)
    scores[mask] = m.last(m.first(x).tanh()[mask])
    return scores.sum(1)


def beyond(m: Uses, x: Tensor) -> Tensor:
    return marked(m, x, x[..., 0] > 4)


def by_mask(m: Uses, x: Tensor, mask: Tensor) -> Tensor:
    return (m.plain(x) * mask[..., None]).sum(1)


def attending(m: Uses, x: Tensor, mask: Tensor) -> Tensor:
    return m.plain(m.more[0](x, x, x, key_padding_mask=mask & mask.logical_not().any(1, keepdim=True))[0].sum(1))


def by_length(m: Uses, tokens: Tensor) -> Tensor:
    lengths, order = (tokens != 0).sum(1).clamp(min=1).sort(descending=True)
    packed = pack_padded_sequence(m.more[0](tokens[order]), lengths, batch_first=True)
    return m.last(m.more[1](packed)[1][0][-1][order.argsort()])


def of_lengths(m: Uses, x: Tensor, lengths: Tensor) -> Tensor:
    packed = pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
    return m.last(m.more[0](packed)[1][0][-1])


TOKENS, MASK = torch.randn(60, 5, 4), torch.rand(60, 5) < 0.5


def items(*inputs: Tensor) -> list[Any]:
    return [(tuple(x[i] for x in inputs), Y[i]) for i in range(60)]


@pytest.mark.filterwarnings("ignore:this model is exact but slow")
def test_rows_that_are_selected_or_sorted_by_content_are_exact() -> None:
    """They are put back in their places, so no example's loss depends on another's."""
    assert_trains_exactly(Uses(marked, width=4), (TOKENS[:7], MASK[:7]))
    assert_trains_exactly(Uses(beyond, width=4), TOKENS[:7] * 4)
    for time in (5, 7, 12):
        model = Uses(by_length, nn.Embedding(50, 4, padding_idx=0), nn.LSTM(4, 8, batch_first=True)).requires_grad_(True)
        model.first.requires_grad_(False)
        assert_trains_exactly(model, torch.randint(0, 50, (7, time)))


def test_masks_and_lengths_may_be_inputs() -> None:
    fitted(Uses(by_mask, width=4), items(TOKENS, MASK))
    attention = nn.MultiheadAttention(4, 2, batch_first=True)
    fitted(Uses(attending, attention, width=4), items(TOKENS, MASK))
    fitted(Uses(of_lengths, nn.LSTM(4, 8, batch_first=True)), items(TOKENS, torch.randint(1, 6, (60,))))


# ---------------------------------------------------------------- what is not a parameter, and models that change


class Remembers(nn.Module):
    """A model that keeps something, changed by what it is given."""

    def __init__(self, keep: Callable[[Tensor, Tensor], Tensor], *, frozen: bool = False) -> None:
        super().__init__()
        self.inner, self._keep = nn.Linear(6, 2), keep
        if frozen:
            self.kept = nn.Parameter(torch.zeros(6), requires_grad=False)
        else:
            self.register_buffer("kept", torch.zeros(6))

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.kept.data = self._keep(self.kept, x.detach())
        return self.inner(x)


def average(kept: Tensor, x: Tensor) -> Tensor:
    return 0.999 * kept + 0.001 * x.mean(0)


def count(kept: Tensor, x: Tensor) -> Tensor:
    return kept + 1


@pytest.mark.parametrize("frozen", [False, True], ids=["buffer", "frozen parameter"])
@pytest.mark.parametrize("by_loop", [False, True], ids=["fit", "loop"])
def test_what_remembers_examples_without_noise_is_refused_by_name(frozen: bool, by_loop: bool) -> None:
    model = Remembers(average, frozen=frozen)
    with pytest.raises(UnsupportedLayer, match="kept keeps something of the examples"):
        run(private(model), HONEST["losses"]) if by_loop else fitted(model)
    assert not model.kept.any()
    model = Remembers(count, frozen=frozen)
    run(private(model), HONEST["losses"]) if by_loop else fitted(model)
    assert bool((model.kept == (2 if by_loop else 1)).all())


@pytest.mark.parametrize("table", [nn.Embedding, nn.EmbeddingBag])
def test_a_table_that_examples_change_is_refused_if_it_is_frozen_as_well(table: type[nn.Module]) -> None:
    frozen = table(9, 4, max_norm=1.0).requires_grad_(False)
    with pytest.raises(UnsupportedLayer, match=rf"0 \({table.__name__}\) has max_norm.*max_norm=None"):
        fitted(nn.Sequential(frozen, nn.Flatten(), nn.Linear(4, 2)), (torch.ones(60, 1, dtype=torch.long), Y))


def insert(model: nn.Sequential) -> None:
    model[1] = nn.BatchNorm1d(8, affine=False)


def assign(model: nn.Sequential) -> None:
    model.load_state_dict({key: value.clone() for key, value in model.state_dict().items()}, assign=True)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (insert, "the modules of the model are not those"),
        (lambda model: model.append(nn.Linear(2, 2)), "the modules of the model are not those"),
        (lambda model: model[0].register_parameter("bias", None), "the parameters of 0 are not those"),
        (assign, "the parameters of 0 are not those"),
        (lambda model: model[2].requires_grad_(False), r"2\.weight\.requires_grad has changed"),
    ],
    ids=["inserted", "appended", "removed", "assigned", "frozen"],
)
def test_a_model_that_is_changed_after_it_was_attached_is_refused(change: Callable[[Any], None], message: str) -> None:
    loop = private(tanh_network(), rounds=3)
    for x, y in loop.loader:
        if loop.step(lambda x=x, y=y: cross_entropies(loop.model(x), y)):  # type: ignore[misc]
            break
    change(loop.model)
    with pytest.raises(InputError, match=rf"{message}.*call make_private after"):
        run(loop, HONEST["losses"])
    assert loop.rounds == 1


class Learns(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.temperature = nn.Parameter(torch.ones(()))

    def forward(self, output: Tensor, targets: Tensor) -> Tensor:
        return cross_entropies(output * self.temperature, targets)


def test_a_loss_that_would_be_trained_is_refused() -> None:
    with pytest.raises(InputError, match=r"Learns\) has trainable parameters"):
        fitted(tanh_network(), loss=Learns())
    fitted(tanh_network(), loss=Learns().requires_grad_(False))


# ---------------------------------------------------------------- functions for research


def test_raw_norms_and_sums_of_what_mixes_are_refused() -> None:
    model, loss = Uses(lambda m, x: m.plain(x - x.mean(0))), nn.CrossEntropyLoss()
    with pytest.raises(UnsupportedLayer, match="mixes examples"):
        per_example_norms(model, loss, X, Y)
    with pytest.raises(UnsupportedLayer, match="mixes examples"):
        clipped_sum(model, loss, X, Y, 1.0)


def test_arguments_that_are_named_count() -> None:
    """Weights of a bag, given by name, scale its gradient."""
    bags = Uses(lambda m, ids, weights: m.more[0](ids, per_sample_weights=weights), nn.EmbeddingBag(9, 2, mode="sum"))
    ids, weights = torch.tensor([[1, 2], [3, 4]]), torch.tensor([[3.0, 4.0], [0.0, 2.0]])
    norms = per_example_norms(bags, lambda output: output[:, 0], (ids, weights))
    torch.testing.assert_close(norms, weights.norm(dim=1))
