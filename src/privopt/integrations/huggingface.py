"""A Trainer of Hugging Face transformers whose training is private.

The loop stays the Trainer's: epochs, schedulers, callbacks, evaluation, saving, Accelerate with its mixed precision. A step of it
is a round: a Poisson batch of `per_device_train_batch_size` examples on average, clipped, hidden, and given to the optimizer that
the Trainer made. The Trainer then calls that optimizer once more, without any gradient, which changes nothing.

What the Trainer would show of private examples is left out: the training loss and the norm of gradients. It logs ε instead.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn
from torch.utils.data import DataLoader
from transformers import Trainer, TrainingArguments, default_data_collator
from transformers.data.data_collator import DataCollator

from privopt.errors import InputError, warn
from privopt.integrations.rounds import AGAIN, Turns, TurnTaker, refuse_accumulation
from privopt.measure.clips import Clip
from privopt.nets import Private, make_private
from privopt.nets.choices import helping_from_opacus
from privopt.nets.loading import DRAWN_BY_US, split_pair
from privopt.privacy.budget import Budget
from privopt.privacy.ledger import Ledger

Losses = Callable[[Any, Any], Tensor]  # (outputs of the model, labels) → one loss for each example
SHOWN = ("loss", "grad_norm", "train_loss")  # what a Trainer logs of training examples


def classification_losses(outputs: Any, labels: Any, problem: str | None = None) -> Tensor:
    """Cross-entropy of one label for each example; or, where transformers takes them, squared errors or binary labels."""
    scores = outputs.logits.float()
    if problem == "regression" or (problem is None and scores.shape[1] == 1):
        return F.mse_loss(scores, labels.view(len(scores), -1).float(), reduction="none").mean(1)
    if problem == "multi_label_classification" or (problem is None and labels.is_floating_point()):
        return F.binary_cross_entropy_with_logits(scores, labels.float(), reduction="none").mean(1)
    return F.cross_entropy(scores, labels, reduction="none")


def token_losses(outputs: Any, labels: Any) -> Tensor:
    """The mean cross-entropy over an example's own labelled tokens (−100: none), as of a masked language model."""
    values = F.cross_entropy(outputs.logits.float().transpose(1, 2), labels, reduction="none")
    return values.sum(1) / (labels != -100).sum(1).clamp_min(1)


def next_token_losses(outputs: Any, labels: Any) -> Tensor:
    """As `token_losses`, of the token that follows."""
    values = F.cross_entropy(outputs.logits[:, :-1].float().transpose(1, 2), labels[:, 1:], reduction="none")
    return values.sum(1) / (labels[:, 1:] != -100).sum(1).clamp_min(1)


CLASSIFIERS = ("ForSequenceClassification", "ForImageClassification")  # by the `loss_type` of a model
SEQUENCE_TO_SEQUENCE = "ForConditionalGeneration"
LOSSES: dict[str, Losses] = {
    "ForTokenClassification": token_losses,
    "ForMaskedLM": token_losses,
    SEQUENCE_TO_SEQUENCE: token_losses,
    "ForCausalLM": next_token_losses,
}
OWN_LOSSES = "Say how to compute one loss for each example: losses=lambda outputs, labels: …, of shape (examples,)."


class WithDecoderInputs:
    """A collator of a sequence-to-sequence model: what the decoder is given is made of the labels, as the model does it."""

    def __init__(self, collate: Callable[..., Any], prepare: Callable[..., Tensor]) -> None:
        self._collate, self._prepare = collate, prepare

    def __call__(self, items: Any) -> dict[str, Any]:
        batch = dict(self._collate(items))
        if "labels" in batch and "decoder_input_ids" not in batch:
            batch["decoder_input_ids"] = self._prepare(labels=batch["labels"])
        return batch


def _check_arguments(args: TrainingArguments) -> None:
    """Refuse settings of a Trainer that would not do what they say."""
    refuse_accumulation(args.gradient_accumulation_steps, "gradient_accumulation_steps")
    if getattr(args, "group_by_length", False) or getattr(args, "train_sampling_strategy", "random") != "random":
        raise InputError(f"the Trainer would choose the examples of a batch. {DRAWN_BY_US}. Leave the sampling strategy out.")
    if args.auto_find_batch_size:
        raise InputError(
            "auto_find_batch_size starts over with other batches. Pieces that fit into memory come by themselves here."
        )


