"""Reports: what was released, for people who decide about it and for those whose data it is about.

Everything here is made of what a finished run has released: its statement, its ledger, its model and what was asked for. No row
is read, so a report costs no budget.
"""

from privopt.report.contents import Contents
from privopt.report.deployments import registry_entry
from privopt.report.model_card import write_card
from privopt.report.page import render_page, try_report, write_report

__all__ = ["Contents", "registry_entry", "render_page", "try_report", "write_card", "write_report"]
