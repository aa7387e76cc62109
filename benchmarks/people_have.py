"""Networks that people have: a clipped sum beside the plain gradient, in time and memory, with random weights.

    python benchmarks/people_have.py [--models bert-mini ...] [--repeats N] [--json benchmarks/results/people_have.json]

A repeat computes the plain gradient of the mean loss and the clipped sum of the same batch, without noise, by privopt and, where
it runs, by Opacus; ratios are of medians of CPU seconds on one thread, which other work on the machine hardly changes.
`check_steps` is the time of the check on attaching, in private steps. Memory is the most that two steps (or the check) take
beyond model and data, in a process of their own. What has been measured stays in the file of results. Needs transformers and
Opacus; Linux only.
"""

import argparse
import ctypes
import json
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch
import torch.nn.functional as F  # noqa: N812
import transformers
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from benchmarks import resident
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


class Placed(Logits):
    """The same, with positions for each example: Opacus cannot divide those that all share."""

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x, position_ids=torch.arange(x.shape[1]).repeat(len(x), 1)).logits


def gpt2_small(*, tied: bool = True) -> Made:
    """124 million parameters; 163 million if the head is not tied to the table, which Opacus' ghost clipping refuses."""
    drops = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
    config = transformers.GPT2Config(use_cache=False, tie_word_embeddings=tied, **drops)
    model, *rest = _language(config, transformers.GPT2LMHeadModel, 8)
    return (model if tied else Placed(model.inner), *rest)


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


# ---------------------------------------------------------------- convolutional networks, as torchvision has them, with GroupNorm


