"""DataLoader habits: epochs, padding, workers, dicts, and what a loader may not choose."""

import functools
from collections import UserDict, namedtuple
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn
from torch.utils.data import (
    DataLoader,
    Dataset,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
    default_collate,
)

from privopt import Budget, Ledger, fit, make_private
from privopt.errors import InputError, PrivoptError, PrivoptWarning
from privopt.nets import Private, UnsupportedLayer
from privopt.nets.loading import OWN_COLLATION
from privopt.perexample.networks import UnsupportedLoss
from tests.problems import flat_parameters, tanh_network, tensor_rows
from tests.stopped import StopAt, Stopped

BUDGET = Budget(3.0, 1e-5)
PAD = 0


def begun(model: nn.Module, data: Any, **settings: Any) -> Private:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    given: dict[str, Any] = {"budget": BUDGET, "rounds": 3, "accountant": "rdp", "seed": 5} | settings
    return make_private(model, optimizer, data, **given)


def trained(private: Private, losses: Callable[[Any], Tensor]) -> Tensor:
    for batch in private.loader:
        private.step(lambda batch=batch: losses(batch))  # type: ignore[misc]
    return flat_parameters(private.model)


def classified(model: nn.Module) -> Callable[[Any], Tensor]:
    return lambda batch: F.cross_entropy(model(batch[0]), batch[1], reduction="none")


# ---------------------------------------------------------------- epochs


def test_each_pass_of_the_loader_is_an_epoch() -> None:
    model = tanh_network()
    private = begun(model, tensor_rows(), rounds=None, epochs=2.5, batch_size=90)
    ends = []
    for _ in range(3):
        trained(private, classified(model))
        ends.append(private.rounds)
    assert ends == [3, 7, 8] == [*private._passes]  # 300 examples
    assert len(private.loader) == 3
    assert private.epoch == 3
    with pytest.warns(PrivoptWarning, match=r"all 8 rounds .* are done") as caught:
        assert list(private.loader) == []
    assert caught[0].filename == __file__
    assert sum(entry.count for entry in private.ledger.entries) == 8


def test_an_epoch_that_was_left_goes_on_in_the_next_pass() -> None:
    model = tanh_network()
    private = begun(model, tensor_rows(), rounds=None, epochs=2, batch_size=60)
    for batch in private.loader:
        if private.step(lambda batch=batch: classified(model)(batch)):  # type: ignore[misc]
            break
    trained(private, classified(model))
    assert private.rounds == 5
    assert private.epoch == 1


def test_epochs_draw_the_rounds_of_one_long_loop() -> None:
    """No round is repeated, and none is left out."""
    one, two = tanh_network(), tanh_network()
    whole = trained(begun(one, tensor_rows(), rounds=10, batch_size=60), classified(one))
    private = begun(two, tensor_rows(), rounds=None, epochs=2, batch_size=60)
    seen = []
    for _ in range(2):
        for batch in private.loader:
            if private.step(lambda batch=batch: classified(two)(batch)):  # type: ignore[misc]
                seen.append(batch[0])
    assert torch.equal(flat_parameters(two), whole)
    assert len({tuple(rows.flatten().tolist()) for rows in seen}) == 10


def test_a_loop_is_resumed_in_the_middle_of_an_epoch() -> None:
    settings: dict[str, Any] = {"rounds": None, "epochs": 2, "batch_size": 60}
    model = tanh_network()
    private = begun(model, tensor_rows(), **settings)
    for batch in private.loader:
        if private.step(lambda batch=batch: classified(model)(batch)) and private.rounds == 3:  # type: ignore[misc]
            break
    saved = private.state_dict(), {name: value.clone() for name, value in model.state_dict().items()}
    again = tanh_network()
    again.load_state_dict(saved[1])
    other = begun(again, tensor_rows(), **settings, ledger=private.ledger)
    other.load_state_dict(saved[0])
    passes = [trained(other, classified(again)) for _ in range(other.epoch, 2)]
    assert len(passes) == 2
    wanted = [trained(private, classified(model)) for _ in range(2)]
    assert torch.equal(passes[-1], wanted[-1])
    assert sum(entry.count for entry in private.ledger.entries) == 10


