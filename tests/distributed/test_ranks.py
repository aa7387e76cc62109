"""Real torchrun jobs on the loopback interface: one sum, noise once, one ledger, the same model on every rank, whatever fails."""

import logging
import os
import random
import subprocess
import sys
import uuid
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

if find_spec("torch") is None:
    pytest.skip("networks need torch", allow_module_level=True)

import torch
import torch.distributed as dist
from scipy import stats
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

from privopt import Ledger, Shard
from privopt.errors import InputError
from tests.distributed import programs
from tests.distributed.programs import BOUND, EXAMPLES, NOISE, ROUNDS
from tests.processes import one_fork_server
from tests.stopped import StopAt, Stopped

ROOT = Path(__file__).parents[2]
pytestmark = one_fork_server
RARE = 1e-9  # the false-alarm probability of a check of noise


def launch(program: str, folder: Path, ranks: int = 2) -> bool:
    """Run a program by torchrun's launcher, in processes of the fork server. Whether it failed."""
    logging.getLogger("torch.distributed").setLevel(logging.CRITICAL)
    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=ranks,
        run_id=uuid.uuid4().hex,
        rdzv_backend="c10d",
        rdzv_endpoint="127.0.0.1:0",
        local_addr="127.0.0.1",
        max_restarts=0,
        start_method="forkserver",
    )
    try:
        elastic_launch(config, programs.main)(program, str(folder))
    except ChildFailedError:
        return True
    return False


def found(program: str, folder: Path, rank: int = 0) -> Any:
    return torch.load(folder / f"{program}.{rank}.pt", weights_only=False)