def normed(before: int, after: int, size: int = 3, stride: int = 1, groups: int = 1, act: bool = True) -> nn.Sequential:
    """A convolution, a GroupNorm, and perhaps a ReLU."""
    parts = [
        nn.Conv2d(before, after, size, stride, size // 2, groups=groups, bias=False),
        nn.GroupNorm(min(32, after // 8), after),
    ]
    return nn.Sequential(*parts, *([nn.ReLU()] if act else []))


class Residual(nn.Module):
    """The input, made to fit, plus what an inner network makes of it."""

    def __init__(self, inner: nn.Module, fit: nn.Module | None = None, last: nn.Module | None = None) -> None:
        super().__init__()
        self.inner, self.fit, self.last = inner, fit or nn.Identity(), last or nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.fit(x) + self.inner(x))


def resnet18() -> Made:
    """ResNet-18, 11 million parameters."""
    parts: list[nn.Module] = [normed(3, 64, 7, 2), nn.MaxPool2d(3, 2, 1)]
    for before, after, stride in ((64, 64, 1), (64, 128, 2), (128, 256, 2), (256, 512, 2)):
        for first, step in ((before, stride), (after, 1)):
            inner = nn.Sequential(normed(first, after, 3, step), normed(after, after, act=False))
            fit = normed(first, after, 1, step, act=False) if step > 1 else None
            parts.append(Residual(inner, fit, nn.ReLU()))
    model = nn.Sequential(*parts, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 10))
    return model, torch.randn(16, 3, 64, 64), torch.randint(0, 10, (16,)), classes


def mobilenet() -> Made:
    """MobileNet-v2, 2 million parameters."""
    parts: list[nn.Module] = [normed(3, 32, 3, 2)]
    before = 32
    for wider, after, count, stride in (
        (1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1),
    ):  # fmt: skip
        for place in range(count):
            step, wide = stride if place == 0 else 1, wider * before
            block = [normed(before, wide, 1)] if wider > 1 else []
            inner = nn.Sequential(*block, normed(wide, wide, 3, step, wide), normed(wide, after, 1, act=False))
            parts.append(Residual(inner) if step == 1 and before == after else inner)
            before = after
    model = nn.Sequential(*parts, normed(320, 1280, 1), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(1280, 10))
    return model, torch.randn(16, 3, 64, 64), torch.randint(0, 10, (16,)), classes


class UNet(nn.Module):
    """Three levels down and up again, joined at each level."""

    def __init__(self, width: int = 32, labels: int = 4) -> None:
        super().__init__()
        sizes = [width, 2 * width, 4 * width]
        self.down = nn.ModuleList(
            nn.Sequential(normed(b, a), normed(a, a)) for b, a in zip([3, *sizes], [*sizes, 8 * width], strict=False)
        )
        self.grow = nn.ModuleList(nn.ConvTranspose2d(2 * a, a, 2, 2) for a in reversed(sizes))
        self.up = nn.ModuleList(nn.Sequential(normed(2 * a, a), normed(a, a)) for a in reversed(sizes))
        self.last = nn.Conv2d(width, labels, 1)

    def forward(self, x: Tensor) -> Tensor:
        levels = list[Tensor]()
        for place, block in enumerate(self.down):
            x = block(x if place == 0 else F.max_pool2d(x, 2))
            levels.append(x)
        for grow, up, level in zip(self.grow, self.up, reversed(levels[:-1]), strict=True):
            x = up(torch.cat([grow(x), level], 1))
        return self.last(x)


def unet() -> Made:
    """U-Net, 2 million parameters."""
    return UNet(), torch.randn(8, 3, 64, 64), torch.randint(0, 4, (8, 64, 64)), pixels


def pixels(output: Tensor, labels: Tensor) -> Tensor:
    """A class for each pixel."""
    return F.cross_entropy(output, labels, reduction="none").mean((1, 2))


def products() -> Made:
    """A perceptron of three bare 512 × 512 matrices."""
    return Products(), torch.randn(64, 512), torch.randint(0, 512, (64,)), classes


MODELS: dict[str, Callable[[], Made]] = {
    "bert-mini": bert_mini,
    "llama-4x256": llama,
    "gpt2-tied-4x256": gpt2_tied,
    "vit-4x192": vit,
    "convnext": convnext,
    "resnet-18-gn": resnet18,
    "mobilenet-v2-gn": mobilenet,
    "u-net": unet,
    "products-3x512x512": products,
    "gpt2-small": gpt2_small,
    "gpt2-small-untied": partial(gpt2_small, tied=False),
}


# ---------------------------------------------------------------- contenders


class Averaged(nn.Module):
    """A loss as Opacus wants it: one value for each example if asked."""

    def __init__(self, loss: Callable[[Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.loss, self.reduction = loss, "mean"

    def forward(self, output: Tensor, labels: Tensor) -> Tensor:
        rows = self.loss(output, labels)
        return rows if self.reduction == "none" else rows.mean()


def opacus_step(mode: str, model: nn.Module, x: Tensor, y: Tensor, loss: Callable[[Tensor, Tensor], Tensor]) -> Any:
    """A step of Opacus, without noise and without moving."""
    from opacus import PrivacyEngine

    criterion = Averaged(loss)
    private, optimizer, *rest = PrivacyEngine().make_private(
        module=model.train(),
        optimizer=torch.optim.SGD(model.parameters(), 0.0),
        data_loader=DataLoader(TensorDataset(x, y), batch_size=len(x)),
        criterion=criterion,
        noise_multiplier=0.0,
        max_grad_norm=1.0,
        poisson_sampling=False,
        grad_sample_mode=mode,
    )
    called = rest[0] if mode == "ghost" else criterion

    def step() -> None:
        optimizer.zero_grad()
        called(private(x), y).backward()
        optimizer.step()

    return step


def step_of(kind: str, name: str) -> Callable[[], object]:
    """A step of this kind."""
    torch.manual_seed(0)
    model, x, y, loss = MODELS[name]()
    if kind.startswith("opacus"):
        return opacus_step(kind.removeprefix("opacus-"), model, x, y, loss)
    if kind == "plain":
        parameters = list(model.parameters())
        return lambda: torch.autograd.grad(loss(model(x), y).mean(), parameters, allow_unused=True)
    if kind == "check":
        return lambda: TorchOracle(model, loss, x, y)
    return private_step(TorchOracle(model, loss, x, y))


def private_step(oracle: Any) -> Callable[[], object]:
    """A clipped sum of all examples."""
    return lambda: oracle(None, None).clipped_sum(l2(1.0))


KINDS = ("plain", "privopt", "opacus-ghost", "opacus-hooks")


def times(name: str, repeats: int) -> dict[str, Any]:
    """Medians of steps that take turns."""
    steps, refused, checked = dict[str, Callable[[], object]](), dict[str, str](), 0.0
    step_of("check", "products-3x512x512")()  # whatever is loaded once is loaded
    for kind in KINDS:
        try:
            steps[kind] = step_of("check" if kind == "privopt" else kind, name)
            began = time.process_time()
            found = steps[kind]()
            if kind == "privopt":
                checked = time.process_time() - began
                steps[kind] = private_step(found)
                steps[kind]()
        except Exception as error:
            if not kind.startswith("opacus"):
                raise
            refused[kind] = type(error).__name__
            steps.pop(kind, None)
    seconds: dict[str, list[float]] = {kind: [] for kind in steps}
    for _ in range(repeats):
        for kind, step in steps.items():
            began = time.process_time()
            step()
            seconds[kind].append(time.process_time() - began)
    medians = {kind: median(own) for kind, own in seconds.items()}
    return {
        "plain_seconds": round(medians["plain"], 3),
        "ratio": round(medians["privopt"] / medians["plain"], 2),
        "check_steps": round(checked / medians["privopt"], 1),
        **{kind: round(medians[kind] / medians["plain"], 2) for kind in medians if kind.startswith("opacus")},
        **refused,
    }


def hold(name: str, kind: str) -> int:
    """The most bytes that two steps (or the check) take beyond model and data."""
    with suppress(Exception):  # of Opacus, which does not take bare parameters
        step_of(kind, "products-3x512x512")()  # whatever is loaded once is loaded
    step = step_of(kind, name) if kind != "privopt" else None
    resident.forget()
    before = resident.now()
    if step is None:  # its check is measured apart
        torch.manual_seed(0)
        model, x, y, loss = MODELS[name]()
        oracle = TorchOracle(model, loss, x, y)
        ctypes.CDLL(None).malloc_trim(0)  # what the check has freed would hide as much of the step
        resident.forget()
        before = resident.now()
        step = private_step(oracle)
    for _ in range(1 if kind == "check" else 2):
        step()
    return resident.most() - before


def memory(name: str) -> dict[str, int]:
    """Megabytes by kind of step; nothing for what Opacus refuses."""
    found = {}
    for kind in (*KINDS, "check"):
        again = [sys.executable, __file__, "--models", name, "--hold", kind]
        done = subprocess.run(again, capture_output=True, text=True, check=False)
        if done.returncode == 0:
            found[kind] = round(int(done.stdout) / 1e6)
    return found


def main() -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--hold", choices=[*KINDS, "check"], help="run steps of one kind and print what they held")
    parser.add_argument("--only", choices=["time", "memory"], help="measure one of them")
    parser.add_argument("--json", type=Path, default=None)
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    if given.hold:
        print(hold(given.models[0], given.hold))
        return
    written = json.loads(given.json.read_text())["models"] if given.json is not None and given.json.exists() else {}
    for name in given.models:
        row = written.setdefault(name, {})
        if given.only != "memory":
            row |= times(name, given.repeats)
        if given.only != "time":
            row["memory_mb"] = memory(name)
        print(f"{name:20s} {row}", flush=True)
        if given.json is not None:
            found = {"command": "python benchmarks/people_have.py", "machine": machine(), "threads": torch.get_num_threads()}
            given.json.write_text(json.dumps(found | {"models": written}, indent=1) + "\n")


if __name__ == "__main__":
    main()