def tripled(items: list[Any]) -> Any:
    inputs, targets = default_collate(items)
    return 3 * inputs, targets


def seeded(worker: int) -> None:
    pass


@pytest.mark.parametrize("other", [{"collate_fn": tripled}, {"worker_init_fn": seeded}], ids=["collate_fn", "worker_init_fn"])
def test_a_state_is_not_replayed_with_another_loader(other: dict[str, Any]) -> None:
    """The same noise on batches that are put together in another way would reveal both."""

    def loop(**given: Any) -> Private:
        return begun(tanh_network(), DataLoader(TensorDataset(*tensor_rows()), batch_size=60, **given))

    state = loop().state_dict()
    loop().load_state_dict(state)
    with pytest.raises(InputError, match="different: loader's code"):
        loop(**other).load_state_dict(state)


def test_a_killed_fit_is_not_resumed_with_another_loader(tmp_path: Path) -> None:
    def train(**given: Any) -> Any:
        loader = DataLoader(TensorDataset(*tensor_rows()), batch_size=60, **given)
        settings: dict[str, Any] = {"budget": BUDGET, "rounds": 5, "seed": 0, "checkpoint": tmp_path / "state"}
        return fit(tanh_network(), nn.CrossEntropyLoss(), loader, **settings, progress=StopAt(2))

    with pytest.raises(Stopped):
        train()
    with pytest.raises(InputError, match="different: loader"):
        train(collate_fn=tripled)


# ---------------------------------------------------------------- what a loader says, and may not say


def test_a_loader_gives_its_dataset_and_batch_size() -> None:
    one, two = tanh_network(), tanh_network()
    loader = DataLoader(TensorDataset(*tensor_rows()), batch_size=60)
    wanted = trained(begun(one, tensor_rows(), batch_size=60), classified(one))
    assert torch.equal(trained(begun(two, loader), classified(two)), wanted)
    with pytest.raises(InputError, match="batch_size is 50, but 60 in the DataLoader"):
        begun(two, loader, batch_size=50)
    with pytest.raises(InputError, match="say how many examples"):
        begun(two, DataLoader(TensorDataset(*tensor_rows())))


ROWS = TensorDataset(*tensor_rows())
PAIRS = list(zip(*tensor_rows(), strict=True))


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"shuffle": True}, "has shuffle=True.*Poisson sample.*Leave shuffle out"),
        ({"sampler": RandomSampler(ROWS, replacement=True)}, "shuffle"),
        ({"sampler": WeightedRandomSampler([1.0] * 300, 300)}, "by weights.*drawn more often would cost more"),
        ({"sampler": SubsetRandomSampler(range(20))}, r"sampler of its own .SubsetRandomSampler.*Subset\(dataset, indices\)"),
        ({"sampler": DistributedSampler(ROWS, 2, 0)}, "own .DistributedSampler.*under torchrun each process gives all"),
        ({"batch_sampler": [[0, 1], [1, 2]], "batch_size": 1}, "makes its own batches .list"),
        ({"batch_size": None}, "makes its own batches .batch_size=None"),
    ],
)
@pytest.mark.parametrize("call", ["fit", "loop"])
def test_a_loader_that_chooses_examples_itself_is_refused_with_the_reason(settings: Any, reason: str, call: str) -> None:
    loader: DataLoader[Any] = DataLoader(ROWS, **({"batch_size": 60} | settings))
    ledger = Ledger()
    with pytest.raises(InputError, match=f"(?s){reason}"):  # noqa: PT012
        if call == "loop":
            begun(tanh_network(), loader, ledger=ledger)
        else:
            fit(tanh_network(), nn.CrossEntropyLoss(), loader, budget=BUDGET, rounds=1, ledger=ledger)
    assert ledger.entries == ()


def test_a_stream_and_a_table_are_answered() -> None:
    class Stream(IterableDataset[Any]):
        def __iter__(self) -> Any:
            return iter(ROWS)

    with pytest.raises(InputError, match="Stream has no length"):
        begun(tanh_network(), DataLoader(Stream(), batch_size=60))
    with pytest.raises(InputError, match="are a DataFrame, whose items are columns"):
        begun(tanh_network(), pd.DataFrame(tensor_rows()[0].numpy()), batch_size=60)


