"""What each rank of a torchrun job runs in these tests: `torchrun -m tests.distributed.programs NAME FOLDER`.

A program writes what it found to FOLDER/NAME.RANK.pt, or the error that ended it to FOLDER/NAME.RANK.txt; the tests compare.
"""

import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import privopt.loop
from privopt import Budget, Ledger, Shard, fit, make_private
from privopt.errors import PrivoptError
from privopt.measure.clips import l2, per_layer
from privopt.measure.measurement import Measurement
from privopt.measure.mechanisms import gaussian
from privopt.measure.queries import gradient
from privopt.measure.randomness import generator
from privopt.measure.samplers import full_batch
from privopt.nets import ranked
from privopt.nets.ranked import ExactSum, Job, RankedOracle, Split, serve
from privopt.nets.ranks import Ranks, join
from privopt.perexample.networks import TorchOracle
from privopt.state import PublicState

EXAMPLES, ROUNDS, BATCH = 400, 12, 200
BUDGET = Budget(3.0, 1e-5)
NOISE, BOUND = 1.3, 0.7  # of the measurement whose noise is looked at
DRAWS = 40  # of it
Settings = dict[str, Any]


def loss(output: Tensor, targets: Tensor) -> Tensor:
    return nn.functional.cross_entropy(output, targets, reduction="none")


def data() -> tuple[Tensor, Tensor]:
    x = torch.randn(EXAMPLES, 6, generator=torch.Generator().manual_seed(0))
    return x, (x[:, 0] > 0).long()


def network(*, dropout: float = 0.2, width: int = 8) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, width), nn.Tanh(), nn.Dropout(dropout), nn.Linear(width, 2))


def flat(model: nn.Module) -> Tensor:
    return torch.cat([parameter.detach().reshape(-1) for parameter in model.parameters()])


def fitted(folder: Path | None = None, **changed: Any) -> Any:
    """A model that `fit` trained, as a user's script asks for it; with a folder, a run that can go on."""
    kept: Settings = {} if folder is None else {"checkpoint": folder / "state"}
    if folder is not None and "ledger" not in changed:
        kept["ledger"] = Ledger(path=folder / "ledger.jsonl")
    settings: Settings = {
        "budget": BUDGET,
        "rounds": ROUNDS,
        "batch_size": BATCH,
        "learning_rate": 0.05,
        "accountant": "rdp",
        "progress": False,
        "seed": 7,
    }
    model = changed.pop("model", None) or network(dropout=changed.pop("dropout", 0.2))
    return fit(model, changed.pop("loss", loss), changed.pop("data", None) or data(), **settings | kept | changed)


def looped(state: Path | None = None, stop: int | None = None, ledger: Ledger | None = None) -> Any:
    """A loop of the user's own; it saves its state after `stop` rounds and ends, or goes on from a saved one."""
    model = network()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    asked: Settings = {"budget": BUDGET, "rounds": ROUNDS, "batch_size": BATCH, "accountant": "rdp", "seed": 7, "ledger": ledger}
    private = make_private(model, optimizer, data(), **asked)
    if state is not None and stop is None:
        saved = torch.load(state, weights_only=False)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        private.load_state_dict(saved["private"])
    for inputs, targets in private.loader:
        if private.step(lambda: loss(model(inputs), targets)) and private.rounds == stop:  # noqa: B023
            break
    if state is not None and stop is not None and dist.get_rank() == 0:
        saved = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "private": private.state_dict()}
        torch.save(saved, state)
    return private


# ---------------------------------------------------------------- laws


def asked(ranks: Ranks, lead: Callable[[RankedOracle, TorchOracle], Any], *, sharded: bool = False) -> Any:
    """What rank 0 finds with an oracle of all ranks, beside one on its own; the other ranks serve it."""
    x, y = data()
    model, whole = network(dropout=0.0, width=300), (x, y)
    shards: tuple[int, ...] = ()
    if sharded:
        shards = (150, 250) if ranks.size > 1 else (EXAMPLES,)
        low = sum(shards[: ranks.rank])
        whole = x[low : low + shards[ranks.rank]], y[low : low + shards[ranks.rank]]
    oracle = TorchOracle(model, loss, *whole, check=False)
    split = Split(ranks.rank, ranks.size, EXAMPLES, shards)
    if not ranks.leads:
        serve(oracle, ranks, split)
        return None
    with torch.no_grad():
        found = lead(RankedOracle(oracle, ranks, split), TorchOracle(network(dropout=0.0, width=300), loss, x, y, check=False))
    Job(ranks, split, "").finish(oracle, None)
    return found


