"""Audits: law 10, for every private method, from its front end to its answers. Also the seed of a command that audits.

*The game.* An estimator or `fit` trains on data with a canary and on data without it (`frontends`); what it hands to the loop
is replayed thousands of times with fresh noise, by the real loop and the real measurements (`transcripts`); a first round
alone is one measurement of vectors that are repeated end to end, hundreds of thousands of times. An adversary who knows both
data sets and sees every answer of every round has to tell which it was. The canary is the worst that the claim allows: its
clipped vector is as long as the bound in every round, beside other rows, or alone where sampling hides it among them.
`make_private` (`loops`), surveys (`surveys`) and single mechanisms have games of their own. `games` is the table of all.

*The statistic.* A replay's score is the logarithm of how much likelier its answers are with the canary than without, by the
stated distributions. Nothing tells the two apart better; for one Gaussian or Laplace answer the bound comes close to the claim.

*The confidence.* A threshold is chosen on one half of the replays and used on the other, with Clopper and Pearson's intervals
(`auditing`). One audit is wrong with probability at most 10⁻⁶, so all of them together, fewer than two hundred, raise a false
alarm with probability below 2 · 10⁻⁴. Seeds are fixed: an audit that passed once passes always.

*That it can fail.* `test_violations` breaks the code (half the noise, no clip, a norm that is too short, everybody sampled, …),
and the same games, on a few thousand replays, have to report it.

*The long mode* plays on a hundred times as many replays, for a few hours:

    PRIVOPT_LONG=1 pytest tests/audit

`python benchmarks/audits.py` plays all games and writes a table of claims and bounds.
"""