def test_the_batch_size_of_a_loader_that_accelerate_prepared_is_found() -> None:
    accelerate = pytest.importorskip("accelerate")
    model = tanh_network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    ours, theirs, loader = accelerate.Accelerator(cpu=True).prepare(model, optimizer, DataLoader(ROWS, batch_size=60))
    before = flat_parameters(model)
    private = make_private(ours, theirs, loader, budget=BUDGET, rounds=3, accountant="rdp")
    assert not torch.equal(trained(private, classified(ours)), before)
    assert private.statement().settings["batch size"] == "60 of 300 on average (Poisson)"


Pair = namedtuple("Pair", ["x", "y"])


class TwoInputs(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = tanh_network()

    def forward(self, left: Tensor, right: Tensor) -> Tensor:
        scores: Tensor = self.inner(left + right)
        return scores


@pytest.mark.parametrize(
    ("model", "data", "read"),
    [
        (tanh_network, [{"x": x, "labels": y} for x, y in PAIRS], lambda model, batch: (model(batch["x"]), batch["labels"])),
        (tanh_network, [Pair(x, y) for x, y in PAIRS], lambda model, batch: (model(batch.x), batch.y)),
        (TwoInputs, [(x, x, y) for x, y in PAIRS], lambda model, batch: (model(batch[0], batch[1]), batch[2])),
        (
            TwoInputs,
            [{"a": x, "b": x, "label": y} for x, y in PAIRS],
            lambda m, batch: (m(batch["a"], batch["b"]), batch["label"]),
        ),
    ],
    ids=["named", "named tuple", "several inputs", "several named inputs"],
)
def test_a_loop_may_give_the_model_its_inputs_by_name_or_by_place(model: Any, data: Any, read: Any) -> None:
    network = model()
    before = flat_parameters(network)
    private = begun(network, data, batch_size=60)

    def losses(batch: Any) -> Tensor:
        scores, targets = read(network, batch)
        return F.cross_entropy(scores, targets, reduction="none")

    after = trained(private, losses)
    assert private.rounds == 3
    assert not torch.equal(after, before)


def test_texts_may_be_tokenised_in_the_loop() -> None:
    texts = [("ab" if x[0] > 0 else "b", y) for x, y in PAIRS]
    model = nn.Linear(2, 2)
    private = begun(model, texts, batch_size=60, physical_batch_size=50)

    def losses(batch: Any) -> Tensor:
        counts = torch.tensor([[text.count("a"), text.count("b")] for text in batch[0]], dtype=torch.float32)
        return F.cross_entropy(model(counts), batch[1], reduction="none")

    trained(private, losses)
    assert private.rounds == 3


# ---------------------------------------------------------------- padding


class Sentences(Dataset[Any]):
    """Dicts as a tokenizer of Hugging Face gives them: sequences of different lengths."""

    def __len__(self) -> int:
        return 200

    def __getitem__(self, place: int) -> dict[str, Any]:
        ids = torch.randint(1, 9, (2 + place * 7 % 5,), generator=torch.Generator().manual_seed(place))
        return {"input_ids": ids, "labels": int(ids[0] > 4)}


def padded(items: list[dict[str, Any]]) -> UserDict[str, Any]:
    """A Mapping that is no dict, as BatchEncoding is none."""
    ids = nn.utils.rnn.pad_sequence([item["input_ids"] for item in items], batch_first=True, padding_value=PAD)
    return UserDict({"input_ids": ids, "attention_mask": ids != PAD, "labels": torch.tensor([item["labels"] for item in items])})


class Reader(nn.Module):
    """The mean of the embeddings of a sentence: of its own words, or, carelessly, of the padding too."""

    def __init__(self, *, masked: bool = True) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.words, self.head, self.masked = nn.Embedding(9, 4), nn.Linear(4, 2), masked

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        weights = attention_mask.to(self.words.weight.dtype).unsqueeze(2) if self.masked else torch.ones(1, 1, 1)
        own = self.words(input_ids) * weights
        counts = weights.expand(own.shape).sum(1).clamp_min(1)
        scores: Tensor = self.head(own.sum(1) / counts)
        return scores


def sentences(collate: Any = padded, **settings: Any) -> DataLoader[Any]:
    return DataLoader(Sentences(), batch_size=40, collate_fn=collate, **settings)


def read(model: nn.Module) -> Callable[[Any], Tensor]:
    def losses(batch: Any) -> Tensor:
        scores = model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"])
        return F.cross_entropy(scores, batch["labels"], reduction="none")

    return losses


def test_padded_batches_of_dicts_train_in_a_loop() -> None:
    model = Reader()
    before = flat_parameters(model)
    private = begun(model, sentences())
    assert not torch.equal(trained(private, read(model)), before)
    assert any(OWN_COLLATION in line for line in private.statement().assumed)


def test_padded_batches_of_dicts_train_in_one_call() -> None:
    model = Reader()
    before = flat_parameters(model)
    fitted = fit(model, nn.CrossEntropyLoss(), sentences(), budget=Budget(8.0, 1e-4), rounds=20, seed=0, progress=False)
    assert not torch.equal(flat_parameters(model), before)
    assert any(OWN_COLLATION in line for line in fitted.privacy.statement.assumed)
    assert fitted.privacy.statement.settings["batch size"] == "40 of 200 on average (Poisson)"


def test_a_model_that_reads_the_padding_is_refused_before_anything_is_paid() -> None:
    """The longest example of a batch would decide the gradients of the others."""
    private = begun(Reader(masked=False), sentences())
    with pytest.raises(UnsupportedLayer, match="depends on other examples"):
        trained(private, read(private.model))
    assert private.ledger.entries == ()
    ledger = Ledger()
    with pytest.raises(UnsupportedLayer, match="padding that collate_fn adds"):
        fit(Reader(masked=False), nn.CrossEntropyLoss(), sentences(), budget=BUDGET, rounds=2, ledger=ledger)
    assert ledger.entries == ()


def counting(items: list[dict[str, Any]]) -> dict[str, Any]:
    return {**padded(items), "count": len(items)}


def centred(items: list[Tensor]) -> Tensor:
    batch = torch.stack(items)
    return batch - batch.mean(0)


def mixed(items: list[Any]) -> Any:
    x, y = torch.utils.data.default_collate(items)
    return (x + x.flip(0)) / 2, y


@pytest.mark.parametrize(
    ("data", "collate"),
    [(Sentences(), counting), (ROWS, mixed), (list(tensor_rows()[0]), centred)],
    ids=["count", "mixup", "mean"],
)
def test_a_collate_fn_that_mixes_examples_is_refused(data: Any, collate: Any) -> None:
    with pytest.raises(UnsupportedLayer, match="collate_fn gives an example other values"):
        begun(tanh_network(), DataLoader(data, batch_size=40, collate_fn=collate), physical_batch_size=20)


def listed(items: list[Any]) -> Any:
    return [x for x, _ in items], torch.stack([y for _, y in items])


def test_a_collate_fn_that_gives_a_list_of_examples_is_answered() -> None:
    with pytest.raises(UnsupportedLayer, match="a list with an entry for each example"):
        begun(tanh_network(), DataLoader(ROWS, batch_size=40, collate_fn=listed))


def test_examples_of_different_shapes_are_answered_without_their_lengths() -> None:
    private = begun(
        nn.Linear(1, 1), [(torch.zeros(2 + place % 3), 0) for place in range(40)], batch_size=20, physical_batch_size=20
    )
    with pytest.raises(InputError, match="Pad them to one shape") as caught:
        next(iter(private.loader))
    assert "[" not in str(caught.value)


def masking(items: list[dict[str, Any]]) -> dict[str, Any]:
    """As a collator of masked language models: it draws at random."""
    batch = dict(padded(items))
    drawn = torch.bernoulli(torch.full(batch["input_ids"].shape, 0.3)).bool() & batch["attention_mask"]
    return {**batch, "input_ids": torch.where(drawn, 1, batch["input_ids"])}


def test_a_collate_fn_may_draw_random_numbers() -> None:
    model = Reader()
    private = begun(model, sentences(masking))
    trained(private, read(model))
    assert private.rounds == 3


# ---------------------------------------------------------------- workers


class Augmented(Dataset[Any]):
    """Examples that are moved by numbers of torch's global generator."""

    def __len__(self) -> int:
        return 300

    def __getitem__(self, place: int) -> Any:
        x, y = tensor_rows()
        return x[place] + 0.1 * torch.randn(x.shape[1]), y[place]


def test_workers_read_what_one_process_reads_with_the_same_random_numbers() -> None:
    models = [tanh_network() for _ in range(2)]
    found = [
        trained(
            begun(model, DataLoader(Augmented(), batch_size=60, num_workers=workers), physical_batch_size=25), classified(model)
        )
        for model, workers in zip(models, (0, 2), strict=True)
    ]
    assert torch.equal(*found)


def test_workers_read_only_the_round_that_is_drawn() -> None:
    """What is read ahead is of a round whose payment comes with its first step."""
    model = tanh_network()
    private = begun(model, DataLoader(Augmented(), batch_size=60, num_workers=2), physical_batch_size=25)
    private._check.done = True  # without a rehearsal
    batches = iter(private.loader)
    next(batches)
    assert not private.ledger.entries
    assert private._open is not None
    assert len(private._examples._tasks) == len(private._open.parts)
    first = next(iter(private.loader))[0]  # the round was left before it was begun, and comes again
    private._check.done = True
    again: Any = private._open
    assert len(first) == len(again.parts[0])
    trained(private, classified(model))
    assert private.rounds == 3
    paid = [entry.count for entry in private.ledger.entries]
    assert sum(paid) == 3


def test_workers_in_one_call_are_answered() -> None:
    with pytest.warns(PrivoptWarning, match="num_workers is for loops"):
        fit(Reader(), nn.CrossEntropyLoss(), sentences(num_workers=1), budget=BUDGET, rounds=1, progress=False)


# ---------------------------------------------------------------- losses inside the model


class WithLoss(nn.Module):
    """A model that computes a mean loss if it is given labels, as those of Hugging Face do."""

    def __init__(self) -> None:
        super().__init__()
        self.reader = Reader()

    def forward(self, input_ids: Tensor, attention_mask: Tensor, labels: Tensor | None = None) -> dict[str, Any]:
        scores = self.reader(input_ids, attention_mask)
        return {"logits": scores, "loss": None if labels is None else F.cross_entropy(scores, labels)}


def test_a_loss_computed_inside_the_model_is_refused_with_what_to_write() -> None:
    private = begun(WithLoss(), sentences())
    with pytest.raises(UnsupportedLoss, match=r"mean over the batch: compute losses from its outputs, output\.logits"):
        trained(private, lambda batch: private.model(**batch)["loss"])
    assert private.ledger.entries == ()
    with pytest.raises(PrivoptError, match="logits"):
        fit(WithLoss(), lambda output, labels: output["loss"], sentences(), budget=BUDGET, rounds=1)


def test_a_loss_of_an_output_with_logits_is_answered_with_what_to_write() -> None:
    class Named(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = tanh_network()

        def forward(self, x: Tensor) -> SimpleNamespace:
            return SimpleNamespace(logits=self.inner(x))

    with pytest.raises(InputError, match=r"loss\(output\.logits, targets\)"):
        fit(Named(), nn.CrossEntropyLoss(), tensor_rows(), budget=BUDGET, rounds=1)


def test_a_dict_without_labels_is_answered() -> None:
    items = [{"x": torch.zeros(3), "y": 1}] * 10
    with pytest.raises(InputError, match=r"entries x, y, but none is named 'labels'"):
        fit(nn.Linear(3, 2), nn.CrossEntropyLoss(), items, budget=BUDGET, rounds=1)


# ---------------------------------------------------------------- noise that is chosen


def test_a_noise_multiplier_is_taken_as_it_is_and_the_statement_says_what_it_costs() -> None:
    model = tanh_network()
    private = begun(model, tensor_rows(), budget=None, noise_multiplier=1.3, delta=1e-4, batch_size=60)
    trained(private, classified(model))
    same = begun(tanh_network(), tensor_rows(), budget=Budget(private.statement().epsilon, 1e-4), batch_size=60)
    assert private.noise_multiplier == 1.3
    assert same.noise_multiplier == pytest.approx(1.3, rel=0.01)  # calibrate ∘ account
    assert "noise multiplier 1.3" in str(private.statement())
    fitted = fit(
        tanh_network(),
        nn.CrossEntropyLoss(),
        tensor_rows(),
        noise_multiplier=1.3,
        delta=1e-4,
        rounds=3,
        batch_size=60,
        accountant="rdp",
    )
    assert fitted.privacy.statement.epsilon == pytest.approx(private.statement().epsilon)
    assert fitted.privacy.statement.settings["noise multiplier"] == 1.3
    assert fitted.ledger.event == private.ledger.event


def test_delta_is_below_one_over_ten_n_if_it_is_not_said() -> None:
    private = begun(tanh_network(), tensor_rows(), budget=None, noise_multiplier=2.0, batch_size=60)
    assert private.statement().budget.delta == 1e-4  # 300 examples


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"noise_multiplier": 1.0, "budget": BUDGET}, "one follows from the other"),
        ({}, r"budget=Budget\(epsilon, delta\), or noise_multiplier"),
        ({"noise_multiplier": -1.0}, "finite number > 0"),
        ({"budget": BUDGET, "delta": 1e-6}, "a budget has its own"),
    ],
)
@pytest.mark.parametrize("call", ["fit", "loop"])
def test_either_a_budget_or_a_noise_multiplier_is_said(settings: Any, message: str, call: str) -> None:
    with pytest.raises(InputError, match=message):  # noqa: PT012
        if call == "loop":
            begun(tanh_network(), tensor_rows(), **({"budget": None, "batch_size": 60} | settings))
        else:
            fit(tanh_network(), nn.CrossEntropyLoss(), tensor_rows(), rounds=2, **settings)


