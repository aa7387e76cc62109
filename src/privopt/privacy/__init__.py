"""What is claimed: budgets, events, accountants, calibration, the ledger and the statement."""