@pytest.fixture(scope="module")
def laws(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("laws")
    assert not launch("laws", folder)
    return found("laws", folder)


@pytest.mark.skipif("PRIVOPT_LONG" not in os.environ, reason="each process loads torch anew: PRIVOPT_LONG=1")
def test_torchrun_from_the_command_line_is_what_the_launcher_runs(laws: Any, tmp_path: Path) -> None:
    launcher = "--nnodes=1 --nproc-per-node=2 --rdzv-backend=c10d --rdzv-endpoint=127.0.0.1:0 --local-addr=127.0.0.1"
    order = [sys.executable, "-m", "torch.distributed.run", *launcher.split(), "-m", "tests.distributed.programs"]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)])}
    done = subprocess.run(
        [*order, "laws", tmp_path], cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    assert torch.equal(found("laws", tmp_path)["noise"], laws["noise"])


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where two ranks have trained, and were refused."""
    folder = tmp_path_factory.mktemp("trained")
    assert not launch("trained", folder)
    return folder


# ---------------------------------------------------------------- sums and noise


@pytest.mark.parametrize("kind", ["sums", "sums of shards"])
def test_a_sum_of_all_ranks_is_that_of_one_process(laws: Any, kind: str) -> None:
    for ours, alone in zip(*laws[kind], strict=True):
        assert (ours - alone).norm() <= 1e-6 * alone.norm()


def is_stated_noise(noise: torch.Tensor) -> bool:
    """Whether numbers have the variance that the measurement states: χ² of all of them, wrong with probability RARE."""
    squares = float((noise / (NOISE * BOUND / EXAMPLES)).square().sum())
    low, high = stats.chi2(noise.numel()).ppf([RARE / 2, 1 - RARE / 2])
    return bool(low <= squares <= high)


def test_the_noise_is_added_once(laws: Any) -> None:
    noise = laws["noise"]
    assert is_stated_noise(noise)
    rounds = torch.corrcoef(noise) - torch.eye(len(noise))  # of independent rounds: 780 pairs, six deviations
    assert rounds.abs().max() < 6 / noise.shape[1] ** 0.5


def test_noise_on_each_rank_or_none_is_found(laws: Any) -> None:
    assert not is_stated_noise(laws["noise on each rank"])
    assert not is_stated_noise(0 * laws["noise"])
    assert not is_stated_noise(laws["noise"] / 2**0.5)


def test_a_part_that_counts_twice_is_found(laws: Any) -> None:
    assert laws["twice"].startswith("PartFailed: 400 examples were drawn, but the ranks answered for 800")


def one_rank(work: Any, folder: Path) -> Any:
    """What a job of one process finds; it runs here."""
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=0, world_size=1)
    try:
        return work()
    finally:
        dist.destroy_process_group()


def test_a_sum_does_not_depend_on_the_number_of_ranks(laws: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    torch.set_num_threads(1)
    own = one_rank(lambda: programs.laws(tmp_path), tmp_path)
    assert all(map(torch.equal, own["sums"][0], laws["sums"][0]))
    assert all(map(torch.equal, own["noise"], laws["noise"]))  # so an answer is replayed
    assert not all(map(torch.equal, own["sums in order"][0], laws["sums in order"][0]))  # as sums of floating-point numbers do


# ---------------------------------------------------------------- training


def test_two_ranks_train_the_model_of_one_process(folder: Path) -> None:
    torch.set_num_threads(1)
    alone = programs.fitted(dropout=0.0)
    first, second = found("trained", folder), found("trained", folder, rank=1)
    for ours in (first["without dropout"], first["after all"], first["shards"][0]):
        assert (ours - programs.flat(alone.model)).norm() <= 1e-5 * programs.flat(alone.model).norm()
    assert first["fit"][1] == second["fit"][1] == alone.privacy.statement.epsilon  # the same ε
    said = str(alone.privacy).replace("WARNING", "  - processes: 2\nWARNING")
    assert first["fit"][2] == second["fit"][2] == said
    assert first["fit"][3] == second["fit"][3] == Ledger.read(folder / "ledger.jsonl").epsilon(1e-5)
    assert paid(folder) == ROUNDS
    assert "no example is in the shards of two processes, which hold 150, 250" in first["shards"][1]


def test_all_ranks_have_the_same_model_bit_by_bit(folder: Path) -> None:
    first, second = found("trained", folder), found("trained", folder, rank=1)
    assert torch.equal(first["fit"][0], second["fit"][0])
    assert torch.equal(first["loop"][0], second["loop"][0])
    assert torch.equal(first["shards"][0], second["shards"][0])


def test_a_loop_of_two_ranks_is_that_of_one_process(folder: Path) -> None:
    first, second = found("trained", folder), found("trained", folder, rank=1)
    assert first["loop"][1:] == second["loop"][1:]
    assert "processes: 2" in first["loop"][2]
    assert first["loop"][1] == pytest.approx(programs.looped().epsilon())
    assert sum(entry.count for entry in Ledger.read(folder / "loop.jsonl").entries) == ROUNDS
    assert torch.equal(first["resumed loop"], first["loop"][0])


@pytest.mark.parametrize(
    ("what", "message"),
    [
        ("data", "RankFailed: rank 1 of 2 was not asked for the same as rank 0 (different: data)"),
        ("seed", "RankFailed: rank 1 of 2 was not asked for the same as rank 0 (different: seed)"),
        ("model", "RankFailed: rank 1 of 2 was not asked for the same as rank 0 (different: model)"),
        ("batch size", "RankFailed: rank 1 of 2 was not asked for the same as rank 0 (different: settings)"),
        ("loop", "RankFailed: rank 1 of 2 was not asked for the same as rank 0 (different: optimizer)"),
        ("same shard", "RankFailed: two processes hold the same shard"),
        ("wrapped", "InputError: the model is wrapped in DistributedDataParallel"),
    ],
)
def test_ranks_that_disagree_are_refused(folder: Path, what: str, message: str) -> None:
    for rank in range(2):
        assert found("trained", folder, rank)["refused"][what].startswith(message)


def test_a_model_whose_parameters_are_in_parts_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """FSDP2, of the whole model or of a layer; and parameters that are DTensors without it."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor import distribute_module

    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")

    def refused() -> list[str]:
        mesh, layer = init_device_mesh("cpu", (1,)), programs.network()
        fully_shard(layer[0], mesh=mesh)
        models = fully_shard(programs.network(), mesh=mesh), layer, distribute_module(programs.network(), mesh)
        return [programs.refused(lambda model=model: programs.fitted(model=model)) for model in models]  # type: ignore[misc]

    whole, one_layer, parts = one_rank(refused, tmp_path)
    assert whole.startswith("InputError: the model is wrapped in FSDPModule")
    assert one_layer == whole
    assert parts.startswith("InputError: parameters of the model are DTensors")


def test_a_rank_that_fails_tells_the_others(folder: Path) -> None:
    first, second = (found("trained", folder, rank)["refused"] for rank in range(2))
    assert first["failing"].startswith("PartFailed: rank 1 could not compute its part")
    assert second["failing"].startswith("InputError: reading a batch, the model or the loss failed (KeyError)")
    assert "4711" not in first["failing"] + second["failing"]
    assert second["too small a budget"] == f"RankFailed: rank 0 stopped: {first['too small a budget'].partition(': ')[2]}"


# ---------------------------------------------------------------- faults


def paid(folder: Path) -> int:
    """How many rounds the ledger holds."""
    return sum(entry.count for entry in Ledger.read(folder / "ledger.jsonl").entries)


@pytest.mark.parametrize(("rank", "others"), [(0, 1), (1, 3)])
def test_a_killed_rank_stops_the_job_and_another_number_of_ranks_goes_on(
    folder: Path, tmp_path: Path, rank: int, others: int
) -> None:
    round_ = random.SystemRandom().randrange(ROUNDS)
    (tmp_path / "kill").write_text(f"{rank} {round_}")
    (tmp_path / "state.pt").write_bytes((folder / "state.pt").read_bytes())
    assert launch("killed", tmp_path)
    said = (tmp_path / f"killed.{1 - rank}.txt").read_text()
    assert f"RankFailed: rank {1 - rank} of 2 waited for the others in vain: one has ended or hangs (" in said, round_
    assert "What was paid for stays in the ledger." in said
    assert round_ + 1 <= paid(tmp_path) <= ROUNDS
    assert not launch("resumed", tmp_path, others)
    ours, whole = found("resumed", tmp_path), found("trained", folder)
    assert torch.equal(ours["fit"], whole["fit"][0]), round_  # the same answers: nothing was released that was not paid
    assert torch.equal(ours["loop"], whole["loop"][0])
    assert paid(tmp_path) == ROUNDS


@pytest.mark.parametrize("began", ["one process", "torchrun", "shards"])
def test_a_run_whose_sums_would_differ_does_not_go_on(began: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    torch.set_num_threads(1)
    data: Any = Shard(programs.data()) if began == "shards" else None

    def train(**changed: Any) -> Any:
        ledger = Ledger(path=tmp_path / "ledger.jsonl")
        with ledger:
            return programs.fitted(tmp_path, ledger=ledger, **changed)

    def stopped() -> None:
        with pytest.raises(Stopped):
            train(progress=StopAt(3), data=data)

    stopped() if began == "one process" else one_rank(stopped, tmp_path)
    spent = paid(tmp_path)
    with pytest.raises(InputError, match=r"different: .*(one process or torchrun|data)"):
        train() if began == "torchrun" else one_rank(train, tmp_path)
    assert paid(tmp_path) == spent


def test_a_hung_rank_stops_the_job(tmp_path: Path) -> None:
    assert launch("hung", tmp_path)
    said = (tmp_path / "hung.0.txt").read_text()
    assert "RankFailed: rank 0 of 2 waited for the others in vain: one has ended or hangs (" in said
    assert paid(tmp_path) >= 4
