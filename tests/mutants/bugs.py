"""The seeded bugs."""

from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Bug:
    """A one-line mistake: `old` in a file of the source becomes `new`. One of `tests` fails then."""

    name: str
    file: str  # below src/privopt
    old: str
    new: str
    tests: tuple[str, ...]

    def text(self) -> str:
        """The file as it is."""
        return (ROOT / "src" / "privopt" / self.file).read_text()

    def seed(self, source: Path) -> None:
        """Put the bug into a copy of the source."""
        (source / "privopt" / self.file).write_text(self.text().replace(self.old, self.new))


BUGS = (
    Bug(
        "clip dropped",
        "measure/clips.py",
        "return bound * weight / (np.maximum(norms, bound) if isinstance(norms, np.ndarray) else norms.clip(bound))",
        "return norms * 0.0 + weight",
        ("tests/laws/test_bounded_sums.py",),
    ),
    Bug(
        "clip of double size",
        "measure/clips.py",
        "return bound * weight / (np.maximum(norms, bound)",
        "return 2 * bound * weight / (np.maximum(norms, 2 * bound)",
        ("tests/laws/test_bounded_sums.py",),
    ),
    Bug(
        "zero clip clips nothing",
        "measure/clips.py",
        "        return norms * 0.0\n",
        "        return norms * 0.0 + weight\n",
        ("tests/laws/test_bounded_sums.py",),
    ),
    Bug(
        "NaN keeps its weight",
        "measure/clips.py",
        "    return _of_finite(weights, weights)\n",
        "    return weights\n",
        ("tests/laws/test_bounded_sums.py",),
    ),
    Bug(
        "automatic clip without its stability",
        "measure/clips.py",
        "return _of_numbers(self.bound / (norms + self.stability) * weight)",
        "return _of_numbers(self.bound / (norms * norms + self.stability) * weight)",
        ("tests/laws/test_bounded_sums.py",),
    ),
    Bug(
        "per-layer bound is the largest layer's",
        "measure/clips.py",
        "return math.hypot(*self.bounds.values())",
        "return max(self.bounds.values())",
        ("tests/laws/test_bounded_sums.py", "tests/laws/test_measurements.py", "tests/nets/test_clips.py"),
    ),
    Bug(
        "per-layer clip ignores other layers' infinities",
        "measure/clips.py",
        "return {name: _of_finite(whole, inside[layer]) for name, layer in layers.items()}",
        "return {name: inside[layer] for name, layer in layers.items()}",
        ("tests/laws/test_bounded_sums.py", "tests/nets/test_clips.py"),
    ),
    Bug(
        "moved clip forgets its rate",
        "measure/clips.py",
        "return l2(min(self.rate * float(",
        "return l2(min(10 * self.rate * float(",
        ("tests/laws/test_bounded_sums.py", "tests/papers/test_dpsrm.py", "tests/measure/test_queries.py"),
    ),
    Bug(
        "noise for half the bound",
        "measure/measurement.py",
        "hidden = self.begin(at.current, sum(term.bound for term in terms) / expected, round_, rng)",
        "hidden = self.begin(at.current, sum(term.bound for term in terms) / 2 / expected, round_, rng)",
        ("tests/laws/test_measurements.py",),
    ),
    Bug(
        "noise for one term of several",
        "measure/measurement.py",
        "hidden = self.begin(at.current, sum(term.bound for term in terms) / expected, round_, rng)",
        "hidden = self.begin(at.current, terms[0].bound / expected, round_, rng)",
        ("tests/laws/test_measurements.py",),
    ),
    Bug(
        "divided by the drawn number",
        "measure/measurement.py",
        "        expected = self.sampler.expected(oracle.size)\n        hidden",
        "        expected = float(oracle.size if rows is None else max(1, len(rows)))\n        hidden",
        ("tests/laws/test_measurements.py",),
    ),
    Bug(
        "norm of noise and clip not compared",
        "measure/measurement.py",
        "if term.clip.order != self.mechanism.order:",
        "if False:",
        ("tests/laws/test_refusals.py", "tests/measure/test_measurement.py"),
    ),
    Bug(
        "weights count without their size",
        "measure/queries.py",
        "return abs(self.weight) * self.clip.bound",
        "return min(1.0, abs(self.weight)) * self.clip.bound",
        ("tests/laws/test_measurements.py", "tests/measure/test_queries.py", "tests/measure/test_measurement.py"),
    ),
    Bug(
        "Gaussian noise halved",
        "measure/mechanisms/gaussian.py",
        "return normal(like, self.noise_multiplier * bound, rng)",
        "return normal(like, self.noise_multiplier * bound / 2, rng)",
        ("tests/laws/test_measurements.py",),
    ),
    Bug(
        "Gaussian event of more noise",
        "measure/mechanisms/gaussian.py",
        "return GaussianDpEvent(self.noise_multiplier)",
        "return GaussianDpEvent(self.noise_multiplier * 1.1)",
        ("tests/laws/test_measurements.py", "tests/laws/test_violations.py", "tests/audit"),
    ),
    Bug(
        "Laplace noise halved",
        "measure/mechanisms/laplace.py",
        "return total + self.noise_multiplier * bound * randomness.laplace(total, rng)",
        "return total + self.noise_multiplier * bound / 2 * randomness.laplace(total, rng)",
        ("tests/laws/test_measurements.py",),
    ),
    Bug(
        "gamma noise of too few dimensions",
        "measure/mechanisms/gamma_norm.py",
        "length = rng.gamma(direction.size, ",
        "length = rng.gamma(direction.size / 2, ",
        ("tests/laws/test_measurements.py",),
    ),
    Bug(
        "gamma event twice as cheap",
        "measure/mechanisms/relative.py",
        "return PureDpEvent(1 / noise_multiplier)",
        "return PureDpEvent(0.5 / noise_multiplier)",
        ("tests/laws/test_measurements.py", "tests/measure/test_noisy_min.py", "tests/measure/test_sparse_vector.py"),
    ),
    Bug(
        "pool gives shares for nothing",
        "measure/mechanisms/gaussian_pool.py",
        "return gaussian(self.noise_multiplier / math.sqrt(share)).release(total, bound, rng), spent + share",
        "return gaussian(self.noise_multiplier / math.sqrt(share)).release(total, bound, rng), spent",
        ("tests/measure/test_gaussian_pool.py",),
    ),
    Bug(
        "pool ignores shares",
        "measure/mechanisms/gaussian_pool.py",
        "gaussian(self.noise_multiplier / math.sqrt(share)).release",
        "gaussian(self.noise_multiplier).release",
        ("tests/measure/test_gaussian_pool.py",),
    ),
    Bug(
        "noisy minimum raises scores",
        "measure/mechanisms/noisy_min.py",
        "np.argmin(scores - rng.exponential",
        "np.argmin(scores + rng.exponential",
        ("tests/measure/test_noisy_min.py",),
    ),
    Bug(
        "threshold noise forgotten",
        "measure/mechanisms/above_threshold.py",
        "return threshold + float(rng.laplace(0.0, 2 * self.noise_multiplier * bound))",
        "return threshold",
        ("tests/measure/test_sparse_vector.py",),
    ),
    Bug(
        "sparse vector answers once too often",
        "measure/sparse_vector.py",
        'carry = {"left": self.answers, ',
        'carry = {"left": self.answers + 1, ',
        ("tests/measure/test_sparse_vector.py",),
    ),
    Bug(
        "Poisson rate doubled",
        "measure/samplers.py",
        "        heads = rng.geometric(self.sampling_probability, count).cumsum()\n        while",
        "        heads = rng.geometric(min(1.0, 2 * self.sampling_probability), count).cumsum()\n        while",
        ("tests/measure/test_samplers.py", "tests/laws/test_measurements.py"),
    ),
    Bug(
        "Poisson event of half the rate",
        "measure/samplers.py",
        "return _sampled(self.sampling_probability, event)",
        "return _sampled(self.sampling_probability / 2, event)",
        ("tests/measure/test_samplers.py", "tests/laws/test_measurements.py", "tests/laws/test_planned_is_recorded.py"),
    ),
    Bug(
        "fixed size amplified as if smaller",
        "measure/samplers.py",
        "return SampledWithoutReplacementDpEvent(self.size, self.batch_size, event)",
        "return SampledWithoutReplacementDpEvent(2 * self.size, self.batch_size, event)",
        ("tests/measure/test_samplers.py", "tests/laws/test_measurements.py", "tests/laws/test_planned_is_recorded.py"),
    ),
    Bug(
        "disjoint batches cut by position",
        "measure/samplers.py",
        ".integers(batches, size=size)",
        ".integers(1, size=size) + np.arange(size) % batches",
        ("tests/measure/test_samplers.py",),
    ),
    Bug(
        "disjoint batches pay every other epoch",
        "measure/samplers.py",
        "return event if round_ % self.batches == 0 else NoOpDpEvent()",
        "return event if round_ % (2 * self.batches) == 0 else NoOpDpEvent()",
        ("tests/measure/test_samplers.py", "tests/laws/test_measurements.py"),
    ),
    Bug(
        "seed in place of entropy",
        "measure/randomness.py",
        "return keyed(secrets.randbits(KEY_BITS))",
        "return keyed(secrets.randbits(16))",
        ("tests/measure/test_randomness.py", "tests/laws/test_noise_is_keyed.py"),
    ),
    Bug(
        "key pooled",
        "measure/randomness.py",
        "ChaCha(key=key, counter=counter, rounds=ROUNDS)",
        "ChaCha(seed=key, counter=counter, rounds=ROUNDS)",
        ("tests/measure/test_randomness.py",),
    ),
    Bug(
        "fewer rounds of the cipher",
        "measure/randomness.py",
        "ROUNDS = 8\n",
        "ROUNDS = 2\n",
        ("tests/measure/test_randomness.py", "tests/laws/test_noise_is_keyed.py"),
    ),
    Bug(
        "torch keys of one word",
        "measure/torch_randomness.py",
        "return np.frombuffer(",
        "return 0 * np.frombuffer(",
        ("tests/measure/test_torch_randomness.py",),
    ),
    Bug(
        "parts of the noise repeat",
        "measure/torch_randomness.py",
        "partial(fill, key, start, numbers",
        "partial(fill, key, 0, numbers",
        ("tests/measure/test_torch_randomness.py",),
    ),
    Bug(
        "survey unpaid", "measure/survey.py", "    spending.pay([measurement.event(0)])\n", "", ("tests/measure/test_survey.py",)
    ),
    Bug(
        "survey pays for one column",
        "measure/survey.py",
        "noisy = _mean(self, math.sqrt(self.columns), noise_multiplier, spending, rng)",
        "noisy = _mean(self, 1.0, noise_multiplier, spending, rng)",
        ("tests/measure/test_survey.py", "tests/audit"),
    ),
    Bug(
        "rare categories named",
        "measure/survey.py",
        "threshold = 1 + sigma * float(",
        "threshold = 0 * sigma * float(",
        ("tests/measure/test_survey.py",),
    ),
    Bug(
        "stable solution forgets its steps",
        "measure/stable_solution.py",
        "* self.steps * self.learning_rate\n",
        "* self.learning_rate\n",
        ("tests/measure/test_stable_solution.py",),
    ),
    Bug(
        "stable solution uncut",
        "measure/stable_solution.py",
        "cut.sum(oracle(end, None)) / oracle.size",
        "oracle(end, None).weighted_sum(np.ones(oracle.size)) / oracle.size",
        ("tests/measure/test_stable_solution.py",),
    ),
    Bug(
        "rounds unpaid",
        "loop.py",
        "        spending.pay(events[done : done + block])\n",
        "        spending.position += block\n",
        ("tests/test_loop.py",),
    ),
    Bug(
        "drawn event not compared",
        "loop.py",
        "if noisy.event is not events[done] and noisy.event != events[done]:",
        "if False:",
        ("tests/test_loop.py", "tests/laws/test_violations.py"),
    ),
    Bug(
        "cap not asked",
        "privacy/ledger.py",
        "        return self.ledger.allows(events, self.name)\n",
        "        return True\n",
        ("tests/privacy/test_ledger.py",),
    ),
    Bug(
        "anchor not compared",
        "privacy/ledger.py",
        "if self._lines < anchor.lines:",
        "if False:",
        ("tests/privacy/test_ledger.py",),
    ),
    Bug(
        "older copy accepted",
        "privacy/ledger.py",
        "number == anchor.lines and self._tip != anchor.tip",
        "False",
        ("tests/privacy/test_ledger.py",),
    ),
    Bug(
        "ledger not synchronised",
        "privacy/ledger.py",
        "            _write_all(file, block)\n            os.fsync(file)\n",
        "            _write_all(file, block)\n",
        ("tests/privacy/test_ledger.py", "tests/privacy/test_ledger_processes.py", "tests/crash"),
    ),
    Bug(
        "filter of path-dependent order",
        "privacy/filters.py",
        "divergence += count * renyi(part, self.order, self.budget.neighbours)",
        "divergence += 0.5 * count * renyi(part, self.order, self.budget.neighbours)",
        ("tests/privacy/test_filters.py",),
    ),
    Bug("unit by name only", "privacy/budget.py", 'if self.unit != "example":', "if False:", ("tests/privacy/test_budget.py",)),
    Bug(
        "replace-one costs no more",
        "privacy/accountants.py",
        'return 2 if neighbours == "replace-one" else 1',
        "return 1",
        ("tests/privacy/test_accountants.py",),
    ),
    Bug(
        "other data replayed",
        "checkpoint.py",
        "if fingerprint != self._fingerprint or not self._answers_are(answers):",
        "if False:",
        ("tests/test_checkpoint.py", "tests/nets/test_fingerprint.py", "tests/nets/test_training.py"),
    ),
    Bug(
        "piece counted again",
        "measure/open_round.py",
        "        mean = self._taken()\n        self._added += 1\n",
        "        mean = self._mean\n",
        ("tests/nets/test_faults.py", "tests/nets/test_loops.py"),
    ),
    Bug(
        "round answers twice",
        "measure/open_round.py",
        "        mean = self._taken()\n        return self._hidden",
        "        mean = self._mean\n        return self._hidden",
        ("tests/nets/test_faults.py", "tests/nets/test_loops.py", "tests/measure"),
    ),
    Bug(
        "noise of an open round for a piece",
        "measure/open_round.py",
        "measurement.begin(zero, measurement.bound / self._expected, round_, rng)",
        "measurement.begin(zero, measurement.bound / self._expected / 4, round_, rng)",
        ("tests/nets/test_training.py", "tests/nets/test_loops.py", "tests/audit"),
    ),
    Bug(
        "one factor of two parameters counted once",
        "perexample/torch/grads.py",
        "return {name: part.squared_norms() if order == 2 else part.absolute_norms() for name, part in self._factors.items()}",
        "return {id(part): part.squared_norms() if order == 2 else part.absolute_norms() for part in self._factors.values()}",
        ("tests/laws/test_random_architectures.py",),
    ),
    Bug(
        "moments not settled",
        "perexample/torch/factors/outer.py",
        "return values if below is None else settled(self, values, below, 2, None)",
        "return values",
        ("tests/perexample/torch/test_cancelling.py", "tests/laws/test_random_architectures.py"),
    ),
    Bug(
        "gram norms not settled",
        "perexample/torch/factors/outer.py",
        "        return settled(self, values, values < CANCELLED * possible, 2, None)\n\n    def _gram_block",
        "        return values\n\n    def _gram_block",
        ("tests/perexample/torch/test_cancelling.py", "tests/laws/test_random_architectures.py"),
    ),
    Bug(
        "cross terms of calls counted once",
        "perexample/torch/factors/outer.py",
        "values.append(2 * torch.linalg.vecdot(cross_a",
        "values.append(torch.linalg.vecdot(cross_a",
        ("tests/perexample/torch/test_exact.py",),
    ),
    Bug(
        "repeated words not merged",
        "perexample/torch/factors/lookup.py",
        "if len(pairs) == len(keys):",
        "if True:",
        ("tests/perexample/torch/test_exact.py",),
    ),
    Bug(
        "readings not verified",
        "perexample/torch/glue.py",
        "if len(readings) == 1 or _adds_up(",
        "if True or _adds_up(",
        ("tests/nets/test_isolation.py",),
    ),
    Bug(
        "isolation skipped",
        "perexample/torch/check.py",
        "doubts += check_isolation(",
        "doubts += [] and check_isolation(",
        ("tests/nets/test_isolation.py",),
    ),
    Bug(
        "no random parameters in the check",
        "perexample/torch/isolation.py",
        "parameter.data = parameter.data + 0.3",
        "parameter.data = parameter.data + 0 * 0.3",
        ("tests/nets/test_isolation.py",),
    ),
    Bug(
        "rehearsals not compared",
        "nets/rehearsal.py",
        "if all(self._agree(part, whole) for part in self._found):",
        "if True:",
        ("tests/nets/test_isolation.py",),
    ),
    Bug(
        "batch norm let in",
        "perexample/torch/support.py",
        "if isinstance(module, _BatchNorm):",
        "if False and isinstance(module, _BatchNorm):",
        ("tests/perexample/torch/test_support.py", "tests/nets/test_refusals.py"),
    ),
    Bug(
        "calibration aims too high",
        "privacy/calibrate.py",
        "target = budget.epsilon * (1 - WASTE / 2)",
        "target = budget.epsilon * (1 + 4 * WASTE)",
        ("tests/privacy/test_calibrate.py",),
    ),
    Bug(
        "reductions over the batch not changed",
        "perexample/torch/isolation.py",
        "with Watch(PRIMES[0], change=place):",
        "with Watch(PRIMES[0]):",
        ("tests/nets/test_isolation.py",),
    ),
    Bug(
        "readings chosen by the batch's values",
        "perexample/torch/glue.py",
        "made = replace(frame, arguments=_made_up(frame.arguments), results=_made_up(frame.results))",
        "made = frame",
        ("tests/nets/test_isolation.py",),
    ),
)
