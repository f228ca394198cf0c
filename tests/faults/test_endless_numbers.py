"""Numbers with more digits than Python reads, in any text input: missing, or an error that names the number."""

import program
import pytest
from support import edit
from synthetic import demo

DIGITS = "9" * 5_000


@pytest.fixture
def export(tmp_path):
    (path,) = demo.TrainingJob(ranks=1, steps=2, layers=1).write(tmp_path)
    return path


@pytest.mark.campaign
def test_commands_answer_whatever_numbers_are_in_the_texts_of_an_export(export, asked):
    edit(
        export,
        f"UPDATE TARGET_INFO_SYSTEM_ENV SET value = '{DIGITS}'",
        f"UPDATE META_DATA_CAPTURE SET value = 'RANK=\"{DIGITS}\"' WHERE name LIKE '%ENVIRONMENT%'",
        f"UPDATE META_DATA_EXPORT SET value = '{DIGITS}'",
        f"UPDATE NVTX_EVENTS SET text = 'step {DIGITS}', textId = NULL WHERE eventType = 59",
        f"UPDATE NVTX_EVENTS SET jsonText = '{{\"Message size [bytes]\": {DIGITS}}}'",
        f"UPDATE StringIds SET value = value || '{DIGITS}'",
    )
    assert not program.failures([program.run(*words, export) for words in asked])


@pytest.mark.campaign
def test_one_among_the_words_or_in_the_config_file_is_named_as_wrong(export, tmp_path):
    config = tmp_path / "config.toml"
    config.write_text(f"jobs = {DIGITS}\n")
    flags = {"--ranks": "{}", "--jobs": "{}", "--memory-limit": "{}G", "--time": "{}:"}
    for words in (
        *(("kernels", flag, value.format(DIGITS)) for flag, value in flags.items()),
        *(("kernels", "--ranks", f"rank0={DIGITS}"), ("kernels", DIGITS), ("kernels", "1" + DIGITS)),
        *(("stats", "-r", f"um_sum:rows={DIGITS}"), ("stats", "-r", "nvtx_sum", "--filter-nvtx", f"step/{DIGITS}")),
    ):
        assert program.answered(*words, export).err, words
    ran = program.answered("kernels", export, "--config", config)
    assert ran.status == 2 and "config.toml" in ran.err
