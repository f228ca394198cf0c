"""``nsystui report``: the page and its Markdown, against the commands' own answers, and in a real browser."""

import base64
import re
import shutil
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from browser import Browser, browser
from support import damage_rows, fingerprint
from synthetic import ExportWriter, empty_export, hostile_names_export
from synthetic.demo import TrainingJob
from synthetic.variants import start_gpu_process

from nsystui.cli import main


class Page(HTMLParser):
    """A parsed page: its tables by section, with captions, and all of its text."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.source = path.read_text(encoding="utf-8")
        self.tables: dict[str, list[tuple[str, list[list[str]]]]] = {}
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self._section = ""
        self._inside: list[str] = []
        self.feed(self.source)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag == "section":
            self._section = str(dict(attrs)["id"])
        elif tag == "table":
            self.tables.setdefault(self._section, []).append(("", []))
        elif tag == "tr":
            self.tables[self._section][-1][1].append([])
        elif tag in ("td", "th"):
            self.tables[self._section][-1][1][-1].append("")
        self._inside.append(tag)

    def handle_endtag(self, tag: str) -> None:
        while self._inside and self._inside.pop() != tag:
            pass

    def handle_data(self, data: str) -> None:
        if {"script", "style"} & set(self._inside):
            return
        self.text += data
        if "table" in self._inside:
            title, rows = self.tables[self._section][-1]
            if "caption" in self._inside:
                self.tables[self._section][-1] = (title + data, rows)
            elif {"td", "th"} & set(self._inside):
                rows[-1][-1] += data

    def table(self, section: str, title: str = "") -> list[list[str]]:
        return next(rows for name, rows in self.tables[section] if title in name)


@pytest.fixture(scope="module")
def made(demo_job, tmp_path_factory) -> Path:
    target = tmp_path_factory.mktemp("report") / "report.html"
    assert main(["report", *map(str, demo_job), "-o", str(target)]) == 0
    return target


@pytest.fixture
def report(run, tmp_path):
    """Return a function that writes a report into the test's directory and returns its path."""

    def report(*words: str | Path, name: str = "r.html", status: int = 0) -> Path:
        done = run("report", *words, "-o", tmp_path / name)
        assert done.status == status, done.err
        return tmp_path / name

    return report


@pytest.fixture(scope="module")
def page(made) -> Page:
    return Page(made)


@pytest.fixture(scope="module")
def seen(tmp_path_factory) -> Iterator[Browser]:
    with browser(tmp_path_factory.mktemp("browser")) as found:
        yield found


@pytest.mark.campaign
def test_a_page_of_24_ranks_is_small(report, tmp_path):
    target = report(*TrainingJob(ranks=24, steps=2, layers=1, gpu_metrics=False).write(tmp_path / "job"))
    assert target.stat().st_size < 1_000_000
    assert len(Page(target).table("ranks", "ranks")) == 25


@pytest.mark.campaign
def test_the_same_exports_make_the_same_page(report, demo_job, made):
    assert report(*demo_job).read_bytes() == made.read_bytes()


@pytest.mark.campaign
def test_a_file_that_cannot_be_read_is_left_out_and_the_page_warns_of_it(report, refused, demo_job, tmp_path):
    broken = tmp_path / "rank9.sqlite"
    broken.write_bytes(demo_job[0].read_bytes()[:40_000])
    text = report(demo_job[1], broken, status=4).read_text(encoding="utf-8")
    assert "Warning" in text and "rank9.sqlite" in text
    refused("report", broken, "-o", tmp_path / "none.html")
    # The numbers of a damaged export would be too small.
    shutil.copy(demo_job[0], broken)
    damage_rows(broken, "CUPTI_ACTIVITY_KIND_KERNEL")
    assert "export it again" in refused("report", broken, "-o", tmp_path / "none.html")
    assert not (tmp_path / "none.html").exists()


SCRIPT = "</script></style><script>window.stolen=1</script><img src=x onerror=window.stolen=2>\"'`{{7*7}}"


@pytest.fixture(scope="module")
def hostile(tmp_path_factory) -> list[Path]:
    directory = tmp_path_factory.mktemp("hostile")
    with ExportWriter(directory / "a<script>.sqlite") as export:
        process, main = start_gpu_process(export)
        for number in range(5):
            start = 1_000_000 * (number + 1)
            export.nvtx_range(main, start - 40_000, start + 60_000, f"{SCRIPT} {number}")
            export.api(main, start - 30_000, start - 10_000, SCRIPT, number + 1)
            export.kernel(process, 0, 7, start, start + 50_000, name=SCRIPT, short=SCRIPT, correlation_id=number + 1)
    return [directory / "a<script>.sqlite", hostile_names_export(directory / "b.sqlite")]


