"""Default rules: rounds, clip bound, step size and release, from public quantities alone.

A rule knows n examples, f directions, the noise that the accountant asks for, the length R of a typical row and the loss. It
never sees a value of the data, so it costs nothing; and no data set is named in it.

Linear models. T rounds of step η on full batches: the averaged gradient carries noise s = zC/n on each coordinate, with
z = √T/μ where μ is what (ε, δ) buys. T rounds move a coordinate by η√T s = (ηT)C/(nμ): T cancels, so more rounds cost time, not
privacy. What matters is the *displacement by noise* that we allow, κ/R; a row of length R then sees its score shaken by κ.

- Along directions whose curvature L is small, LηT ≪ 1, descent gains |g|²ηT and noise costs κ²/8 in all. If the signal is spread
  over all f directions, the best κ is proportional to q = nμ/f; along directions with LηT ≫ 1, averaging the tail keeps the
  noise from growing with κ at all. The effective dimension lies somewhere between 1 and f: κ = q^(1/3), cut to [1/4, 4], is a
  hedge between the two. The exponent is empirical; a model of pure noise then loses no more than κ²/8.
- The data's own sampling noise acts like privacy noise: 1/q² becomes 1/q² + f/n, which stops overfitting as ε grows.
- Of K classes each is learnt from about n/K rows, so the quality that counts is q/K; useful scores grow with log₂ K.
- Adam and RMSProp divide by √v ≈ s while noise dominates, so a learning rate of κ/(R√T) displaces by κ/R; once the gradient
  dominates, √v exceeds s and the step limits itself. Without noise even one row alone would move a coefficient at the full
  rate, which overfits where columns are rare: √v + stability is at least the size of five rows' gradients.
- Descent takes κ/(R√T s), capped by the smoothness of the loss, 1/(LR²).
- Noise is proportional to the clip bound, bias falls with it: C is half the gradient of a typical row at θ = 0 where noise
  dominates, grows with q to the whole of it at q = 4, waits, and grows with √q from q = 9 on to the largest possible one, where
  nothing is clipped and probabilities are calibrated. Below a typical gradient all rows count alike, and scores drift to the
  commonest class, since the rare one's residuals are the longest: a model of columns that say little loses more by that than by
  noise. Where 4 lies is empirical.
- Batches of expected size b < n: nμ becomes b√T/z (the same for full batches), and s gains the sampling noise of a batch.
  Sampling amplifies without loss only while z ≥ 1 or so, which asks for T ≈ 2(μn/b)² rounds.

The mean of the last half of the iterates is released, which averages out most of the noise that the last one still carries;
except for plain descent, which is still on its way and releases the last.

Numeric columns of tables. A column with m knots is m − 1 hats. A row's part of it has the same length whatever m is, so the noise
on the scores of rows is the same, too; but each hat is learnt from its part of the rows, and Adam moves all of them by κ/R in the
same time. So the number of features is limited: to one for each 9 of nμ, and to one for each 100 rows, since data have noise of
their own. The numeric columns share what the others leave: one knot for each 115 of nμ, at most 16 each. With fewer than 3,
columns stay lines. The numbers are empirical.

Linear or a network. Hats bend in each column, so all that a network adds are interactions of columns, and all of its weights move
in noise. It was worse than hats on most tables of eight columns or more, and better on three of up to five columns, whose
interactions are few: with at most five columns, 900 rows and 250 of nμ for each, a network pays. The numbers are empirical.

The mean. Noise is proportional to C, and C to the length R of a typical row. A row whose columns lie in [−1, 1] has
E‖x‖² = ‖E x‖² + E‖x − E x‖², and the first part says nothing about what distinguishes rows: it is what the intercept is for. So
columns that stay lines are centred at their mean, measured once. A row is at most √f long, so with a share p of the squared
budget each of the f columns' means has an error of √(f/p)/(nμ). The share is what gives ±0.1, from 0.5 % to 5 %; where 5 % leave
more than ±0.25, the error would lengthen rows, and nothing is measured. Sparse rows stay sparse, and hats are 0 in most places
anyway.

The start. Rounds of noise are a bad way to learn how rare a class is: an intercept has to travel log(1/p) there. Its shares are
measured once, to ±0.05 if that costs a quarter of the squared budget or less, and with a fiftieth of it if they come cheaper.

Rounds. Where q exceeds 200, what is left to learn is worth time: q rounds, up to 1000.

Networks. Near its start a network is a linear model, score(x) ≈ score₀(x) + ∇score(x)·(θ − θ₀), with the gradient of its score as
the row. So the rule is the same, with the length G of a typical gradient in the place of R, measured on made-up examples. It
differs where a network does:

- Signal against noise is q = b√T/(z (d + 1)) for d inputs: the directions that matter are counted by inputs, not by weights.
- κ is 2 at most: beyond that the network leaves the neighbourhood that the argument is about, and its gradients outgrow the clip
  bound. Exponent and cuts are empirical.
- Deep networks leave that neighbourhood sooner: noise moves each parameter by no more than a distance at which the gradients of
  made-up examples are still within 40 times their length at the start.
- C grows with √q from half of G × the largest residual to 1.2 times that, because G grows in training.
- Classes by descent with momentum: the step is in units of C, since noise moves a parameter by η√T zC/b. κ is 1 at most, and a
  round moves the score of a typical example by no more than 200 if all gradients are alike: longer steps did not train. For more
  than two classes C is a fiftieth of the longest gradient, so nearly every gradient counts alike until it is small. For two that
  gained nothing, and made probabilities worse.
- Numbers by descent with momentum: κ and its bound are half of that, C a quarter, and with that C steps of 8/(LG²) are stable,
  since a gradient that is clipped pulls no harder when the score is further away. The numbers are empirical.
- Batches of 2048: smaller ones amplify no better, larger ones only take time. At least 300 rounds, at most 30 data passes.

SAGD. The rule is that of RMSProp, for Laplace noise after a clip in l1.

Laplace noise of multiplier z after a clip to l1 norm C₁ has the variance of Gaussian noise of multiplier √2 z C₁/C₂ after a
clip to l2 norm C₂: the rule is asked for that. Of the l1 and l2 norms of a row it is publicly known only that their ratio lies
between 1 and √f, for f columns: f^¼, the middle of it, is C₁/C₂; times √2 for several classes, whose residuals are vectors too.

Without δ the noise of a round grows with the number T of rounds, and not with its root: what all rounds together displace grows
with √T, and few rounds are better. The running mean v starts from 0, so it is too small until it has forgotten that: it is one
over ten rounds or so.
"""

