"""The private Trainer of Hugging Face transformers, with the real library and models with random weights."""

from pathlib import Path
from typing import Any

import peft
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.utils.data import Dataset
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    LlamaForQuestionAnswering,
    LlamaForSequenceClassification,
    T5Config,
    T5ForConditionalGeneration,
    Trainer,
    TrainingArguments,
)

from privopt import Budget, Ledger
from privopt.errors import InputError, PrivoptWarning
from privopt.integrations.huggingface import PrivateTrainer
from privopt.nets import UnsupportedLayer

pytestmark = pytest.mark.filterwarnings("ignore")  # those of the libraries

BUDGET = Budget(8.0, 1e-3)
WORDS, TIME = 24, 6


class Texts(Dataset[Any]):
    """Rows of token ids, whose label is whether the first is one of the upper half."""

    def __init__(self, size: int = 96, *, next_token: bool = False) -> None:
        self.ids = torch.randint(1, WORDS, (size, TIME), generator=torch.Generator().manual_seed(0))
        self.next_token = next_token

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, place: int) -> dict[str, Any]:
        ids = self.ids[place]
        labels = ids if self.next_token else int(ids[0] >= WORDS // 2)
        return {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": labels}


def llama(*, next_token: bool = False) -> Any:
    torch.manual_seed(0)
    sizes: dict[str, Any] = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2}
    config = LlamaConfig(vocab_size=WORDS, num_key_value_heads=2, pad_token_id=0, use_cache=False, **sizes)
    head: Any = LlamaForCausalLM if next_token else LlamaForSequenceClassification
    return head(config)


def arguments(folder: Path, **settings: Any) -> TrainingArguments:
    given: dict[str, Any] = {"num_train_epochs": 2, "per_device_train_batch_size": 32, "learning_rate": 0.02, "logging_steps": 1}
    fixed: dict[str, Any] = {"use_cpu": True, "report_to": [], "disable_tqdm": True, "save_strategy": "no"}
    return TrainingArguments(output_dir=str(folder), **fixed | given | settings)


def values(model: nn.Module) -> dict[str, Tensor]:
    return {name: value.detach().clone() for name, value in model.named_parameters()}


def moved(model: nn.Module, before: dict[str, Tensor]) -> set[str]:
    return {name for name, value in model.named_parameters() if not torch.equal(value, before[name])}


def test_a_trainer_trains_privately_and_says_what_it_cost(tmp_path: Path) -> None:
    model = llama()
    before = values(model)
    trainer = PrivateTrainer(model, arguments(tmp_path), Texts(), budget=BUDGET, seed=0)
    trainer.train()
    assert trainer.private is not None
    assert moved(model, before) == set(before)
    assert trainer.private.rounds == trainer.state.global_step == 6  # 2 epochs of 96/32 rounds
    statement = trainer.private.statement()
    assert 0.99 * 8.0 <= statement.epsilon <= 8.0
    assert sum(entry.count for entry in trainer.private.ledger.entries) == 6
    logs: list[dict[str, Any]] = trainer.state.log_history
    assert [entry["epsilon"] for entry in logs if "epsilon" in entry][-1] == pytest.approx(statement.epsilon)
    assert not any(name in entry for entry in logs for name in ("loss", "train_loss", "grad_norm"))


def test_a_trainer_s_updates_are_those_of_a_loop(tmp_path: Path) -> None:
    """Its scheduler and its weight decay act on the same private gradients; its second call of the optimizer does nothing."""
    import torch.nn.functional as F  # noqa: N812

    from privopt import make_private

    settings: dict[str, Any] = {"lr_scheduler_type": "constant", "optim": "sgd", "weight_decay": 0.1}
    model = llama()
    PrivateTrainer(model, arguments(tmp_path, **settings), Texts(), budget=BUDGET, seed=3).train()
    again = llama()
    decayed = [name for name in values(again) if "norm" not in name]
    groups = [
        {"params": [value for name, value in again.named_parameters() if name in decayed], "weight_decay": 0.1},
        {"params": [value for name, value in again.named_parameters() if name not in decayed], "weight_decay": 0.0},
    ]
    again.train()
    optimizer = torch.optim.SGD(groups, lr=0.02)
    private = make_private(again, optimizer, Texts(), budget=BUDGET, batch_size=32, rounds=6, seed=3)
    for batch in private.loader:
        labels = batch["labels"]
        inputs = {name: value for name, value in batch.items() if name != "labels"}
        private.step(lambda: F.cross_entropy(again(**inputs).logits, labels, reduction="none"))  # noqa: B023
    for mine, other in zip(model.parameters(), again.parameters(), strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-5, atol=1e-6)


def test_the_next_token_is_learnt_under_bf16_and_gradient_checkpointing(tmp_path: Path) -> None:
    model = llama(next_token=True)
    before = values(model)
    settings: dict[str, Any] = {"bf16": True, "gradient_checkpointing": True, "max_steps": 3}
    settings["gradient_checkpointing_kwargs"] = {"use_reentrant": False}
    trainer = PrivateTrainer(model, arguments(tmp_path, **settings), Texts(next_token=True), budget=BUDGET, seed=0)
    trainer.train()
    assert trainer.private is not None
    assert trainer.private.rounds == 3
    assert moved(model, before) == set(before)
    assert all(value.dtype == torch.float32 and bool(value.isfinite().all()) for value in model.parameters())


def test_a_trainer_protects_persons(tmp_path: Path) -> None:
    """Three texts of each of 32 persons: a pass has as many rounds as persons need, and each text is of its own person."""
    model = llama()
    before = values(model)
    told: dict[str, Any] = {"persons": [f"author {place % 32}" for place in range(96)], "rows_per_person": 2, "seed": 0}
    settings = arguments(tmp_path, per_device_train_batch_size=16)
    trainer = PrivateTrainer(model, settings, Texts(), budget=Budget(8.0, 1e-3, unit="person"), **told)
    trainer.train()
    assert trainer.private is not None
    assert trainer.private.rounds == trainer.state.global_step == 4  # 2 epochs of 32/16 rounds
    assert moved(model, before) == set(before)
    text = trainer.private.statement().text()
    for words in ("Unit: one person", "the number of persons (32), the number of examples (96)", "rows of a person, at most: 2"):
        assert words in text


def test_a_collator_that_pads_is_refused_for_persons(tmp_path: Path) -> None:
    trainer = PrivateTrainer(
        llama(),
        arguments(tmp_path),
        Texts(),
        budget=Budget(8.0, 1e-3, unit="person"),
        persons=[place % 32 for place in range(96)],
        data_collator=lambda rows: torch.utils.data.default_collate(rows),
    )
    with pytest.raises(InputError, match="Pad the examples in the dataset"):
        trainer.train()


ADAPTERS: dict[str, Any] = {
    "LoRA": peft.LoraConfig(task_type="SEQ_CLS", r=2, lora_alpha=4, target_modules=["q_proj", "v_proj"]),
    "DoRA": peft.LoraConfig(task_type="SEQ_CLS", r=2, lora_alpha=4, target_modules=["q_proj", "v_proj"], use_dora=True),
    "prefix": peft.PrefixTuningConfig(task_type="SEQ_CLS", num_virtual_tokens=3),
}


@pytest.mark.parametrize("kind", ADAPTERS)
def test_adapters_are_trained_and_nothing_else_is_released(kind: str, tmp_path: Path) -> None:
    model = peft.get_peft_model(llama(), ADAPTERS[kind])
    before = values(model)
    trained = {name for name, value in model.named_parameters() if value.requires_grad}
    assert 0 < len(trained) < len(before)
    trainer = PrivateTrainer(model, arguments(tmp_path, bf16=True), Texts(), budget=BUDGET, losses=cross_entropy, seed=0)
    trainer.train()
    assert moved(model, before) == trained
    trainer.save_model(str(tmp_path / "released"))
    released = load_file(tmp_path / "released" / "adapter_model.safetensors")
    assert sum(value.numel() for value in released.values()) == sum(before[name].numel() for name in trained)


def cross_entropy(outputs: Any, labels: Tensor) -> Tensor:
    return nn.functional.cross_entropy(outputs.logits.float(), labels, reduction="none")


def mean(outputs: Any, labels: Tensor) -> Tensor:
    return nn.functional.cross_entropy(outputs.logits, labels)


def test_losses_that_mix_examples_are_refused_before_anything_is_paid(tmp_path: Path) -> None:
    def centred(outputs: Any, labels: Tensor) -> Tensor:
        return cross_entropy(outputs, labels) - outputs.logits.mean()

    for losses, message in ((mean, "one loss for each example"), (centred, "mixes examples|depends on other")):
        ledger = Ledger()
        trainer = PrivateTrainer(llama(), arguments(tmp_path), Texts(), budget=BUDGET, losses=losses, ledger=ledger)
        with pytest.raises((UnsupportedLayer, Exception), match=message):
            trainer.train()
        assert ledger.entries == ()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"gradient_accumulation_steps": 4}, "gradient_accumulation_steps is 4, but a round is one batch"),
        ({"per_device_train_batch_size": 1}, "needs several examples to hide in"),
        ({"train_sampling_strategy": "group_by_length"}, "choose the examples of a batch.*Poisson sample"),
        ({"label_smoothing_factor": 0.1}, "label_smoothing_factor.*losses=lambda"),
        ({"auto_find_batch_size": True}, "come by themselves"),
    ],
)
def test_what_a_private_trainer_cannot_keep_is_refused(settings: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=message):
        PrivateTrainer(llama(), arguments(tmp_path, **settings), Texts(), budget=BUDGET).train()