@pytest.fixture(scope="module")
def hostile_page(hostile, tmp_path_factory) -> Path:
    target = tmp_path_factory.mktemp("page") / "r.html"
    assert main(["report", *map(str, hostile), "-o", str(target)]) == 0
    return target


@pytest.mark.campaign
def test_names_of_the_program_are_text_and_nothing_else(hostile_page):
    text = hostile_page.read_text(encoding="utf-8")
    assert not re.search("[\x00-\x09\x0b-\x1f\x7f\u200b\u202e]", text)
    assert text.count("<script") == 1 and "<script>window" not in text and "<img" not in text


def test_no_name_runs_in_a_browser(hostile_page, seen):
    seen.open(hostile_page)
    assert seen.value("window.stolen") is None
    assert seen.complaints == []
    assert seen.requests == [hostile_page.as_uri()]
    assert "window.stolen=1" in seen.value("document.body.textContent")


def test_nothing_leaves_the_page_and_nothing_is_wrong_on_the_console(seen, made):
    for scheme in ("light", "dark"):
        seen.media(scheme=scheme)
        seen.open(made)
        assert seen.requests == [made.as_uri()]
        assert seen.complaints == []
    assert seen.value("document.querySelector('meta[http-equiv]').content").startswith("default-src 'none'")


def test_what_would_leave_the_page_is_refused(seen, made):
    seen.open(made)
    blocked = """new Promise(done => {
      addEventListener('securitypolicyviolation', event => done(event.violatedDirective));
      fetch('http://127.0.0.1:9/').catch(() => 0);
    })"""
    assert seen.value(blocked) == "connect-src"


def column(seen: Browser, place: int) -> list[str]:
    found: list[str] = seen.value(
        f"[...document.querySelectorAll('#steps table')[1].tBodies[0].rows].map(row => row.cells[{place}].textContent)"
    )
    return found


def test_a_column_is_sorted_from_the_keyboard_and_says_so(seen, made):
    seen.open(made)
    heads = seen.value("[...document.querySelectorAll('#steps table')[1].tHead.rows[0].cells].map(e => e.textContent)")
    place = heads.index("spread µs") if "spread µs" in heads else heads.index("spread ms")
    before = column(seen, place)
    seen.value(f"document.querySelectorAll('#steps table')[1].tHead.rows[0].cells[{place}].firstChild.focus()")
    numbers = sorted((float(one.replace(",", "")) for one in before), reverse=True)
    for order in ("descending", "ascending"):
        seen.press("Enter", 13, "\r")
        assert [float(one.replace(",", "")) for one in column(seen, place)] == numbers
        sorts = seen.value("[...document.querySelectorAll('th[aria-sort]')].map(e => e.getAttribute('aria-sort'))")
        assert sorts == [order]
        numbers.reverse()


def test_everything_that_acts_is_reached_by_tab_and_text_can_be_selected(seen, made):
    seen.open(made)
    seen.press("Tab", 9)
    assert seen.value("document.activeElement.className") == "skip"
    assert seen.value("[...document.querySelectorAll('th button, summary, a')].every(e => e.tabIndex === 0)")
    seen.value("getSelection().selectAllChildren(document.querySelector('#kernels tbody tr'))")
    assert len(seen.value("getSelection().toString()")) > 10
    assert seen.value("getComputedStyle(document.querySelector('svg text')).userSelect") != "none"


@pytest.mark.campaign
def test_it_fits_a_phone_and_prints_with_everything_open(seen, made):
    seen.open(made)
    try:
        seen.resize(420, 900)
        assert seen.value("document.documentElement.scrollWidth") <= 420
        seen.resize(700, 1000)
        seen.media("print")
        seen.value("dispatchEvent(new Event('beforeprint'))")
        assert seen.value("document.querySelectorAll('details:not([open])').length") == 0
        assert seen.value("document.documentElement.scrollWidth") <= 700
        wide = "[...document.querySelectorAll('table, svg')].every(e => e.getBoundingClientRect().right <= 700)"
        assert seen.value(wide)
        kept = "[...document.querySelectorAll('h2, h3, caption, thead')].every(e => getComputedStyle(e).breakAfter"
        assert seen.value(f"{kept} == 'avoid')")
        seen.value("dispatchEvent(new Event('afterprint'))")
        assert seen.value("document.querySelectorAll('details[open]').length") == 0
        printed = base64.b64decode(seen.send("Page.printToPDF")["data"])
        assert 1 <= len(re.findall(rb"/Type\s*/Page\b", printed)) <= 8
    finally:
        seen.media()
        seen.resize(1280, 900)


