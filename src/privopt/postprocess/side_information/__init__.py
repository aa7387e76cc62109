"""Side information: what is known publicly at an iterate. It shapes what is asked of the examples, and how answers are used.

It comes from public data, from common knowledge fixed before training, or from earlier private answers; never from the private
examples themselves.
"""

from privopt.postprocess.side_information.delayed import delayed_preconditioner
from privopt.postprocess.side_information.fixed import fixed_scale
from privopt.postprocess.side_information.public import (
    PublicGradient,
    least_seen,
    public_gradient,
    public_moments,
    public_rms,
    public_sum,
    seen_sizes,
)
from privopt.postprocess.side_information.slot import SideInformation, State, nothing
from privopt.postprocess.side_information.words import tf_idf, token_frequency

__all__ = [
    "PublicGradient",
    "SideInformation",
    "State",
    "delayed_preconditioner",
    "fixed_scale",
    "least_seen",
    "nothing",
    "public_gradient",
    "public_moments",
    "public_rms",
    "public_sum",
    "seen_sizes",
    "tf_idf",
    "token_frequency",
]