def test_a_trainer_is_not_resumed_and_unknown_losses_are_asked_for(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="resume_from_checkpoint is not supported"):
        PrivateTrainer(llama(), arguments(tmp_path), Texts(), budget=BUDGET).train(resume_from_checkpoint=True)
    answering: Any = LlamaForQuestionAnswering
    with pytest.raises(InputError, match="one loss for each example: losses="):
        PrivateTrainer(answering(llama().config), arguments(tmp_path), Texts(), budget=BUDGET)
    assert issubclass(PrivateTrainer, Trainer)


@pytest.mark.parametrize("adapted", [False, True])
def test_the_losses_of_gpt2_are_known_although_its_name_does_not_say_them(adapted: bool, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model: Any = GPT2LMHeadModel(GPT2Config(vocab_size=WORDS, n_embd=16, n_layer=1, n_head=2, n_positions=TIME, use_cache=False))
    if adapted:
        lora = peft.LoraConfig(task_type="CAUSAL_LM", r=2, target_modules=["c_attn"], fan_in_fan_out=True)
        model = peft.get_peft_model(model, lora)
    trainer = PrivateTrainer(model, arguments(tmp_path, num_train_epochs=1), Texts(next_token=True), budget=BUDGET, seed=0)
    batch = torch.stack([Texts(next_token=True)[place]["input_ids"] for place in range(4)])
    model.eval()
    with torch.no_grad():
        outputs = model(input_ids=batch, labels=batch)
    assert trainer._losses(outputs, batch).mean() == pytest.approx(float(outputs.loss), rel=1e-5)
    trainer.train()
    assert trainer.private is not None
    assert trainer.private.rounds == 3


@pytest.mark.parametrize(
    ("settings", "labels"),
    [
        ({"num_labels": 1}, torch.randn(4)),
        ({"num_labels": 3, "problem_type": "regression"}, torch.randn(4, 3)),
        ({"num_labels": 3, "problem_type": "multi_label_classification"}, torch.tensor([[1.0, 0.0, 1.0]]).repeat(4, 1)),
        ({"num_labels": 3}, torch.tensor([2, 0, 1, 1])),
    ],
)
def test_the_losses_of_a_classifier_are_those_of_transformers(settings: Any, labels: Tensor, tmp_path: Path) -> None:
    config = llama().config
    config.update(settings)
    head: Any = LlamaForSequenceClassification
    model = head(config).eval()
    trainer = PrivateTrainer(model, arguments(tmp_path), Texts(), budget=BUDGET)
    with torch.no_grad():
        outputs = model(input_ids=Texts().ids[:4], labels=labels)
    found = trainer._losses(outputs, labels)
    assert found.shape == (4,)
    assert found.mean() == pytest.approx(float(outputs.loss), rel=1e-5)


def test_a_sequence_to_sequence_model_is_given_what_it_makes_of_the_labels(tmp_path: Path) -> None:
    torch.manual_seed(0)
    sizes: dict[str, Any] = {"d_model": 8, "d_kv": 4, "d_ff": 8, "num_layers": 1, "num_heads": 2, "dropout_rate": 0.0}
    sizes |= {"vocab_size": WORDS, "use_cache": False, "decoder_start_token_id": 0}
    model: Any = T5ForConditionalGeneration(T5Config(**sizes))
    before = values(model)
    trainer = PrivateTrainer(model, arguments(tmp_path, num_train_epochs=1), Texts(next_token=True), budget=BUDGET, seed=0)
    batch = next(iter(trainer._data()))
    with torch.no_grad():
        own, ours = model(input_ids=batch["input_ids"], labels=batch["labels"]), trainer._compute(model, batch)
    assert ours.mean() == pytest.approx(float(own.loss), rel=1e-5)
    trainer.train()
    assert moved(model, before) == set(before)


def test_a_loss_of_the_batch_is_answered_and_not_left_out_in_silence(tmp_path: Path) -> None:
    class Weighted(PrivateTrainer):
        def compute_loss(self, *_: Any, **__: Any) -> Any:
            raise AssertionError

    with pytest.raises(InputError, match=r"are for evaluation here.*losses=lambda"):
        Weighted(llama(), arguments(tmp_path), Texts(), budget=BUDGET)
    with pytest.raises(InputError, match=r"are for evaluation here.*losses=lambda"):
        PrivateTrainer(llama(), arguments(tmp_path), Texts(), budget=BUDGET, compute_loss_func=lambda *_, **__: None)
    assert Weighted(llama(), arguments(tmp_path), Texts(), budget=BUDGET, losses=cross_entropy).private is None
    with pytest.raises(InputError, match="Write clip_bound="):
        PrivateTrainer(llama(), arguments(tmp_path), Texts(), budget=BUDGET, max_grad_norm=1.0)


def test_a_second_training_adds_to_the_ledger_and_says_so(tmp_path: Path) -> None:
    trainer = PrivateTrainer(llama(), arguments(tmp_path, num_train_epochs=1), Texts(), budget=BUDGET, seed=0)
    trainer.train()
    assert trainer.private is not None
    once = trainer.private.ledger.epsilon(delta=1e-3)
    with pytest.warns(PrivoptWarning, match="what all runs cost together"):
        trainer.train()
    assert trainer.private.ledger.epsilon(delta=1e-3) > once + 1
    assert sum(entry.count for entry in trainer.private.ledger.entries) == 6