def sums(oracle: Any) -> list[Tensor]:
    """Clipped sums of all kinds of vectors, and losses."""
    start = flat(network(dropout=0.0, width=300))
    rows, moved, scale = np.arange(5, EXAMPLES, 3), start + 0.01, torch.linspace(0.5, 2.0, len(start))
    layers = per_layer({name: 0.1 * (place + 1) for place, name in enumerate(oracle.layers)})
    return [
        oracle(start, rows).clipped_sum(l2(BOUND), 0.5),
        oracle(start, None).clipped_sum(layers),
        oracle(start, rows).minus(oracle(moved, rows)).clipped_sum(l2(0.02)),
        oracle(start, rows).scaled(scale).shifted(scale, 0.1).clipped_sum(l2(BOUND), -2.0),
        oracle(start, rows[::-1].copy()).clipped_sum(l2(BOUND)),
        oracle.losses(start, rows),
    ]


def noises(oracle: Any, alone: TorchOracle) -> Tensor:
    """What a measurement of all ranks adds to the clipped mean of one process."""
    start, rng = flat(network(dropout=0.0, width=300)), generator(3)
    measurement = Measurement(full_batch(), [gradient() @ l2(BOUND)], gaussian(NOISE))
    mean = alone(start, None).clipped_sum(l2(BOUND), 1 / EXAMPLES).double()
    found = [measurement.measure(oracle, PublicState(start), round_, rng).value.double() - mean for round_ in range(DRAWS)]
    return torch.stack(found)


@contextmanager
def exchanged(name: str, part: Any) -> Iterator[None]:
    """A part of `ranked` that breaks the law."""
    kept = getattr(ranked, name)
    setattr(ranked, name, part)
    try:
        yield
    finally:
        setattr(ranked, name, kept)


def noise_of_its_own(ranks: Ranks) -> Any:
    """Every rank adds the noise, to its own part of the sum."""
    rng, reduce_sum = np.random.default_rng(ranks.rank), ranked.reduce_sum

    def reduced(ranks: Ranks, total: ExactSum, *rest: Any) -> None:
        if not ranks.leads:
            total.total.add_(torch.from_numpy(rng.normal(0.0, NOISE * BOUND / EXAMPLES, len(total.total))))
        reduce_sum(ranks, total, *rest)

    return exchanged("reduce_sum", reduced)


class InOrder(ExactSum):
    """A sum in single precision, as it comes."""

    def add(self, part: Tensor) -> None:
        self.total.copy_((self.total.float() + part).double())


class Twice(Split):
    """Every rank answers for all pieces."""

    def pieces(self, rows: Any, most: int | None = None) -> Any:
        return [piece for rank in range(self.ranks) for piece in Split(rank, self.ranks, self.size).pieces(rows, most)]


def refused(work: Callable[[], Any]) -> str:
    try:
        work()
    except PrivoptError as error:
        return f"{type(error).__name__}: {error}"
    return "it worked"


def laws(folder: Path) -> Settings:
    """Sums and noise, also of parts that break the law."""
    ranks = join()
    assert ranks is not None
    found: Settings = {"sums": asked(ranks, lambda oracle, alone: (sums(oracle), sums(alone)))}
    found["sums of shards"] = asked(ranks, lambda oracle, alone: (sums(oracle), sums(alone)), sharded=True)
    found["noise"] = asked(ranks, noises)
    with noise_of_its_own(ranks):
        found["noise on each rank"] = asked(ranks, noises)
    with exchanged("ExactSum", InOrder):
        found["sums in order"] = asked(ranks, lambda oracle, alone: (sums(oracle), sums(alone)))
    oracle = TorchOracle(network(), loss, *data(), check=False)
    question = ranked.Question(None, 1, 1, ranked.Vectors("at", 0), l2(1.0))
    twice, start = Twice(ranks.rank, ranks.size, EXAMPLES), flat(network())
    found["twice"] = refused(lambda: ranked.answer(oracle, ranks, twice, question, [start]))
    return found


