"""``nsystui timeline``: the lanes as text and as a table."""


def test_a_width_that_is_none_is_refused(refused, demo_job):
    assert "--width 0" in refused("timeline", demo_job[0], "--width", "0")
