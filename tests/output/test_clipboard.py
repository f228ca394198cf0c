"""Text for the terminal's clipboard."""

from small_answers import COLUMNS, FEW, Many, Rows

from nsystui.output.formats import row_for_clipboard, text_for_clipboard


def test_a_row_is_tab_separated_plain_values():
    assert row_for_clipboard(COLUMNS, FEW.rows[0]) == (
        "14.6\t292789300\t472\t620316.3\tncclKernel_AllReduce(ncclDevComm *, unsigned long)"
    )


def test_a_pasted_row_stays_one_row_and_does_nothing():
    row = (None, 1, 1, None, "a\tb\nrm -rf ~\r\n\x1b[201~")
    assert row_for_clipboard(COLUMNS, row) == "\t1\t1\t\ta␉b␊rm -rf ~␍␊␛[201~"


def test_a_table_has_its_headings():
    text = text_for_clipboard(Rows(FEW.rows[:1]))
    assert text is not None
    assert text.splitlines()[0] == "Time (%)\tTotal Time (ns)\tInstances\tAvg (ns)\tName"
    assert text.count("\n") == 2


def test_a_table_that_is_too_large_is_given_up_early():
    answer = Many(length=10_000_000)
    assert text_for_clipboard(answer) is None
    assert len(answer.asked) == 1
    small = text_for_clipboard(Many(length=100))
    assert small is not None
    assert text_for_clipboard(Many(length=100), limit=len(small)) == small
    assert text_for_clipboard(Many(length=100), limit=len(small) - 1) is None
