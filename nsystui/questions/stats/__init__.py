"""The reports of ``nsys stats`` by their names, with the same columns, rows, order and rounding.

See docs/numbers.md#nsys-stats. `nsystui.questions.catalogue.nsys_stats` declares them.
"""

from collections.abc import Iterable
from typing import Any

from nsystui.base.errors import UsageError, meant
from nsystui.base.types import grouped
from nsystui.exports import canonical
from nsystui.questions.queries.question import Question, of_family, question_named
from nsystui.questions.queries.recording import recording_advice
from nsystui.store.session import Session

FAMILY = "stats"
DEFAULT = (
    "nvtx_sum", "osrt_sum", "cuda_api_sum", "cuda_gpu_kern_sum", "cuda_gpu_mem_time_sum", "cuda_gpu_mem_size_sum",
    "openmp_sum", "um_sum", "um_total_sum", "um_cpu_page_faults_sum", "openacc_sum",
)  # fmt: skip
"""The default reports of ``nsys stats`` that nsystui has, in its order."""


def all_reports() -> tuple[Question, ...]:
    """Return all reports in alphabetical order."""
    return of_family(FAMILY)


def report_of(text: str) -> tuple[Question, Any]:
    """Return the report and options of ``cuda_gpu_kern_sum:nvtx-name:base``. Raises UsageError for unknown names."""
    name, *words = text.split(":")
    try:
        report = question_named(name, FAMILY)
    except KeyError:
        names = [report.name for report in all_reports()]
        hint = f"{meant(name, names, '')} --list-reports lists the reports".lstrip()
        raise UsageError(f"no report {name!r}: {hint}") from None
    options = {option.flag: option for option in report.options}
    values: dict[str, Any] = {}
    for word in words:
        key, sign, value = word.partition("=")
        option = options.get(key)
        if option is None or bool(sign) == option.is_switch:
            raise UsageError(
                f"report {report.name} has no option {word!r}: {options_of(report) or 'it has no options'}"
            )
        for other in [item.name for item in report.options if option.one_of and item.one_of == option.one_of]:
            values.pop(other, None)
        try:
            values[option.name] = True if option.is_switch else option.kind(value)
        except ValueError:
            raise UsageError(f"report {report.name}: {key}={value}: not a number") from None
    return report, report.read(values)


def options_of(report: Question) -> str:
    """Return the options of a report as written after its name: ``[:nvtx-name][:base|:mangled]``."""
    sets = grouped((option.one_of or option.flag, option) for option in report.options)
    forms = [
        [f":{option.flag}" if option.is_switch else f":{option.flag}={option.metavar}" for option in options]
        for options in sets.values()
    ]
    return "".join(f"[{'|'.join(form)}]" for form in forms)


def lacking(session: Session, report: Question) -> str:
    """Return a sentence on data that the exports lack for ``report``, with advice; empty if nothing is missing."""
    needs = [[canonical.BY_NAME[name] for name in group] for group in report.needs]
    groups = [group for group in needs if not any(item.has(table) for table in group for item in session.reports)]
    if not groups:
        return ""
    what = _joined(" or ".join(table.what for table in group) for group in groups)
    which = "this export" if len(session.reports) == 1 else "these exports"
    advice = _joined(recording_advice(session, session.reports, table) for group in groups for table in group)
    return f"no {what} in {which}: {advice}"


def _joined(words: Iterable[str]) -> str:
    return " and ".join(dict.fromkeys(words))
