"""Every text is readable: WCAG contrast of painted text, by its styles, in every look of the program.

4.5 for text, 3 for bold text (WCAG 2.2, 1.4.3). https://www.w3.org/TR/WCAG22/#dfn-contrast-ratio
"""

from functools import partial

import pytest
from jobs import WIDE, painted, running
from rich.terminal_theme import TerminalTheme

from nsystui.base.drawing import COLOURS
from nsystui.ui.app import Look, NsystuiApp

GREYS = [(0, 0, 0), (229, 229, 229), (127, 127, 127), (255, 255, 255)]
DIM = [(205, 0, 0), (0, 205, 0), (205, 205, 0), (0, 0, 238), (205, 0, 205), (0, 205, 205)]
BRIGHT = [(255, 0, 0), (0, 255, 0), (255, 255, 0), (92, 92, 255), (255, 0, 255), (0, 255, 255)]
XTERM = ([GREYS[0], *DIM, GREYS[1]], [GREYS[2], *BRIGHT, GREYS[3]])
DARK = TerminalTheme((0, 0, 0), (229, 229, 229), *XTERM)
LIGHT = TerminalTheme((255, 255, 255), (0, 0, 0), *XTERM)

TABLES = (("1",), ("2",), ("3",), ("5",), ("6",), ("7",), ("9",), ("question_mark",), ("ctrl+p",))
CHARTS = (("4",), ("7", "h"), ("L",))


in_campaign = partial(pytest.param, marks=pytest.mark.campaign)


def luminance(colour: tuple[int, int, int]) -> float:
    parts = [part / 255 for part in colour]
    red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: tuple[int, int, int], other: tuple[int, int, int]) -> float:
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def test_the_formula():
    assert contrast((0, 0, 0), (255, 255, 255)) == pytest.approx(21)
    assert contrast((119, 119, 119), (255, 255, 255)) == pytest.approx(4.48, abs=0.01)


def weak(app: NsystuiApp, terminal: TerminalTheme) -> dict[tuple[object, ...], str]:
    """Return pairs of colours on the screen that are hard to read, with some of their text."""
    found: dict[tuple[object, ...], str] = {}
    dialog = (
        app.screen.children[0].region if app.screen.is_modal else app.screen.region
    )  # the screen behind it is dimmed
    for strip in painted(app)[dialog.y : dialog.bottom]:
        for text, style, _ in strip.crop(dialog.x, dialog.right):
            if style is None or not any(character.isalnum() for character in text):
                continue
            fore, back = style.color, style.bgcolor
            on = back.get_truecolor(terminal, foreground=False) if back is not None else terminal.background_color
            of = fore.get_truecolor(terminal) if fore is not None else terminal.foreground_color
            if style.reverse:
                of, on = on, of
            ratio = contrast(tuple(of), tuple(on))
            if style.dim:
                ratio /= 2
            if ratio < (3 if style.bold else 4.5):
                found[(of, on, style.bold, round(ratio, 2))] = text.strip()
    return found


UNKNOWN = (("2",), ("L",), ("question_mark",))
MORE_UNKNOWN = (
    *TABLES, *CHARTS, ("5", "enter"), ("6", "enter"), ("4", "v", "m"), ("4", "v"), ("4", "e"), ("2", "s"),
    ("T", "z", "enter"),
)  # fmt: skip


@pytest.mark.parametrize("screens", [UNKNOWN, in_campaign(MORE_UNKNOWN)], ids=["some screens", "all screens"])
async def test_on_an_unknown_page_text_has_the_terminals_colours_and_ours_are_readable_on_dark_and_light(
    demo_job, cache_directory, screens
):
    severities = {COLOURS[name].either for name in ("error", "warning", "worse")}
    coloured, hard = {}, {}
    async with running(demo_job, cache_directory, WIDE, look=Look()) as (app, pilot):
        for keys in screens:
            await pilot.press(*keys)
            for text, style, _ in (segment for strip in painted(app) for segment in strip if segment.style):
                fore, back = (None if part and part.is_default else part for part in (style.color, style.bgcolor))
                if not back and fore and fore.name not in severities and any(map(str.isalnum, text)):
                    coloured[keys, text.strip()] = style
                if (fore or back) and (any(map(str.isalnum, text)) or (not back and "█" in text)):
                    for terminal in (DARK, LIGHT):
                        of = fore.get_truecolor(terminal) if fore else terminal.foreground_color
                        on = back.get_truecolor(terminal, foreground=False) if back else terminal.background_color
                        if contrast(tuple(of), tuple(on)) < 2.8:
                            hard[keys, text.strip()] = style
            await pilot.press("escape")
    assert not coloured and not hard