class PrivateTrainer(Trainer):
    """A Trainer whose model is private: `privopt.make_private` inside of its loop.

    `losses(outputs, labels)` gives one loss for each example; for usual heads it is known. What `train` costs is added up in one
    ledger, that which is given or `trainer.private.ledger`, however often it is called. `persons` are ids that say whose
    example each is, for a budget with `unit="person"`, as in `make_private`; examples are then padded in the dataset.
    `trainer.private.statement()` says what may be claimed. Everything else is the Trainer's.

    **Guarantee** That of `make_private`, for as many rounds as the Trainer takes steps. Evaluation is the Trainer's own and is
    not covered: evaluate on public data, or say what it showed.
    """

    @helping_from_opacus
    def __init__(
        self,
        model: nn.Module,
        args: TrainingArguments,
        train_dataset: Any,
        *,
        budget: Budget | None = None,
        noise_multiplier: float | None = None,
        delta: float | None = None,
        clip_bound: float | Clip = 1.0,
        losses: Losses | None = None,
        physical_batch_size: int | None = None,
        ledger: Ledger | None = None,
        persons: Any = None,
        rows_per_person: int | None = None,
        data_collator: DataCollator | None = None,
        seed: int | None = None,
        **of_trainer: Any,  # which the Trainer validates
    ) -> None:
        _check_arguments(args)
        super().__init__(model=model, args=args, train_dataset=train_dataset, data_collator=data_collator, **of_trainer)
        self.private: Private | None = None
        self._persons = persons
        self._losses = losses or self._usual_losses()
        self._begin = partial(
            make_private,
            budget=budget,
            noise_multiplier=noise_multiplier,
            delta=delta,
            clip_bound=clip_bound,
            physical_batch_size=physical_batch_size,
            ledger=Ledger() if ledger is None else ledger,
            persons=persons,
            rows_per_person=rows_per_person,
            seed=seed,
        )

    @property
    def _plain(self) -> Any:
        """The model without what Accelerate and peft put around it."""
        plain: Any = self.accelerator.unwrap_model(self.model)
        return plain.get_base_model() if hasattr(plain, "get_base_model") else plain

    @property
    def _kind(self) -> str | None:
        """What transformers says of the model's loss; GPT-2 and others of its time say it by their name only."""
        plain = self._plain
        kind: str | None = getattr(plain, "loss_type", None)
        return "ForCausalLM" if kind is None and type(plain).__name__.endswith("LMHeadModel") else kind

    def _usual_losses(self) -> Losses:
        kind, model = self._kind, type(self.model).__name__
        if self.compute_loss_func is not None or type(self).compute_loss is not PrivateTrainer.compute_loss:
            raise InputError(
                f"compute_loss and compute_loss_func give one loss for a batch, and are for evaluation here. {OWN_LOSSES}"
            )
        if self.args.label_smoothing_factor:
            raise InputError(f"label_smoothing_factor smooths the loss of a batch. {OWN_LOSSES}")
        if kind in CLASSIFIERS:
            return partial(classification_losses, problem=getattr(self._plain.config, "problem_type", None))
        if kind not in LOSSES:
            raise InputError(f"the losses of {model} ({kind}) are not known: it averages over the batch itself. {OWN_LOSSES}")
        return LOSSES[kind]

    def get_train_dataloader(self) -> Any:
        """Turns: the private batches are drawn when a step is taken."""
        return Turns(self._data(), None, self._persons)

    def _data(self) -> DataLoader[Any]:
        dataset: Any = self.train_dataset
        if hasattr(dataset, "remove_columns"):  # of the datasets library
            dataset = self._remove_unused_columns(dataset, description="training")
        if self.args.train_batch_size == 1:
            raise InputError("per_device_train_batch_size is 1, but a batch needs several examples to hide in: say more.")
        collate: Any = self.data_collator
        if self._persons is not None and collate is default_data_collator:
            collate = None
        elif self._kind == SEQUENCE_TO_SEQUENCE and hasattr(self._plain, "prepare_decoder_input_ids_from_labels"):
            collate = WithDecoderInputs(collate, self._plain.prepare_decoder_input_ids_from_labels)
        return DataLoader(
            dataset,
            batch_size=self.args.train_batch_size,
            collate_fn=collate,
            num_workers=self.args.dataloader_num_workers,
        )

    def train(self, resume_from_checkpoint: Any = None, *arguments: Any, **named: Any) -> Any:
        """As the Trainer's. It is not resumed: the checkpoint does not hold the state of the noise."""
        if resume_from_checkpoint:
            raise InputError(
                "resume_from_checkpoint is not supported: a Trainer's checkpoint has no state of the noise, and a run that "
                "went on would have to pay again. privopt.make_private has state_dict(), for a loop of your own."
            )
        if self.private is not None:
            warn(AGAIN)
        self.private = None
        return super().train(None, *arguments, **named)

    def training_step(self, model: nn.Module, inputs: Any, num_items_in_batch: Any = None) -> Tensor:
        """One round. The loss of private examples is not shown: 0 stands for it."""
        model.train()
        if self.private is None:
            plain = self.accelerator.unwrap_model(model)
            optimizer: Any = getattr(self.optimizer, "optimizer", self.optimizer)  # without what Accelerate puts around it
            self.private = self._begin(plain, optimizer, self._data(), rounds=self.state.max_steps)
            self._turns = TurnTaker(self.private)
        self._turns.take(lambda batch: self._compute(model, batch))
        return torch.zeros((), device=self.args.device)

    def _compute(self, model: nn.Module, batch: Any) -> Tensor:
        inputs, labels = split_pair(batch)
        with self.compute_loss_context_manager():
            return self._losses(model(**inputs), labels)

    def log(self, logs: dict[str, Any], *arguments: Any, **named: Any) -> None:
        """Log without what was measured on private examples, and with ε."""
        shown = {name: value for name, value in logs.items() if name not in SHOWN}
        if self.private is not None and "learning_rate" in logs:
            shown["epsilon"] = self.private.epsilon()
        super().log(shown, *arguments, **named)
