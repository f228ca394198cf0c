"""Call stacks of CPU samples for other tools: collapsed stacks, and speedscope's JSON.

Collapsed stacks, for flamegraph.pl and inferno, have a line for each different stack: its functions from the outermost
caller on, separated by ``;``, then a blank and the number of samples. The first frame is the thread. In speedscope's
format, each thread is a profile of its samples in order of time, with weights of 1.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import BinaryIO

import numpy as np

from nsystui.base.errors import MissingDataError, UsageError
from nsystui.base.kernel_names import function_name
from nsystui.base.version import __version__
from nsystui.output.files import save_stream
from nsystui.output.formats import to_json
from nsystui.questions.host.functions import NO_FUNCTION, CpuSamples
from nsystui.questions.host.naming import HostThread
from nsystui.questions.host.stacks import Function

COLLAPSED = (".txt", ".folded", ".collapsed", ".txt.gz", ".folded.gz", ".collapsed.gz")
SPEEDSCOPE = (".json", ".json.gz")
_SCHEMA = "https://www.speedscope.app/file-format-schema.json"


def check_stacks_ending(path: str) -> None:
    """Raise ``UsageError`` if the ending of a name has no format."""
    if not path.lower().endswith((*COLLAPSED, *SPEEDSCOPE)):
        raise UsageError(
            f"{path}: a file of stacks ends in {', '.join(SPEEDSCOPE)} (speedscope) or {', '.join(COLLAPSED[:3])} "
            "(collapsed), also with .gz"
        )


def save_stacks(
    samples: CpuSamples, threads: Sequence[HostThread], path: str, overwrite: bool = False, full_names: bool = False
) -> int:
    """Write the stacks of the samples of ``threads``; return the number of samples. Raises `save_stream`'s errors."""
    check_stacks_ending(path)
    refuse_no_samples(samples)
    is_json = path.lower().endswith(SPEEDSCOPE)
    title = os.path.basename(path)

    def fill(stream: BinaryIO) -> int:
        if is_json:
            return write_speedscope(samples, threads, stream, title, full_names)
        return write_collapsed(samples, threads, stream, full_names)

    return save_stream(path, overwrite, fill)


def refuse_no_samples(samples: CpuSamples) -> None:
    """Raise ``MissingDataError`` if there are no samples."""
    if not len(samples):
        raise MissingDataError(
            "there are no CPU samples in the selection: record with "
            "`nsys profile --sample=process-tree --backtrace=dwarf`"
        )


def write_collapsed(
    samples: CpuSamples, threads: Sequence[HostThread], stream: BinaryIO, full_names: bool = False
) -> int:
    """Write the stacks of each thread; return the number of samples."""
    written = 0
    for thread in threads:
        tree = samples.stacks[thread.thread[0]].tree
        names = [_plain(_name(function, full_names)) for function in tree.functions]
        counts: dict[str, int] = {}
        nodes, node_counts = np.unique(samples.threads[thread.thread].nodes, return_counts=True)
        for node, count in zip(nodes.tolist(), node_counts.tolist(), strict=True):
            path = [names[function] for function in tree.path(node)] or [NO_FUNCTION.name]
            line = ";".join([_plain(_title(thread)), *path])
            counts[line] = counts.get(line, 0) + count
            written += count
        stream.write("".join(f"{line} {count}\n" for line, count in counts.items()).encode("utf-8", "backslashreplace"))
    return written


def write_speedscope(
    samples: CpuSamples, threads: Sequence[HostThread], stream: BinaryIO, title: str, full_names: bool = False
) -> int:
    """Write a profile for each thread; return the number of samples."""
    frame_indices: dict[tuple[str, str], int] = {}
    profiles: list[str] = []
    written = 0

    def frame_index(function: Function) -> int:
        return frame_indices.setdefault((_name(function, full_names), function.module), len(frame_indices))

    for thread in threads:
        tree = samples.stacks[thread.thread[0]].tree
        frames = [frame_index(function) for function in tree.functions]
        no_function = frame_index(NO_FUNCTION)
        nodes = samples.threads[thread.thread].nodes
        paths = {
            node: "[" + ",".join(str(frames[function]) for function in tree.path(node)) + "]"
            for node in np.unique(nodes).tolist()
        }
        paths[0] = f"[{no_function}]"
        rows = ",".join(paths[node] for node in nodes.tolist())
        weights = ",".join("1" * len(nodes))
        profiles.append(
            f'{{"type":"sampled","name":{to_json(_title(thread))},"unit":"none","startValue":0,'
            f'"endValue":{len(nodes)},"samples":[{rows}],"weights":[{weights}]}}'
        )
        written += len(nodes)
    stream.writelines(line.encode() for line in _speedscope(frame_indices, profiles, title))
    return written


def _speedscope(frame_indices: dict[tuple[str, str], int], profiles: list[str], title: str) -> Iterator[str]:
    frames = ",".join(
        f'{{"name":{to_json(name)},"file":{to_json(module)}}}' if module else f'{{"name":{to_json(name)}}}'
        for name, module in frame_indices
    )
    yield f'{{"$schema":"{_SCHEMA}","exporter":"nsystui {__version__}","name":{to_json(title)},'
    yield f'"activeProfileIndex":0,"shared":{{"frames":[{frames}]}},"profiles":[\n'
    yield ",\n".join(profiles)
    yield "\n]}\n"


def _name(function: Function, full_names: bool) -> str:
    return function.name if full_names else function_name(function.name)


def _title(thread: HostThread) -> str:
    prefix = "" if thread.rank is None else f"rank {thread.rank} "
    return f"{prefix}{thread.name} {thread.tid}"


def _plain(text: str) -> str:
    """Return a frame of a collapsed stack: ``;`` separates frames, and a line break separates stacks."""
    return " ".join(text.replace(";", ":").split())