import math
from typing import Any, Literal

from privopt.methods.problem import Problem
from privopt.postprocess.release import average, last

MOMENTUM = 0.9
PASSES = 30  # over the data, at most
ROUNDS = {"linear": 200, "network": 300}
DESCENT_ROUNDS = 400  # of a linear model
FEW_ROWS = 5.0  # whose gradients move a coefficient of a linear model at half the rate
MOST_LINEAR_ROUNDS = 1000  # when the budget is large, so that what is left to learn is worth the time
Arguments = dict[str, Any]  # of a recipe, by name
Kind = Literal["adaptive", "momentum", "descent"]  # divides by the size of gradients; rolls on; neither


LEAST_KNOTS, MOST_KNOTS = 3, 16
QUALITY_OF_A_FEATURE = 9.0  # nμ for each feature of a model with hats
ROWS_OF_A_FEATURE = 100
QUALITY_OF_A_KNOT = 115.0  # nμ for each knot of a column


def column_knots(size: int, numeric: int, others: int, single_release_noise: float) -> int:
    """The most knots of each of the `numeric` columns; 2 stands for a line. See the top of this file."""
    features = min(size / (QUALITY_OF_A_FEATURE * single_release_noise), size / ROWS_OF_A_FEATURE)
    shared = (features - others) / max(numeric, 1)
    asked = min(shared, size / (QUALITY_OF_A_KNOT * single_release_noise), MOST_KNOTS)
    return int(asked) if asked >= LEAST_KNOTS else 2


MOST_INTERACTING = 5  # columns of a table that a network learns,
ROWS_OF_A_COLUMN, QUALITY_OF_A_COLUMN = 900, 250.0  # and rows and nμ for each


def network_pays(size: int, columns: int, single_release_noise: float) -> bool:
    """Whether a small network is expected to be better than a linear model of hats. See the top of this file."""
    width = columns + 1
    enough = size >= ROWS_OF_A_COLUMN * width and size >= QUALITY_OF_A_COLUMN * width * single_release_noise
    return enough and columns <= MOST_INTERACTING


START_ERROR = 0.05  # of what an intercept starts at, if that costs between these shares of the squared budget
START_SHARES = (0.02, 0.25)


