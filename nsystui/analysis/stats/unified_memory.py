"""To be written."""

from nsystui.analysis.stats.report import Report

REPORTS: tuple[Report, ...] = ()
