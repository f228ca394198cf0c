"""``nsystui stats``: reports of ``nsys stats`` by their names."""

from __future__ import annotations

import argparse

from nsystui.commands import arguments as shared

DESCRIPTION = """Reports of `nsys stats` by their names. With --format csv the output is that of
`nsys stats -q --format csv -r REPORT FILE`: same header, rows, order and rounding; with several files the statistics
are exact over all of them."""
EXAMPLES = """  nsystui stats -r cuda_gpu_kern_sum --format csv rank0.sqlite
  nsystui stats -r cuda_gpu_kern_sum:base,cuda_gpu_mem_time_sum rank*.sqlite
  nsystui stats --list-reports"""


class _ListReports(argparse.Action):
    """Prints the reports and ends, as ``--help`` does: no file is needed for it."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        from nsystui.analysis.stats import REPORTS
        from nsystui.output.stdout import quiet_pipe

        with quiet_pipe() as stream:
            stream.writelines(f"{report.name:24} {report.what}\n" for report in REPORTS.values())
        parser.exit()


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "-r", "--report", required=True, metavar="REPORT", help="report names, separated by commas", dest="report"
    )
    parser.add_argument("--list-reports", action=_ListReports, nargs=0, help="print the reports and end")
    shared.add_files(parser)
    shared.add_selection(parser)
    shared.add_format(parser)


def run(arguments: argparse.Namespace) -> int:
    from nsystui.analysis.stats import report_of

    wanted = [report_of(text.strip()) for text in arguments.report.split(",")]
    job = shared.open_job(arguments)
    try:
        selection = shared.selection_of(arguments, job)
        return shared.deliver_all(arguments, [report.ask(job.session, selection, options) for report, options in wanted])
    finally:
        job.close()
