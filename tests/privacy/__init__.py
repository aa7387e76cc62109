"""Tests of what is claimed: events, accountants, calibration, the ledger and the statement."""