def trained(folder: Path) -> Settings:
    """`fit` and loops as a script calls them, and scripts that differ between ranks."""
    ranks = join()
    assert ranks is not None
    last, result = ranks.rank == ranks.size - 1, fitted(folder)
    found: Settings = {
        "fit": (flat(result.model), result.privacy.statement.epsilon, str(result.privacy), result.ledger.epsilon(1e-5)),
        "without dropout": flat(fitted(dropout=0.0).model),
    }
    private = looped(ledger=Ledger(path=folder / "loop.jsonl"))
    found["loop"] = (flat(private.model), private.epsilon(), str(private.statement()))
    looped(folder / "state.pt", stop=5)
    dist.barrier()
    found["resumed loop"] = flat(looped(folder / "state.pt").model)
    x, y = data()
    half = slice(0, 150) if ranks.leads else slice(150, None)
    sharded = fitted(data=Shard((x[half], y[half])), dropout=0.0)
    found["shards"] = (flat(sharded.model), str(sharded.privacy))

    def failing(output: Tensor, targets: Tensor) -> Tensor:
        if len(targets) > 10 and dist.get_rank() == 1:
            raise KeyError("4711")
        return loss(output, targets)

    found["refused"] = {
        "data": refused(lambda: fitted(data=(x + last, y))),
        "seed": refused(lambda: fitted(seed=7 + last)),
        "model": refused(lambda: fitted(model=network(width=8 + last))),
        "batch size": refused(lambda: fitted(batch_size=BATCH + last)),
        "loop": refused(lambda: make_private(*_model(0.1 + last), data(), budget=BUDGET, rounds=2, batch_size=9)),
        "same shard": refused(lambda: fitted(data=Shard((x, y)))),
        "wrapped": refused(lambda: fitted(model=DistributedDataParallel(network()))),
        "failing": refused(lambda: fitted(loss=failing)),
        "too small a budget": refused(lambda: fitted(ledger=Ledger(Budget(1e-3, 1e-5)))),
    }
    found["after all"] = flat(fitted(dropout=0.0).model)
    return found


def _model(rate: float) -> tuple[nn.Module, torch.optim.Optimizer]:
    model = network()
    return model, torch.optim.SGD(model.parameters(), lr=rate)


# ---------------------------------------------------------------- faults


def at_question(number: int, rank: int, act: Callable[[], Any]) -> None:
    """Let a rank act when it is asked for the part of this round."""
    count, answer = 0, ranked.answer

    def answering(*arguments: Any) -> Any:
        nonlocal count
        if count == number and dist.get_rank() == rank:
            act()
        count += 1
        return answer(*arguments)

    ranked.answer = answering  # type: ignore[assignment]


def killed(folder: Path) -> Settings:
    """A rank is killed in a round; saved is the state after every block of rounds."""
    privopt.loop.DURABILITY = 1e9
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # by which the launcher ends the others, perhaps before they have said why
    rank, round_ = (int(word) for word in (folder / "kill").read_text().split())
    at_question(round_, rank, lambda: os.kill(os.getpid(), signal.SIGKILL))
    fitted(folder)
    return {}


def resumed(folder: Path) -> Settings:
    """The same script again, perhaps with another number of ranks; and a saved state of a loop."""
    return {"fit": flat(fitted(folder).model), "loop": flat(looped(folder / "state.pt").model)}


def hung(folder: Path) -> Settings:
    """A rank hangs in the third round; the script made the process group, with a timeout of its own."""
    dist.init_process_group("gloo", timeout=timedelta(seconds=8))  # longer than rank 0 plans
    at_question(3, 1, lambda: time.sleep(600))
    fitted(folder, batch_size=EXAMPLES)
    return {}


def main(program: str, place: str) -> None:
    """Run a program on this rank."""
    torch.set_num_threads(1)
    written = f"{program}.{os.environ['RANK']}"
    try:
        found = globals()[program](Path(place))
    except BaseException:
        Path(place, f"{written}.txt").write_text(traceback.format_exc())
        raise
    torch.save(found, Path(place, f"{written}.pt"))
    if dist.is_initialized():
        dist.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
