"""Law 8, as far as a reader of the source can see it: randomness is drawn in the private side's mechanisms and samplers only."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import privopt

SOURCE = Path(privopt.__file__).parent
GENERIC = {"bit_generator", "f", "power", "spawn"}  # words that other objects use as well
DRAWING = {name for name in dir(np.random.Generator) if not name.startswith("_")} - GENERIC
DRAWING |= {"rand", "randn", "randint", "random_sample", "rvs", "betavariate", "gauss", "normalvariate", "sample", "choices"}
DRAWING |= {"randbits", "randbelow", "token_bytes", "urandom", "getrandbits"}
DRAWING |= {"randperm", "rand_like", "randn_like", "randint_like", "bernoulli", "normal_", "uniform_", "bernoulli_", "random_"}
DRAWING |= {"exponential_", "cauchy_", "geometric_", "log_normal_"}
DRAWING |= {"random_raw"}
SOURCES_OF_RANDOMNESS = {
    "default_rng",
    "Generator",
    "RandomState",
    "PCG64",
    "PCG64DXSM",
    "MT19937",
    "Philox",
    "SFC64",
    "ChaCha",
    "AESCounter",
    "RDRAND",
    "ExtendedGenerator",
    "from_key",
    "Cipher",
    "keystream",
}

DRAWN = {  # by these names, and by no others
    "measure/randomness/__init__.py": {"randbits", "random_raw", "bytes", "Generator", "ChaCha", "from_key"}
    | {"normal", "standard_normal", "laplace"},
    "measure/randomness/torch_noise.py": {"standard_normal"},
    "measure/randomness/keyed_normal.py": {"keystream"},
    "measure/samplers.py": {"choice", "geometric", "integers", "from_key"},  # rows, and cuts by their key
    "measure/selection.py": {"geometric", "integers", "from_key"},  # trials, their candidates, and a generator for each
    "measure/mechanisms.py": {"normal", "laplace", "exponential", "standard_normal", "gamma"},
    "postprocess/release.py": {"integers", "choice"},
    "perexample/linear_oracle.py": {"permutation", "Generator", "PCG64DXSM"},  # the order of public rows: it hides nothing
    "perexample/networks/examples.py": {
        "rand",
        "randn",
        "randint",
        "Generator",
    },  # made-up examples, to try a model on: they hide nothing
    "perexample/networks/isolation/model_check.py": {"rand", "Generator"},
    "perexample/networks/model_state.py": {"randn", "Generator"},  # made-up parameters
    "perexample/networks/rng.py": {"MT19937", "integers"}  # the seed of dropout, and its generator in place of NumPy's global one
    | {"rand", "randn", "rand_like", "randn_like", "randint", "randint_like", "bernoulli", "bernoulli_", "poisson"}
    | {"normal", "normal_", "uniform_", "exponential_"},  # functions that are replaced by constants
    "perexample/networks/apart.py": {"rand", "randn"},  # functions whose single draws examples share, as in a batch
    "perexample/networks/torch_grads.py": {"randint"},  # the seed of dropout
    "nets/ranked.py": {"randint"},  # the seed of dropout, the same for all ranks
    "nets/identity.py": {"rand", "randn", "Generator"},  # made-up examples
    "nets/data.py": {"Generator"},
    "nets/private_loop.py": {"from_key"},  # which rows of a person count
    "nets/loading.py": {"Generator"},  # of a loader of workers, which draws nothing with it
    "nets/scattering.py": {"rand", "Generator"},  # made-up images
    "nets/facts.py": {"randn", "Generator"},  # made-up moves of parameters
    "cli/demo.py": {"random"},  # a made-up table
    "runs/federation.py": {"integers"},  # which row of a user is surveyed
    "nets/table_network.py": {"integers", "Generator"},  # the seed of the start, and made-up rows
}


def draws(source: str) -> Iterator[str]:
    """By which names randomness is drawn or a generator of it is made; a method that is only handed on, or imported, counts."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Attribute) and node.attr in DRAWING - {"random"}:
            yield node.attr
        if isinstance(node, ast.Call):
            name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            if name in SOURCES_OF_RANDOMNESS or (name == "random" and isinstance(node.func, ast.Attribute)):
                yield name
        if isinstance(node, ast.ImportFrom) and re.match(r"(?!privopt\.)|.*\.randomness$", node.module or ""):
            yield from (alias.name for alias in node.names if alias.name in DRAWING)


def test_randomness_is_drawn_where_it_is_paid_for_and_nowhere_else() -> None:
    found = {path.relative_to(SOURCE).as_posix(): set(draws(path.read_text())) for path in SOURCE.rglob("*.py")}
    assert {file: names for file, names in found.items() if names} == DRAWN


@pytest.mark.parametrize(
    ("source", "name"),
    [
        ("def f(rng, x):\n    return x + rng.normal(0, 1, x.shape)", "normal"),
        ("import numpy as np\nnoise = np.random.default_rng(0)", "default_rng"),
        ("from numpy.random import default_rng\nnoise = default_rng()", "default_rng"),
        ("import random\nchosen = random.choice([1, 2])", "choice"),
        ("rng.shuffle(rows)", "shuffle"),
        ("rng.random(3)", "random"),
        ("from privopt.measure.randomness import Rng, normal", "normal"),
        ("draw = torch.randn if normal else None", "randn"),
        ("from scipy import stats\nstats.norm.rvs(size=3)", "rvs"),
        ("stream = Cipher(AES(key), CTR(counter)).encryptor()", "Cipher"),
        ("keystream(key, 0, 0, words)", "keystream"),
        ("bits = np.random.PCG64DXSM(key)", "PCG64DXSM"),
        ("from randomgen import ChaCha\nbits = ChaCha(5)", "ChaCha"),
        ("rng = from_key(5)", "from_key"),
        ("noise = torch.empty(3).exponential_()", "exponential_"),
        ("from secrets import randbits\nkey = randbits(128)", "randbits"),
    ],
)
def test_a_draw_anywhere_else_would_be_found(source: str, name: str) -> None:
    assert list(draws(source)) == [name]
