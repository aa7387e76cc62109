"""Ways in which one user could have moved more than its bound, or noise could have been repeated: each is closed."""

import fcntl
import json
import tomllib
import warnings
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from privopt.cli.application import app as application
from privopt.datasets import Schema
from privopt.errors import CompositionError, InputError
from privopt.federated.nodes import NodesInProcess, Request, answer
from privopt.federated.training import FederatedSettings, train_federation
from privopt.measure.clips import l2
from privopt.measure.measurement import Measurement
from privopt.measure.mechanisms import gaussian
from privopt.measure.queries import gradient
from privopt.measure.samplers import full_batch
from privopt.measure.units import each_user
from privopt.methods.dp_fedavg import METHOD, dp_fedavg
from privopt.perexample.losses import Logistic
from privopt.perexample.user_vectors import Change, LinearUsers, LocalSteps, group_rows
from privopt.privacy.budget import Budget
from privopt.runs.federation import TableNodes, prepare
from privopt.runs.folder import RunFolder
from privopt.runs.request import FederationRequest
from privopt.runs.table_users import find_users
from privopt.training.session import Session
from tests.federated.federations import LOCAL, GivenUsers, facts, linear_users


def asked(users: int, dimension: int = 3, bound: float = 1.0) -> Request:
    return Request(np.zeros(dimension), None, LOCAL, l2(bound), np.arange(users))


