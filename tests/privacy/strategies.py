"""Events of every kind, for hypothesis."""

from hypothesis import strategies as st

from privopt.measure.samplers import several_rows
from privopt.privacy.events import (
    ComposedDpEvent,
    DpEvent,
    FailureDpEvent,
    GaussianDpEvent,
    LaplaceDpEvent,
    MixtureOfGaussiansDpEvent,
    NonPrivateDpEvent,
    NoOpDpEvent,
    PoissonSampledDpEvent,
    PureDpEvent,
    RepeatAndSelectDpEvent,
    SampledWithoutReplacementDpEvent,
    SelfComposedDpEvent,
)

_positive = st.floats(1e-6, 1e6)
simple: st.SearchStrategy[DpEvent] = st.one_of(
    st.builds(GaussianDpEvent, _positive),
    st.builds(LaplaceDpEvent, _positive),
    st.builds(PureDpEvent, _positive),
    st.builds(FailureDpEvent, st.floats(1e-12, 0.1)),
    st.just(NonPrivateDpEvent()),
    st.just(NoOpDpEvent()),
)
sampled: st.SearchStrategy[DpEvent] = st.one_of(
    simple,
    st.builds(PoissonSampledDpEvent, st.floats(1e-6, 1.0), st.builds(GaussianDpEvent, _positive)),
    st.builds(several_rows, st.floats(1e-6, 1.0), st.integers(1, 40), _positive),
    st.builds(SampledWithoutReplacementDpEvent, st.just(100), st.integers(1, 100), st.builds(LaplaceDpEvent, _positive)),
    st.builds(RepeatAndSelectDpEvent, st.builds(GaussianDpEvent, _positive), st.floats(1.0, 1e6), st.floats(0.0, 10.0)),
)
few: st.SearchStrategy[DpEvent] = st.sampled_from(  # equal ones are likely to meet
    [GaussianDpEvent(1.0), GaussianDpEvent(2.0), PureDpEvent(0.1), NoOpDpEvent()]
)


def nested(leaves: st.SearchStrategy[DpEvent]) -> st.SearchStrategy[DpEvent]:
    """Compositions of compositions."""
    return st.recursive(
        leaves,
        lambda inner: st.one_of(
            st.builds(SelfComposedDpEvent, inner, st.integers(0, 3)),
            st.builds(ComposedDpEvent, st.lists(inner, max_size=3)),
        ),
        max_leaves=6,
    )


KINDS = {
    ComposedDpEvent,
    FailureDpEvent,
    GaussianDpEvent,
    LaplaceDpEvent,
    MixtureOfGaussiansDpEvent,
    NonPrivateDpEvent,
    NoOpDpEvent,
    PoissonSampledDpEvent,
    PureDpEvent,
    RepeatAndSelectDpEvent,
    SampledWithoutReplacementDpEvent,
    SelfComposedDpEvent,
}