def start_share(size: int, single_release_noise: float) -> float:
    """The share of the squared budget that measures what an intercept starts at. See the top of this file."""
    least, most = START_SHARES
    return min(max((single_release_noise / (START_ERROR * size)) ** 2, least), most)


MEAN_ERROR = 0.1  # of each column's mean, in units of its range, if that costs between these shares of the squared budget
MEAN_SHARES = (0.005, 0.05)
WORST_MEAN_ERROR = 0.25  # with which a mean is still worth measuring


def mean_share(size: int, columns: int, single_release_noise: float) -> float | None:
    """The share of the squared budget that measures the mean of the columns; `None` if not worth it. See the top of this file."""
    least, most = MEAN_SHARES
    squared = columns * (single_release_noise / size) ** 2  # of the error that the whole budget leaves
    if squared / most > WORST_MEAN_ERROR**2:
        return None
    return min(max(squared / MEAN_ERROR**2, least), most)


def default_rounds(problem: Problem, *, descent: bool = False) -> int:
    """As many as were chosen; else enough to be stable, and for small batches enough to be amplified."""
    if problem.chosen.rounds:
        return problem.chosen.rounds
    least = ROUNDS[problem.model]
    if problem.batch == problem.size:
        if problem.model != "linear":
            return least
        quality = problem.size / (max(problem.single_release_noise, 1e-12) * problem.width)
        return round(max(DESCENT_ROUNDS if descent else least, min(quality, MOST_LINEAR_ROUNDS)))
    amplified = 2 * (problem.size / (problem.single_release_noise * problem.batch)) ** 2
    return round(max(float(least), min(amplified, PASSES * problem.size / problem.batch)))


def default_steps(
    kind: Kind, problem: Problem, noise_multiplier: float, rounds: int, *, batch: float | None = None, longer: float = 1.0
) -> Arguments:
    """Clip bound, learning rate, release rule and what this kind of step needs beside them.

    What the user chose is taken as it is; the clip bound that was chosen is for vectors `longer` times a gradient. `batch`
    is the expected number of examples of a round, where it is not the problem's.
    """
    b = problem.batch if batch is None else batch
    bound = problem.chosen.bound
    chosen = None if bound is None else bound / longer
    if problem.model == "linear":
        clip_bound, rate, noise = _linear(problem, noise_multiplier, rounds, b, chosen)
    else:
        clip_bound, rate, noise = _network(kind, problem, noise_multiplier, rounds, b, chosen)
    chosen_rate = problem.chosen.rate
    if kind == "adaptive":
        few = FEW_ROWS * problem.loss.residual * problem.row_norm / problem.size if problem.model == "linear" else 0.0
        return {
            "clip_bound": clip_bound,
            "learning_rate": chosen_rate or rate,
            "stability": max(1e-3 * noise, few - noise),
            "release": average("last half"),
        }
    cap = 1 / problem.smoothness
    if _learns_number(kind, problem) and chosen is None:
        cap = STEEPER / problem.smoothness
    if _in_clip_units(kind, problem):
        cap = (1 - MOMENTUM) * LONGEST / (clip_bound * problem.row_norm)
    descent = rate / max(noise, 1e-300)
    if kind == "descent":
        return {"clip_bound": clip_bound, "learning_rate": chosen_rate or min(descent, cap), "release": last()}
    return {
        "clip_bound": clip_bound,
        "learning_rate": chosen_rate or min(descent * (1 - MOMENTUM), cap),
        "momentum_decay": MOMENTUM,
        "release": average("last half"),
    }


def _linear(problem: Problem, z: float, rounds: int, batch: float, clip_bound: float | None) -> tuple[float, float, float]:
    """Clip bound, κ/(R√T), and the noise of an averaged gradient on each coordinate."""
    loss, width, row_norm = problem.loss, problem.width, problem.row_norm
    quality = batch * math.sqrt(rounds) / (max(z, 1e-12) * width)
    limited = 1 / math.sqrt(1 / quality**2 + width / min(problem.size, batch * rounds))
    shake = max(loss.reach * min((limited / loss.outputs) ** (1 / 3), 4.0), min(loss.reach, 1.0) / 4)
    if clip_bound is None:
        each = quality / loss.outputs
        growth = max(0.5, min(each / 4, 1.0), math.sqrt(each) / 3)
        clip_bound = row_norm * min(loss.residual * growth, loss.largest)
    noise = z * clip_bound / batch
    if batch < problem.size:
        noise = math.hypot(noise, loss.residual * row_norm / math.sqrt(batch * width))
    return clip_bound, shake / (row_norm * math.sqrt(rounds)), noise


