"""Problems of the topology in a debug log, each with the numbers that show it and a next step."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import astuple
from typing import TYPE_CHECKING

from nsystui.base.text import counted, few
from nsystui.questions.nccl_log.topology import Connected, Link, numbers_of, spans

if TYPE_CHECKING:
    from nsystui.questions.nccl_log.summary import LogSummary

Problem = tuple[str, str, str]
"""Its name, its evidence, and the next step."""


def problems_of(communicator: Connected, summary: LogSummary) -> Iterator[Problem]:
    """Yield the problems of one communicator."""
    yield from _detours(communicator)
    yield from _network(communicator, summary)
    yield from _disagreement(communicator)


def mixed_versions(summary: LogSummary) -> Iterator[Problem]:
    """Yield a problem if the processes run several versions of NCCL."""
    versions = {setting.value: processes for setting, processes in summary.topology.settings.items()
                if setting.name == "NCCL version"}  # fmt: skip
    if len(versions) > 1:
        version_words = [f"{version} in {len(processes):,}" for version, processes in sorted(versions.items())]
        advice = "use one NCCL in all processes: --tables settings, LD_LIBRARY_PATH, torch.cuda.nccl.version()"
        yield "several versions of NCCL", f"processes by version: {few(version_words)}", advice


def _detours(communicator: Connected) -> Iterator[Problem]:
    """Yield rings and trees that change hosts more often than needed, unless NVLink joins the hosts."""
    hosts = communicator.hosts
    is_over_nvlink = any(
        hosts.get(source) != hosts.get(target) and via.transport == "P2P"
        for source, target, via in communicator.links()
        if source in hosts and target in hosts
    )
    if is_over_nvlink:
        return
    changes_by_shape: tuple[tuple[str, list[tuple[int, tuple[int | None, int | None]]]], ...] = (
        ("ring", [(ring.channels, communicator.ring_changes(ring)) for ring in communicator.rings()]),
        ("tree", [(tree.channels, communicator.tree_changes(tree)) for tree in communicator.trees()]),
    )
    for shape, changes_by_channels in changes_by_shape:
        for channels, (changes, needed) in changes_by_channels:
            if changes is not None and needed is not None and changes > needed:
                yield (
                    f"a {shape} changes hosts too often",
                    f"channels {spans(numbers_of(channels))}: {changes:,} changes of host, {needed:,} are needed",
                    "give neighbouring ranks to one host (block placement of srun or mpirun), or see NCCL_GRAPH_FILE",
                )


def _network(communicator: Connected, summary: LogSummary) -> Iterator[Problem]:
    links = {
        link: channels.bit_count() for link, channels in communicator.links().items() if link[2].transport == "NET"
    }
    total = sum(links.values())
    tcp = sum(number for link, number in links.items() if link[2].way == "Socket")
    if tcp:
        nics = {
            nic.name for nic in summary.topology.nics.values() if nic.link in ("IB", "InfiniBand", "RoCE") and nic.name
        }
        unused = f", though there is {few(sorted(nics))}" if nics else ""
        yield (
            "it runs over TCP",
            f"{counted(tcp, 'network connection', 'use', total)} NET/Socket{unused}",
            "look for NET/IB or plugin lines in the log, NCCL_IB_DISABLE, NCCL_NET, libibverbs in the container",
        )
    yield from _without_gdr(communicator, summary, links, total)


def _without_gdr(
    communicator: Connected, summary: LogSummary, links: Mapping[Link, int], total: int
) -> Iterator[Problem]:
    without_gdr = sum(number for link, number in links.items() if link[2].way != "Socket" and not link[2].gdr)
    if without_gdr:
        hosts = set(communicator.hosts.values())
        reasons = {
            f"{nic.name or number}: {nic.gdr}"
            for (host, number), nic in summary.topology.nics.items()
            if nic.gdr is not None and nic.gdr.startswith("disabled") and (host in hosts or not hosts)
        }
        reasons |= {setting.value for setting in summary.topology.settings if setting.name == "GPU Direct RDMA"}
        cause = f"; {few(sorted(reasons))}" if reasons else ""
        yield (
            "GPU Direct RDMA is off",
            f"{counted(without_gdr, 'network connection', 'go', total)} through host memory{cause}",
            "load nvidia-peermem or use DMA-BUF; GPU and NIC on one PCIe switch, or NCCL_NET_GDR_LEVEL",
        )


def _disagreement(communicator: Connected) -> Iterator[Problem]:
    agreeing = communicator.agreeing()
    # Ranks with another NCCL_DEBUG_SUBSYS may log less: a missing number is not a difference.
    if any(len(set(column) - {None}) > 1 for column in zip(*agreeing, strict=True)):
        words = ("coll", "CollNet", "NVLS", "p2p")
        rows = []
        for (counts, rings, trees), ranks in agreeing.items():
            numbers = [] if counts is None else list(zip(astuple(counts), words, strict=False))
            numbers += [(rings, "rings"), (trees, "trees")]
            rows.append(f"ranks {spans(ranks)}: " + ", ".join(f"{number} {word}" for number, word in numbers if number))
        yield (
            "the ranks differ in their channels",
            few(rows),
            "compare NCCL_* of the ranks (--tables settings), and whether the log of each rank is whole",
        )
