"""Networks that people have: a clipped sum beside the plain gradient, in time, with random weights.

    python benchmarks/people_have.py [--models bert-mini ...] [--repeats N] [--json benchmarks/results/people_have.json]

A repeat computes the plain gradient of the mean loss and the clipped sum of the same batch, without noise; the ratio is of the
medians. `check_steps` is the time of the check on attaching, in private steps. Needs transformers.
"""

import argparse
import json
import shlex
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch
import torch.nn.functional as F  # noqa: N812
import transformers
from torch import Tensor, nn

from benchmarks.report import machine
from privopt.measure.clips import l2
from privopt.perexample.networks import TorchOracle

Made = tuple[nn.Module, Tensor, Tensor, Callable[[Tensor, Tensor], Tensor]]
STILL = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}


class Logits(nn.Module):
    """The logits of a model of transformers."""

    def __init__(self, inner: Any) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x).logits


class Products(nn.Module):
    """Bare parameters that multiply."""

    def __init__(self) -> None:
        super().__init__()
        self.weights = nn.ParameterList(torch.randn(512, 512) / 512**0.5 for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        for weight in self.weights:
            x = torch.tanh(x @ weight)
        return x


def classes(output: Tensor, labels: Tensor) -> Tensor:
    """A class for each example, or for each step."""
    if output.ndim == 3:
        return F.cross_entropy(output.transpose(1, 2), labels, reduction="none").mean(1)
    return F.cross_entropy(output, labels, reduction="none")


def _language(config: Any, kind: Any, batch: int, time_: int = 128) -> Made:
    tokens = torch.randint(0, config.vocab_size, (batch, time_))
    return Logits(kind(config)), tokens, tokens, classes


def bert_mini() -> Made:
    """4 layers of 256."""
    config = transformers.BertConfig(
        vocab_size=8000, hidden_size=256, num_hidden_layers=4, num_attention_heads=4, intermediate_size=1024, **STILL
    )
    tokens = torch.randint(0, 8000, (16, 128))
    return Logits(transformers.BertForSequenceClassification(config)), tokens, torch.randint(0, 2, (16,)), classes


def llama() -> Made:
    """4 layers of 256."""
    sizes = {"hidden_size": 256, "intermediate_size": 688, "num_hidden_layers": 4, "num_attention_heads": 4}
    config = transformers.LlamaConfig(vocab_size=2000, max_position_embeddings=128, use_cache=False, **sizes)
    return _language(config, transformers.LlamaForCausalLM, 8)


def gpt2_tied() -> Made:
    """4 layers of 256, the head tied to the table."""
    drops = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
    config = transformers.GPT2Config(use_cache=False, n_embd=256, n_layer=4, n_head=4, vocab_size=8000, **drops)
    return _language(config, transformers.GPT2LMHeadModel, 8)


def gpt2_small() -> Made:
    """124 million parameters."""
    config = transformers.GPT2Config(use_cache=False, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0)
    return _language(config, transformers.GPT2LMHeadModel, 8)


def vit() -> Made:
    """4 layers of 192."""
    sizes = {"hidden_size": 192, "num_hidden_layers": 4, "num_attention_heads": 3, "intermediate_size": 768}
    config = transformers.ViTConfig(image_size=64, patch_size=8, num_labels=10, **sizes, **STILL)
    return (
        Logits(transformers.ViTForImageClassification(config)),
        torch.randn(16, 3, 64, 64),
        torch.randint(0, 10, (16,)),
        classes,
    )


def convnext() -> Made:
    """4 stages of 2 blocks."""
    config = transformers.ConvNextConfig(hidden_sizes=[32, 64, 128, 256], depths=[2, 2, 2, 2], num_labels=10)
    model = Logits(transformers.ConvNextForImageClassification(config))
    return model, torch.randn(16, 3, 64, 64), torch.randint(0, 10, (16,)), classes


def products() -> Made:
    """A perceptron of three bare 512 × 512 matrices."""
    return Products(), torch.randn(64, 512), torch.randint(0, 512, (64,)), classes


MODELS: dict[str, Callable[[], Made]] = {
    "bert-mini": bert_mini,
    "llama-4x256": llama,
    "gpt2-tied-4x256": gpt2_tied,
    "vit-4x192": vit,
    "convnext": convnext,
    "products-3x512x512": products,
    "gpt2-small": gpt2_small,
}


def work(name: str) -> dict[str, Callable[[], object]]:
    """One step of each kind."""
    torch.manual_seed(0)
    model, x, y, loss = MODELS[name]()
    parameters = list(model.parameters())
    oracle = TorchOracle(model, loss, x, y)

    def check() -> TorchOracle:
        return TorchOracle(model, loss, x, y)

    return {
        "plain": lambda: torch.autograd.grad(loss(model(x), y).mean(), parameters, allow_unused=True),
        "privopt": lambda: oracle(None, None).clipped_sum(l2(1.0)),
        "check": check,
    }


def main() -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--json", type=Path, default=None)
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    rows: dict[str, Any] = {}
    for name in given.models:
        steps, seconds = work(name), dict[str, list[float]]()
        for repeat in range(given.repeats + 1):
            for kind, step in steps.items():
                if kind == "check" and repeat != 1:
                    continue
                began = time.perf_counter()
                step()
                if repeat:
                    seconds.setdefault(kind, []).append(time.perf_counter() - began)
        plain, ours = median(seconds["plain"]), median(seconds["privopt"])
        rows[name] = {
            "ratio": round(ours / plain, 2),
            "plain_seconds": round(plain, 3),
            "check_steps": round(seconds["check"][0] / ours, 1),
        }
        print(f"{name:20s} {rows[name]}", flush=True)
        if given.json is not None:
            command = shlex.join(["python", "benchmarks/people_have.py", *sys.argv[1:]])
            found = {"command": command, "machine": machine(), "threads": torch.get_num_threads(), "models": rows}
            given.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