def test_a_chosen_noise_without_rounds_is_answered() -> None:
    with pytest.raises(InputError, match="say how many there are"):
        fit(tanh_network(), nn.CrossEntropyLoss(), tensor_rows(), noise_multiplier=1.0)


def test_epsilon_is_that_of_the_rounds_done_at_any_delta() -> None:
    model = tanh_network()
    private = begun(model, tensor_rows(), rounds=20, batch_size=60)
    assert private.epsilon() == 0.0
    spent = []
    for batch in private.loader:
        if private.step(lambda batch=batch: classified(model)(batch)):  # type: ignore[misc]
            spent.append(private.epsilon(delta=1e-6))
    chosen: dict[str, Any] = {"budget": None, "noise_multiplier": private.noise_multiplier, "delta": 1e-6, "batch_size": 60}
    exact = [begun(tanh_network(), tensor_rows(), rounds=done, **chosen).statement().budget.epsilon for done in (1, 7, 20)]
    assert [spent[0], spent[6], spent[19]] == pytest.approx(exact)
    assert private.epsilon() == private.statement().epsilon  # all that was paid is done


# ---------------------------------------------------------------- habits of others


def test_a_forward_pass_outside_of_the_closure_is_answered() -> None:
    model = tanh_network()
    for checked in (False, True):
        private = begun(model, tensor_rows(), batch_size=60)
        private._check.done = checked
        with pytest.raises(UnsupportedLoss, match="Call the model inside of the function"):  # noqa: PT012
            for inputs, targets in private.loader:
                output = model(inputs)
                private.step(functools.partial(F.cross_entropy, output, targets, reduction="none"))


@pytest.mark.parametrize(
    ("settings", "answer"),
    [
        ({"max_grad_norm": 1.0}, "clip_bound="),
        ({"module": None}, "model, the first argument"),
        ({"data_loader": None}, "third argument"),
        ({"target_epsilon": 3.0, "target_delta": 1e-5}, r"budget=Budget\(epsilon, delta\)"),
    ],
)
def test_names_of_opacus_are_answered_with_what_to_write(settings: Any, answer: str) -> None:
    for call in (make_private, fit):
        with pytest.raises(InputError, match=answer):
            call(**settings)


def test_the_engine_and_the_accountant_of_opacus_are_answered() -> None:
    with pytest.raises(ImportError, match=r"privopt\.make_private"):
        from privopt import PrivacyEngine  # noqa: F401
    private = begun(tanh_network(), tensor_rows(), batch_size=60)
    with pytest.raises(AttributeError, match=r"private\.epsilon\(delta=…\)"):
        private.get_epsilon(1e-5)
    assert not hasattr(private, "something else")
