"""What is publicly known of a network before it is trained: its oracle, checked, and the facts that defaults depend on."""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from privopt.methods.problem import Choices, Problem, SideFacts
from privopt.nets.data import PublicExamples, physical_batch_size
from privopt.nets.facts import count_inputs, facts_of_loss, find_stable_move, gradient_facts, probe_gradients, typical_norm
from privopt.nets.loading import OWN_COLLATION, Examples, split_pair
from privopt.perexample.networks import TorchOracle, UnsupportedLayer
from privopt.perexample.networks.examples import call_model, compute_losses, move_to_device
from privopt.perexample.networks.model_state import evaluation_mode, training_mode
from privopt.perexample.networks.rng import global_generators, without_randomness
from privopt.perexample.networks.torch_oracle import silent
from privopt.postprocess.side_information import least_seen, seen_sizes


def network_problem(
    oracle: TorchOracle,
    size: int,
    loss: Callable[..., Tensor],
    inputs: Any,
    choices: Choices,
) -> Problem:
    """What is publicly known of a network, but for the budget: the rule for networks asks for no more."""
    typical, outputs = gradient_facts(oracle.model, inputs)
    stable = math.inf
    if choices.learning_rate is None:
        trained = list(oracle.layout.parameters.values())
        stable = find_stable_move(trained, lambda: gradient_facts(oracle.model, inputs)[0], typical)
    return Problem(
        model="network",
        chosen=choices,
        loss=facts_of_loss(loss, outputs),
        size=size,
        width=min(count_inputs(inputs), oracle.dimension) + 1,
        dimension=oracle.dimension,
        row_norm=typical,
        single_release_noise=1.0,
        stable_move=stable,
    )


def side_facts(oracle: TorchOracle, choices: Choices, known: Examples | None, inputs: Any, row_norm: float) -> SideFacts:
    """Public gradients, or a scale of the parameters, and how they change the length of a gradient."""
    scale = choices.options.get("scale")
    if known is None:
        return SideFacts(None, scale, row_norm, choices.options.get("stability", 0.0))
    public = PublicExamples(oracle, len(known), known.pair)
    sizes = seen_sizes(public, oracle.flat.vector)
    stability = choices.options.get("stability", least_seen(sizes))
    grads, _ = probe_gradients(oracle.model, inputs)
    return SideFacts(public, None, typical_norm(grads.scaled(1 / (sizes + stability))), stability)


def make_oracle(
    model: nn.Module, loss: Callable[..., Tensor], examples: Examples, chunk: int | None, *, check: bool = True
) -> TorchOracle:
    with training_mode(model):
        if examples.tensors is not None:
            oracle = TorchOracle(model, loss, *examples.tensors, check=check)
        else:
            oracle = TorchOracle.of_dataset(model, loss, examples.data, collate=examples.collate_pairs, check=check)
        if examples.own_collation and check:
            examples.check_collation()
            _check_padding(oracle, examples)
            oracle.doubts = [*oracle.doubts, OWN_COLLATION]
        oracle.chunk = chunk or physical_batch_size(model, split_pair(examples.first)[0], oracle.formed)
    return oracle


def _check_padding(oracle: TorchOracle, examples: Examples) -> None:
    """Refuse losses that depend on how far collate_fn pads an example, which the longest of its batch decides."""
    device = oracle.layout.device

    def losses(items: list[Any]) -> Tensor:
        inputs, targets = move_to_device(examples.collate_pairs(items), device)
        return compute_losses(oracle.loss, call_model(oracle.model, inputs), targets)

    with silent(), global_generators(device), evaluation_mode(oracle.model), torch.no_grad():
        items = examples.few_items()
        with without_randomness(oracle.model):
            together, alone = losses(items), torch.cat([losses([item]) for item in items])
    if not torch.allclose(together, alone, rtol=1e-3, atol=1e-5, equal_nan=True):
        raise UnsupportedLayer(
            "the loss of an example changes with the padding that collate_fn adds, so the longest example of a batch would "
            "change the gradients of the others. Give the model a mask that hides the padding (attention_mask), leave padding "
            "out of the loss (label -100), or pad all examples to one public length."
        )