def test_a_model_that_remembers_a_user_does_not_tell_the_next_one() -> None:
    torch = pytest.importorskip("torch")
    from torch import nn

    from privopt.federated import NetworkUsers, flat_parameters

    class Remembering(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("mean", torch.zeros(2), persistent=False)
            self.calls = 0

        def forward(self, rows: Any) -> Any:
            mean: Any = self.get_buffer("mean")
            self.mean = 0.9 * mean + 0.1 * rows.mean(0).detach()
            self.calls += 1
            return (rows - self.mean) * self.calls

    def total(first: float) -> Any:
        torch.manual_seed(0)
        model = nn.Sequential(Remembering(), nn.Linear(2, 2))
        inputs = torch.ones(20, 2)
        inputs[0] = first
        users = NetworkUsers(model, nn.CrossEntropyLoss(), inputs, torch.zeros(20).long(), group_rows(np.arange(20)))
        request = replace(asked(20, len(flat_parameters(model))), parameters=flat_parameters(model))
        return answer(users, request).total

    assert np.linalg.norm(total(1e4) - total(0.0)) <= 2.0 + 1e-6  # one user is replaced


def test_a_vector_of_another_shape_is_absent_and_takes_nobody_along() -> None:
    class Odd(GivenUsers):
        def change(self, parameters: Any, user: int, local: LocalSteps, scale: Any) -> Change:
            return Change(np.ones(1) if user == 0 else np.ones(7) if user == 1 else np.array([0.5, 0.0, 0.0]))

    np.testing.assert_array_equal(answer(Odd([0, 0, 0]), asked(3)).total, [0.5, 0.0, 0.0])


def test_a_user_with_many_rows_is_read_no_further_than_others() -> None:
    """As many rows are copied as its steps use, of a million."""
    ids = np.zeros(1_000_000, dtype=np.int8)
    ids[:10] = np.arange(10)
    users = LinearUsers(np.broadcast_to(np.ones(4), (len(ids), 4)), np.ones(len(ids)), group_rows(ids), Logistic(), intercept=0.0)
    rows, *_ = users._rows_of(0, LOCAL.batches(len(ids) - 9, np.zeros(4)))
    assert len(rows) <= LOCAL.steps * LOCAL.batch_size


def test_ids_are_one_for_each_row_and_none_is_missing() -> None:
    for wrong in (np.zeros((2, 2)), np.array([1.0, np.nan]), np.array(["a", None], dtype=object)):
        with pytest.raises(InputError):
            group_rows(wrong)
    assert [rows.tolist() for rows in group_rows(np.array([1, "1", 2], dtype=object))] == [[0, 1], [2]]


def test_a_clip_that_only_calls_itself_l2_is_tried() -> None:
    class longer(l2):  # noqa: N801
        def factors(self, norms: Any, weight: float = 1.0) -> Any:
            return np.ones_like(norms) * weight

    with pytest.raises(CompositionError, match="leave vectors longer"):
        gradient() @ longer(1e-3)


def test_a_query_of_rows_that_says_it_asks_users_is_refused() -> None:
    class rows_as_users(gradient):  # noqa: N801
        unit = each_user()

    with pytest.raises(CompositionError, match="protects no user"):
        Measurement(full_batch(), [rows_as_users() @ l2(1.0)], gaussian(1.0), unit=each_user())


def test_the_statement_knows_who_adds_the_noise_by_the_recipe_that_ran() -> None:
    own = replace(METHOD, name="mine", recipe=lambda **given: dp_fedavg(**(given | {"noise": "shares"})))
    session = Session(Budget(8.0, 1e-3, unit="user"), 12, seed=0)
    nodes = NodesInProcess([linear_users(7, 1), linear_users(5, 2)])
    _, statement = train_federation(nodes, np.zeros(4), facts(), FederatedSettings(own, rounds=2), session)
    assert "secure aggregation" in statement.text()
    assert "no user has rows on two nodes" in statement.text()


def test_a_seed_of_nodes_is_stated_and_repeats_noise_for_the_same_question_only() -> None:
    users = [GivenUsers([np.zeros(3)] * 2)]
    first, again = NodesInProcess(users, seed=7), NodesInProcess(users, seed=7)
    request = replace(asked(2), deviation=1.0)
    other = replace(request, parameters=np.ones(3))
    np.testing.assert_array_equal(first.ask({0: request})[0].total, again.ask({0: request})[0].total)
    assert not np.array_equal(first.ask({0: request})[0].total, again.ask({0: other})[0].total)
    session = Session(Budget(8.0, 1e-3, unit="user"), 12)
    nodes = NodesInProcess([linear_users(7, 1), linear_users(5, 2)], seed=3)
    _, statement = train_federation(nodes, np.zeros(4), facts(), FederatedSettings(rounds=2), session)
    assert statement.seeded


# ---------------------------------------------------------------- a node's own file

PLAN = {
    "file": None,
    "users": "user",
    "target": "y",
    "schema": None,
    "parts": 1,
    "encoding": {"columns": [{"name": "x", "low": 0, "high": 10}, {"name": "kind", "values": ["1", "2"]}]},
    "classes": ["0", "1"],
    "task": "classify",
    "scale": None,
    "intercept": 1.0,
    "target scale": [0.0, 1.0],
    "hidden": [],
}


def write(path: Path, cells: dict[str, str], users: int = 10) -> str:
    lines = ["user,x,kind,y"]
    for user in range(users):
        own = {"x": str(user), "kind": str(1 + user % 2), "y": str(user % 2)} | (cells if user == 9 else {})
        lines.append(f"u{user},{own['x']},{own['kind']},{own['y']}")
    path.write_text("\n".join(lines) + "\n")
    return str(path)


@pytest.mark.parametrize(
    "cell",
    [
        *({"x": cell} for cell in ("abc", "", "1e999", "2020-01-01")),
        *({"kind": cell} for cell in ("abc", "", "2.5")),
        *({"y": cell} for cell in ("abc", "True", "", "inf", "0.5")),
    ],
    ids=json.dumps,
)
def test_one_user_s_cell_changes_that_user_s_row_and_no_other(tmp_path: Path, cell: dict[str, str]) -> None:
    usual = find_users(PLAN, part=0, data=write(tmp_path / "usual.csv", {}))
    odd = find_users(PLAN, part=0, data=write(tmp_path / "odd.csv", cell))
    assert odd.size == usual.size == 10
    for user in range(9):
        one, other = (users.change(np.zeros(4), user, LOCAL, None).values for users in (usual, odd))
        np.testing.assert_array_equal(one, other)
    assert np.isfinite(odd.change(np.zeros(4), 9, LOCAL, None).values).all()


@pytest.mark.parametrize(
    ("ids", "several"), [(("12", "12.0"), True), (("u1", "u1 "), True), (("1e2", "100"), True), (("7", "007"), False)]
)
def test_an_id_that_is_written_in_several_ways_would_be_two_users_of_a_node(
    tmp_path: Path, ids: tuple[str, str], several: bool
) -> None:
    path = tmp_path / "rows.csv"
    path.write_text("user,x,kind,y\n" + "".join(f"{one},1,1,0\n" for one in ids))
    if several:
        with pytest.raises(InputError, match="written in several ways"):
            find_users(PLAN, part=0, data=str(path))
    else:
        assert find_users(PLAN, part=0, data=str(path)).size == 2


def test_long_numbers_are_ids_of_their_own(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    path.write_text("user,x,kind,y\n1234567890123456789,1,1,0\n1234567890123456788,1,1,0\n")
    assert find_users(PLAN, part=0, data=str(path)).size == 2


def test_a_node_without_a_declared_column_is_refused_when_users_are_counted(tmp_path: Path) -> None:
    schema = {"columns": {"x": {"low": 0, "high": 1}, "age": {"ignore": True}}}
    counting = {name: PLAN[name] for name in ("file", "users", "target", "parts")} | {"schema": schema}
    path = tmp_path / "rows.csv"
    path.write_text("user,X,y\nu,1,0\n")
    with pytest.raises(InputError, match="lacks columns that the federation has: 'x'"):
        find_users(counting, part=0, data=str(path))


def test_beside_a_noisy_sum_a_node_tells_nothing_exact() -> None:
    for norm in (0.9, 1.1):
        request = replace(asked(1), deviation=100.0)
        assert answer(GivenUsers([[norm, 0, 0]]), request).within == 0


def test_the_run_folder_is_never_in_the_folder_that_nodes_are_sent(tmp_path: Path) -> None:
    """The checkpoint in it holds the key of the noise."""
    (tmp_path / "schema.json").write_text(
        json.dumps({"columns": {"x": {"low": 0, "high": 1}}, "target": {"classes": ["a", "b"]}})
    )
    app = tmp_path / "fed"
    command = ["federate", "--app", str(app), "--users", "u", "--target", "y", "--epsilon", "3"]
    command += ["--schema", str(tmp_path / "schema.json")]
    inside = CliRunner().invoke(application, [*command, "--out", str(app / "run")])
    assert inside.exit_code == 2
    assert "sends to every node" in " ".join(inside.output.split())
    assert CliRunner().invoke(application, command).exit_code == 0
    config = tomllib.loads((app / "pyproject.toml").read_text())["tool"]["flwr"]["app"]["config"]
    assert Path(config["run"]) == tmp_path / "fed-run"


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        (("--option", "nonsense=1"), "nonsense"),
        (("--option", "noise=shares", "--option", "clipping=adaptive"), "a bound that is fixed"),
        (("--task", "regress"), "does not fit --task"),
        (("--model", "ridge"), "does not fit --task"),
    ],
)
def test_an_app_that_no_federation_could_run_is_not_written(tmp_path: Path, wrong: tuple[str, ...], why: str) -> None:
    (tmp_path / "schema.json").write_text(
        json.dumps({"columns": {"x": {"low": 0, "high": 1}}, "target": {"classes": ["a", "b"]}})
    )
    command = ["federate", "--app", str(tmp_path / "fed"), "--users", "u", "--target", "y", "--epsilon", "3"]
    ended = CliRunner().invoke(application, [*command, "--schema", str(tmp_path / "schema.json"), *wrong])
    assert ended.exit_code == 2
    assert why in " ".join(ended.output.split())
    assert not (tmp_path / "fed").exists()