@pytest.mark.campaign
@pytest.mark.parametrize(("look", "theme", "terminals", "screens"), [
    pytest.param(Look(is_page_light=False), None, (DARK,), (*TABLES, *CHARTS), id="dark"),
    in_campaign(Look(light=True), None, (LIGHT,), (*TABLES, *CHARTS), id="light"),
    # The blocks of charts have the palette of the terminal's user.
    in_campaign(Look(few_colors=True, light=True), None, (LIGHT,), TABLES, id="16 on light"),
    in_campaign(Look(few_colors=True), None, (DARK, LIGHT), TABLES, id="16 colours"),
])  # fmt: skip
async def test_every_text_can_be_read(demo_job, cache_directory, look, theme, terminals, screens):
    hard = {}
    async with running(demo_job, cache_directory, WIDE, look=look) as (app, pilot):
        app.theme = theme or app.theme
        for keys in screens:
            await pilot.press(*keys)
            for terminal in terminals:
                hard |= weak(app, terminal)
            if keys[-1] in ("question_mark", "ctrl+p"):
                await pilot.press("escape")
    assert not hard, "\n".join(f"{pair}: {text}" for pair, text in hard.items())


@pytest.mark.campaign
@pytest.mark.parametrize(
    ("look", "terminal"), [(Look(is_page_light=False), DARK), (Look(light=True), LIGHT)], ids=["dark", "light"]
)
async def test_no_category_looks_like_another_or_like_the_page(demo_job, cache_directory, look, terminal):
    async with running(demo_job, cache_directory, WIDE, "4", look=look) as (app, _):
        chart = app.screen.query_one("#chart")
        names = [name for name in COLOURS if name not in ("better", "worse", "idle", "nvtx")]
        fills = {name: chart.fill_style(name).color.get_truecolor(terminal) for name in names}
        page = chart.rich_style.bgcolor.get_truecolor(terminal, foreground=False)
        assert len(set(fills.values())) == len(names)
        assert all(contrast(tuple(fill), tuple(page)) >= 4.5 for fill in fills.values())


async def test_a_chosen_theme_paints_its_page_and_is_remembered_whatever_the_terminal_says(demo_job, cache_directory):
    remembered = []
    look = Look(is_page_light=False, remember=remembered.append)

    def pages() -> set[str]:
        return {style.bgcolor.name for strip in painted(app) for _, style, _ in strip if style and style.bgcolor}

    async with running(demo_job[:1], cache_directory, WIDE, look=look) as (app, pilot):
        assert app.asks_page and "default" in pages()
        for typed, page in (("theme light", "#ffffff"), ("theme dark", "#121212")):
            await pilot.press("ctrl+p", *typed)
            await pilot.press("enter")
            app.page_is(page == "#121212")  # a late answer, or an answer after the program continues
            await pilot.pause()
            assert page in pages() and "default" not in pages() and not app.asks_page
        await pilot.press("ctrl+p", *"theme own")
        await pilot.press("enter")
        assert "default" in pages() and "#121212" not in pages() and app.asks_page
    assert remembered == ["light", "dark", ""]


@pytest.mark.campaign
@pytest.mark.parametrize("look", [Look(), Look(light=True)], ids=["as the terminal says", "light"])
async def test_the_page_of_the_terminal_shows_through_unless_the_user_sets_one(demo_job, cache_directory, look):
    async with running(demo_job, cache_directory, WIDE, look=look) as (app, _):
        pages = {style.bgcolor and style.bgcolor.is_default for strip in painted(app) for _, style, _ in strip if style}
        assert (True in pages) is (look.light is None)
