"""Scales of word counts, from a corpus that is public.

Computed on the private rows they would leak: a word that one row alone has would show. `privopt.measure.survey.column_sizes`
measures the private rows, with noise, and pays for it.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from privopt.errors import InputError


def token_frequency(counts: Any) -> NDArray[np.float64]:
    """A_j = (documents with word j + 1)/(documents + 1), for a public documents × words matrix, dense or sparse.

    >>> token_frequency(np.array([[2, 1, 0], [1, 0, 0], [4, 0, 0]])).tolist()
    [1.0, 0.5, 0.25]
    """
    present = _present(counts)
    return (present + 1) / (_documents(counts) + 1)


def tf_idf(counts: Any) -> NDArray[np.float64]:
    """A_j = 1/(mean TF-IDF score of word j), so that the largest score has A = 1, for a public documents × words matrix.

    tf is the word's share of a document, idf = ln((documents + 1)/(documents with it + 1)) + 1. A word that the corpus lacks
    counts as if half a document had it once.

    >>> tf_idf(np.array([[2, 2], [4, 0]])).round(2).tolist()
    [1.0, 2.13]
    """
    documents, present = _documents(counts), _present(counts)
    lengths = np.asarray(counts.sum(axis=1), dtype=float).ravel()
    shares = np.asarray(counts.T @ (1 / np.maximum(lengths, 1.0))).ravel()
    typical = max(float(np.median(lengths)), 1.0)
    score = np.maximum(shares, 0.5 / typical) * (np.log((documents + 1) / (present + 1)) + 1)
    return np.asarray(score.max() / score)


def _documents(counts: Any) -> int:
    if counts.ndim != 2 or not counts.shape[0] or not counts.shape[1]:
        raise InputError(f"a corpus is a documents × words matrix of counts, not of shape {counts.shape}.")
    return int(counts.shape[0])


def _present(counts: Any) -> NDArray[np.float64]:
    """In how many documents each word is."""
    return np.asarray((counts != 0).sum(axis=0), dtype=float).ravel()