def test_an_app_is_not_written_over_another_project(tmp_path: Path) -> None:
    from privopt.federated.flower_processes import write_app

    write_app(tmp_path / "own", {"run": "a"})
    write_app(tmp_path / "own", {"run": "b"})
    (tmp_path / "pyproject.toml").write_text("[project]\n")
    with pytest.raises(InputError, match="another project"):
        write_app(tmp_path, {"run": "a"})


def test_a_federation_that_is_running_is_not_started_again(tmp_path: Path) -> None:
    from privopt.federated.flower_processes import LocalFederation

    with (tmp_path / "lock").open("wb") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with pytest.raises(InputError, match="running already"), LocalFederation(tmp_path, {}, []):
            pass


def test_a_seed_of_nodes_gives_other_noise_for_other_users() -> None:
    nodes = NodesInProcess([GivenUsers([[0.0, 0, 0], [0.0, 0, 0]])], seed=3)
    totals = [nodes.ask({0: replace(asked(1), users=np.array(users), deviation=1.0)})[0].total for users in ([0], [1], [0])]
    assert (totals[0] == totals[2]).all()
    assert (totals[0] != totals[1]).all()


class Server:
    """The server's app, with the nodes in this process; `stops` is the round in which it is killed."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        pytest.importorskip("flwr", reason="federations need Flower: pip install 'privopt[federated]'")
        from privopt.runs import server_app

        self.file, self.run, self.stops = folder / "rows.csv", folder / "run", 0
        lines = [f"u{user},{user % 10},{'yes' if user % 10 > 4 else 'no'}" for user in range(300)]
        self.file.write_text("\n".join(["user,x,ill", *lines]) + "\n")
        monkeypatch.setattr(server_app, "FlowerNodes", self._nodes)
        self._app: Any = server_app.server

    @property
    def request(self) -> FederationRequest:
        schema = Schema.from_json({"target": {"classes": ["no", "yes"]}, "columns": {"x": {"low": 0, "high": 9}}})
        return FederationRequest("user", "ill", 4.0, self.file, settings=FederatedSettings(rounds=4), schema=schema, seed=1)

    def start(self, request: FederationRequest | None = None) -> RunFolder:
        config = {"run": str(self.run), "request": json.dumps((request or self.request).to_json())}
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(warnings, "showwarning", warnings.showwarning)
            self._app._main(None, SimpleNamespace(run_config=config))
        return RunFolder.open(self.run)

    def _nodes(self, *_: Any, **__: Any) -> Any:
        nodes, ask = TableNodes(prepare(self.request)), TableNodes.ask
        asked = 0

        def killed(requests: Any) -> Any:
            nonlocal asked
            asked += 1
            if asked == self.stops:
                raise KeyboardInterrupt
            return ask(nodes, requests)

        nodes.ask = killed  # type: ignore[method-assign]
        return nodes


def test_an_app_that_is_started_again_leaves_a_finished_run_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    server = Server(tmp_path, monkeypatch)
    before = server.start().model().slopes
    after = server.start()
    assert after.failure is None
    assert (after.model().slopes == before).all()
    with pytest.raises(InputError, match="begun with other settings"):
        server.start(replace(server.request, epsilon=8.0))
    assert after.failure is None


@pytest.mark.parametrize("wrong", ["moved", "edited"])
def test_a_run_whose_file_was_away_goes_on_when_it_is_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wrong: str) -> None:
    server = Server(tmp_path, monkeypatch)
    server.stops = 3
    with pytest.raises(KeyboardInterrupt):
        server.start()
    server.stops, text = 0, server.file.read_text()
    if wrong == "moved":
        server.file.unlink()
    else:
        server.file.write_text(text + "u299,3,yes\n")
    with pytest.raises(InputError):
        server.start()
    server.file.write_text(text)
    assert server.start().finished


def test_a_node_s_file_that_cannot_be_read_is_refused_when_users_are_counted(tmp_path: Path) -> None:
    counting = {name: PLAN[name] for name in ("file", "users", "target", "schema", "parts")}
    (tmp_path / "ragged.csv").write_text("user,x,kind,y\nu1,1,1,0,5,6\n")
    (tmp_path / "nobody.csv").write_text("user,x,kind,y\n,1,1,0\n")
    for name in ("ragged.csv", "nobody.csv"):
        with pytest.raises(InputError):
            find_users(counting, part=0, data=str(tmp_path / name))
