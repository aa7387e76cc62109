"""The laws, each for every implementation of the slot that it speaks of.

1. Adding or removing one example moves a clipped sum by at most the stated bound, whatever the example is.
2. A mean is divided by the expected batch size, exactly.
3. Norms and sums in closed form equal those of gradients computed one example at a time (tests/perexample).
4. Without noise and clipping each recipe is its counterpart without privacy (tests/papers).
5. What was planned is what the ledger holds after the run; what is calibrated costs the budget
   (tests/privacy/test_calibration.py).
6. A mechanism's noise has the stated distribution, and half of it is found.
7. Compositions that would not have the guarantee they state are refused before any data are read.
8. Nothing that depends on the examples leaves the private side without being paid for.
"""