SHAKES = {"adaptive": 2.0, "momentum": 1.0, "descent": 2.0}  # κ of a network at most
CLIPPED = 0.02  # C in units of the longest gradient, for more than two classes
LONGEST = 200.0  # move of a typical score by a mean of clipped gradients that are all alike, in a round
NUMBER_CLIP, NUMBER_SHAKE = 0.25, 0.5  # of C and κ, for a number that is learnt by momentum
STEEPER = 8.0  # times 1/(LG²), which small clip bounds keep stable


def _in_clip_units(kind: Kind, problem: Problem) -> bool:
    """Whether the step is so many clip bounds long: a network learns classes by descent with momentum."""
    return problem.model != "linear" and kind == "momentum" and problem.loss.reach >= 1


def _learns_number(kind: Kind, problem: Problem) -> bool:
    """Whether a network learns a number by descent with momentum."""
    return problem.model == "network" and kind == "momentum" and problem.loss.reach < 1


def _network(
    kind: Kind, problem: Problem, z: float, rounds: int, batch: float, clip_bound: float | None
) -> tuple[float, float, float]:
    loss, row_norm = problem.loss, problem.row_norm
    quality, reach = batch * math.sqrt(rounds) / (max(z, 1e-12) * problem.width), min(loss.reach, 1.0)
    shake = min(max(reach * quality ** (1 / 3), reach / 4), SHAKES[kind])
    number, longest = _learns_number(kind, problem), loss.largest * row_norm
    shake *= NUMBER_SHAKE if number else 1.0
    if clip_bound is None:
        grown = min(max(math.sqrt(quality / loss.outputs) / 6, 0.5), 1.2) * (NUMBER_CLIP if number else 1.0)
        clip_bound = longest * (CLIPPED if _in_clip_units(kind, problem) and loss.outputs > 2 else grown)
    sampled = min(clip_bound, longest / 2) * math.sqrt(batch / problem.dimension)
    noise = math.hypot(z * clip_bound, sampled) / batch
    rate = min(shake / (row_norm * math.sqrt(rounds)), problem.stable_move / math.sqrt(rounds))
    return clip_bound, rate, noise


def adaptive_defaults(problem: Problem, noise_multiplier: float) -> Arguments:
    """For a method that divides its steps by the size of gradients, like Adam."""
    return _sampled("adaptive", problem, noise_multiplier)


def momentum_defaults(problem: Problem, noise_multiplier: float) -> Arguments:
    """For descent with momentum."""
    return _sampled("momentum", problem, noise_multiplier)


def descent_defaults(problem: Problem, noise_multiplier: float) -> Arguments:
    """For plain descent on all examples."""
    whole = problem.on_all_examples
    rounds = default_rounds(whole, descent=True)
    return {"rounds": rounds, "regularizer": problem.regularizer, **default_steps("descent", whole, noise_multiplier, rounds)}


def _sampled(kind: Kind, problem: Problem, noise_multiplier: float) -> Arguments:
    rounds = default_rounds(problem)
    common = {"rounds": rounds, "sampling": problem.sampler, "regularizer": problem.regularizer}
    return {**common, **default_steps(kind, problem, noise_multiplier, rounds)}


# ---------------------------------------------------------------- SAGD


LAPLACE_ROUNDS, PURE_ROUNDS = 200, 20
DECAY = 0.9


def laplace_steps(problem: Problem, noise_multiplier: float, rounds: int, batch: float, *, noisy: int | None = None) -> Arguments:
    """Clip bound, learning rate, decay, stability and release of so many rounds, of which `noisy` have noise, if not all."""
    noisy = noisy or rounds
    wider = problem.width**0.25 * (math.sqrt(2) if problem.loss.outputs > 1 else 1.0)
    free = problem.choosing(learning_rate=None)
    found = default_steps("adaptive", free, math.sqrt(2) * wider * noise_multiplier, noisy, batch=batch, longer=wider)
    rate = found["learning_rate"] * math.sqrt(noisy / rounds)  # the rule shares it out among √rounds
    return {**found, "clip_bound": wider * found["clip_bound"], "learning_rate": rate, "decay": DECAY}