def test_a_phone_keeps_the_name_of_a_row_in_sight_and_drawings_legible(seen, made):
    seen.open(made)
    try:
        seen.resize(390, 900)
        seen.value("document.querySelectorAll('.wide').forEach(e => e.scrollLeft = 300)")
        heads = "[...document.querySelectorAll('#kernels th:first-child')]"
        left = "Math.round(e.getBoundingClientRect().left - e.closest('.wide').getBoundingClientRect().left)"
        assert seen.value(f"{heads}.map(e => [e.textContent, {left}])") == [["family", 0], ["name", 0]]
        size = "12 * e.getBoundingClientRect().width / e.viewBox.baseVal.width"
        assert min(seen.value(f"[...document.querySelectorAll('svg')].map(e => {size})")) >= 9
    finally:
        seen.resize(1280, 900)


@pytest.mark.campaign
def test_why_is_apart_from_how_to_fix(made):
    told = re.findall(r"<p><b>How to fix</b> (.*?)</p><p><b>Why</b> (.*?)</p>", made.read_text(encoding="utf-8"))
    assert told and all(map(all, told))


@pytest.mark.campaign
def test_a_file_that_is_left_out_is_a_warning(report, demo_job, tmp_path):
    (tmp_path / "rank9.sqlite").write_bytes(demo_job[0].read_bytes()[:40_000])
    text = report(*demo_job, tmp_path / "rank9.sqlite", name="report.html", status=4).read_text(encoding="utf-8")
    assert "Warning" in text and "rank9.sqlite" in text


@pytest.mark.campaign
def test_a_file_that_is_there_stays_unless_forced(report, refused, demo_job, tmp_path):
    name, one_rank = "r.html", "· rank 0"
    (tmp_path / name).write_text("mine")
    before = fingerprint(tmp_path)
    assert "already exists (--force overwrites it)" in refused("report", demo_job[0], "-o", tmp_path / name)
    assert fingerprint(tmp_path) == before
    text = report(demo_job[0], "--force", name=name).read_text(encoding="utf-8")
    assert one_rank in text and one_rank.replace("ank", "anks") not in text


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("r.pdf", "an HTML page, .html"),
        ("r.md", "triage -o FILE.md writes Markdown"),
        ("absent/r.html", "does not exist"),
    ],
)
def test_a_name_that_cannot_be_is_told(refused, tmp_path, name, words):
    export = empty_export(tmp_path / "a.sqlite")
    assert words in refused("report", export, "-o", tmp_path / name)
    assert list(tmp_path.iterdir()) == [export]


@pytest.mark.campaign
def test_a_baseline_makes_it_a_comparison(run, report, records, tmp_path):
    before, after = (
        TrainingJob(ranks=1, steps=6, layers=2, stall_ms=stall).write(tmp_path / str(stall)) for stall in (0, 200)
    )
    words = (*after, "--baseline", *before)
    found = Page(report(*words))
    verdict = re.search(r'<p class="verdict">(.*?)</p>', found.source)
    assert verdict is not None
    assert verdict.group(1).split(" (")[0] in run("triage", *words).out.replace("\n", " ")
    changes = [element["class"].split()[-1] for tag, element in found.elements if tag == "article"]
    assert changes == [one["change"] for one in records("triage", *words) if one["change"]]
    assert "worse" in changes
    assert {name for name, _ in found.tables["changes"]} >= {"what changed", "kernels by name", "kernels by family"}


@pytest.mark.campaign
def test_what_a_file_is_called_does_not_change_the_words_of_the_program(report, tmp_path):
    files = TrainingJob(ranks=1, steps=8, layers=2, stall_ms=200).write(tmp_path / "job")
    renamed = files[0].rename(tmp_path / "before.sqlite")
    plain, hidden = Page(report(renamed)), Page(report(renamed, "--anonymous", name="hidden.html"))
    advice = "Compare the slow step with the step before it"
    assert advice in plain.text and advice in hidden.text
    assert hidden.table("capture", "files")[1][0] == "rank-0"


@pytest.mark.campaign
def test_an_anonymous_report_has_the_same_numbers(report, demo_job, made):
    def numbers(path: Path) -> dict[str, Any]:
        return {
            section: [
                [one for one in row if re.fullmatch(r"[\d.,<]+", one.strip())] for _, rows in found for row in rows
            ]
            for section, found in Page(path).tables.items()
        }

    assert numbers(report(*demo_job, "--anonymous")) == numbers(made)


@pytest.mark.campaign
def test_a_selection_of_nothing_has_a_report_that_says_so(report, demo_job):
    assert "not in the selection" in Page(report(demo_job[0], "--devices", "7")).text
