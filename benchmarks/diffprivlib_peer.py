"""Logistic regression of diffprivlib, which needs an older scikit-learn than privopt: a program for an environment of its own.

    .venv/diffprivlib/bin/python benchmarks/diffprivlib_peer.py FILE.npz

The file holds rows, targets and test rows, the longest that a row can be, ε and a seed; probabilities of the classes are added
to it. `make bench` makes the environment. Objective perturbation, so δ is 0.
"""

import sys
import warnings

import numpy as np

if __name__ == "__main__":
    from diffprivlib.models import LogisticRegression

    warnings.simplefilter("ignore")
    given = dict(np.load(sys.argv[1]))
    settings = {"epsilon": float(given["epsilon"]), "data_norm": float(given["longest"]), "random_state": int(given["seed"])}
    model = LogisticRegression(max_iter=1000, **settings).fit(given["train"], given["targets"])
    np.savez(sys.argv[1], probabilities=model.predict_proba(given["test"]))
