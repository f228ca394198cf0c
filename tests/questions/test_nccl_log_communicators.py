"""Communicator and rank of a pointer, while communicators are created and destroyed."""

import pytest

from nsystui.exports.nccl_log.lines import CommunicatorLine, CommunicatorState, LogProcess, Signature, Writer
from nsystui.questions.nccl.communicators import CommunicatorRank, Communicators

START, COMPLETE = CommunicatorState.STARTED, CommunicatorState.COMPLETE
DESTROYED = CommunicatorState.DESTROYED


def writer(pid: int = 1, device: int = 0) -> Writer:
    return Writer(LogProcess("n1", pid), device)


def line(state: CommunicatorState = COMPLETE, pid: int = 1, pointer: int = 0xC1, rank: int = 0, **words: int):
    words = {"unique_id": 0xFE, "device": 0} | words
    return CommunicatorLine(writer(pid), state, pointer, rank, words.pop("ranks", 2), **words)


def call(pid: int = 1, pointer: int | None = 0xC1, device: int = 0, ranks: int | None = 2) -> Signature:
    return Signature(writer(pid, device), "AllReduce", 10, 7, communicator=pointer, ranks=ranks)


@pytest.fixture
def communicators() -> Communicators:
    return Communicators()


def heard(communicators: Communicators, *lines: CommunicatorLine) -> CommunicatorRank:
    for each in lines:
        communicators.hear(each)
    return communicators.member_of(call())


def test_a_pointer_is_the_rank_that_its_init_line_tells(communicators):
    member = heard(communicators, line(START, rank=1), line(rank=1))
    assert (member.communicator, member.rank, member.ranks) == ("0xfe", 1, 2)
    assert communicators.members == [member]  # START and COMPLETE are one creation
    communicators.hear(line(pid=2, pointer=0xC1, rank=0))
    other = communicators.member_of(call(2))
    # The ranks of a communicator share its name and not their pointers.
    assert other is not member and (other.communicator, other.rank) == ("0xfe", 0)


def test_the_device_is_that_of_the_communicator_and_not_that_before_the_call(communicators):
    communicators.hear(line(device=0))
    assert communicators.member_of(call(device=1), 484).device == 0
    unknown = communicators.member_of(call(pointer=0xC2, device=1), 484)
    assert communicators.member_of(call(pointer=0xC2, device=0), 11) is unknown
    assert unknown.device == 1


def test_a_pointer_or_an_id_that_is_used_again_is_another_communicator(communicators):
    """NCCL 2.18 to 2.23 make the id of a split from its parent and color alone."""
    found = [heard(communicators, *lines) for lines in ([line()], [line(DESTROYED), line(unique_id=0xAB)])]
    communicators.hear(line(pointer=0xC2))
    assert [one.communicator for one in found] == ["0xfe", "0xab"]
    assert communicators.member_of(call(pointer=0xC2)).communicator == "0xfe #2"


def test_a_split_is_named_by_its_parent_count_and_color(communicators):
    communicators.hear(line())
    for pid, color in ((1, 0), (2, 0), (3, 1)):
        communicators.hear(line(pid=pid, pointer=0xC1))
        split = {"parent": 0xC1, "split_count": 3, "color": color}
        communicators.hear(CommunicatorLine(writer(pid), COMPLETE, 0xC9, 0, 2, None, None, **split))
    names = [communicators.member_of(call(pid, 0xC9)).communicator for pid in (2, 3)]
    assert names == ["0xfe split 3 color 0", "0xfe split 3 color 1"]


def test_without_an_id_a_pointer_is_the_name_in_its_process_only(communicators):
    one, other = communicators.member_of(call(1)), communicators.member_of(call(2))
    assert one is not other
    assert one.communicator == other.communicator == "pointer 0xc1"
    assert (one.rank, one.ranks, one.is_shared) == (None, 2, False)


def test_a_line_at_the_end_or_in_a_later_file_tells_the_rank_too(communicators):
    """As in a log without its beginning."""
    member = communicators.member_of(call())
    communicators.hear(line(DESTROYED, rank=1))
    assert (member.rank, member.ranks) == (1, 2)
    later = communicators.member_of(call())
    assert later is not member
    communicators.hear(line(rank=1))
    assert (later.communicator, later.rank) == ("0xfe", 1)


def test_calls_without_a_communicator_have_a_member_without_one(communicators):
    member = communicators.member_of(call(pointer=None))
    assert member.communicator is None
    assert communicators.member_of(call(pointer=None)) is member
