"""Smart names of kernels: a demangled C++ name reduced to what tells kernels apart.

Return type, arguments and namespaces go, and so do template arguments that only say how elements are addressed. The
functor, the function that owns a lambda, tiles and data types stay: ``elementwise<DivFunctor<float>>`` instead of
``void at::native::vectorized_elementwise_kernel<(int)4, at::native::BinaryFunctor<float, …>>(int, T2, T3)``.

Names come as nsys demangles them (``[lambda(float) (instance 2)]``, ``(int)4``, ``<unnamed>``) or as c++filt does
(``{lambda(float)#2}``, ``4``, ``(anonymous namespace)``).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache

_ANONYMOUS = re.compile(r"(?:<unnamed>|\(anonymous namespace\)|_GLOBAL__N_\w*|_INTERNAL_\w*)::")
_LAMBDA = re.compile(r"[\[{]lambda\((?P<parameters>.*?)\)(?: \(instance |#)(?P<instance>\d+)\)?[\]}]$", re.DOTALL)
_NUMBER = re.compile(r"(?:\([\w: ]+\))?(?P<digits>-?\d+|true|false)[uUlLfF]*$")
_SCALARS = {
    "__half": "half",
    "__half2": "half2",
    "c10::Half": "half",
    "at::Half": "half",
    "__nv_bfloat16": "bf16",
    "__nv_bfloat162": "bf16x2",
    "c10::BFloat16": "bf16",
    "at::BFloat16": "bf16",
    "__nv_fp8_e4m3": "e4m3",
    "__nv_fp8_e5m2": "e5m2",
    "c10::Float8_e4m3fn": "e4m3",
    "c10::Float8_e5m2": "e5m2",
    "unsigned int": "uint",
    "unsigned long": "ulong",
    "unsigned long long": "ulong",
    "long long": "long",
    "unsigned char": "uint8",
    "signed char": "int8",
    "unsigned short": "ushort",
}
_PLAIN = frozenset(("float", "double", "int", "long", "short", "char", "bool", "half", "float2", "double2"))

_ADDRESSING = re.compile(
    r"(?:Trivial)?OffsetCalculator|[Aa]rray|(?:Load|Store)With(?:out)?Cast|TensorInfo|integral_constant|\w*Metadata"
)
"""Template arguments that say how elements are found, not what is computed."""
_WRAPPERS = re.compile(r"[AB]?(?:Bi|U)naryFunctor|ReduceOp|gpu_kernel\w*|func_wrapper_t|enable_sm\w+|identity")
"""Templates that are known by their argument."""
_GENERIC = frozenset(("Kernel", "Kernel2", "device_kernel", "GemmUniversal"))
"""Kernels that are known by their argument alone."""
_NAMELESS = re.compile(r"kernel(?:_helper\w*)?|run|main_kernel")
"""Kernels that are known by their namespace."""
_SIZES = re.compile(r"\d+(?:x\d+)+")
_TILE = re.compile(r"(?:\w*_)?[Tt]ile|\w*Shape")
_MOST_ARGUMENTS = (3, 2, 2)
"""The most arguments that are shown, by depth; deeper there are none."""

_MORE = 6
_USUAL, _NUMBERS, _ALL = range(3)
"""How much a name tells: the usual, its numbers too, or everything."""


@dataclass(frozen=True)
class _Part:
    """A part of a qualified name between ``::``. A lambda has ``instance`` and the types of its ``parameters``."""

    name: str
    arguments: tuple[str, ...] = ()
    parameters: tuple[str, ...] = ()
    instance: str = ""


def smart_names(names: Iterable[str]) -> dict[str, str]:
    """The smart name of each of ``names``; names that differ have smart names that differ.

    Those that would be alike tell their numbers too, then everything; where that is alike as well, they are numbered
    in the order of the full names.
    """
    chosen = {name: smart_name(name) for name in names}
    for detail in (_NUMBERS, _ALL):
        taken = Counter(chosen.values())
        if len(taken) == len(chosen):  # as nearly always, of a million names too
            return chosen
        chosen = {name: smart_name(name, detail) if taken[text] > 1 else text for name, text in chosen.items()}
    taken, used = Counter(chosen.values()), Counter[str]()
    for name in sorted(name for name, text in chosen.items() if taken[text] > 1):
        text = chosen[name]
        used[text] += 1
        chosen[name] = f"{text} #{used[text]}"
    return chosen


@lru_cache(maxsize=4096)
def smart_name(name: str, detail: int = _USUAL) -> str:
    """The smart name of one kernel. Not unique: see `smart_names`."""
    parts = _parts(_declarator(_ANONYMOUS.sub("", name)))
    return _kernel(parts, detail) or name


def _kernel(parts: list[_Part], detail: int) -> str:
    own = _function(parts)
    if own is None:
        return ""
    arguments = _arguments(own, detail, 0)
    if own.name in _GENERIC and arguments:
        return _tidied(arguments[0]) if detail == _USUAL else ", ".join(arguments)
    base = (re.sub(r"_kernel$", "", own.name) if arguments else own.name) if detail else _tidied(own.name)
    if _NAMELESS.fullmatch(own.name) and len(parts) > 1:
        base = f"{parts[-2].name}::{own.name.removeprefix('kernel_helper_')}"
    text = f"{base}<{', '.join(arguments)}>" if arguments else base
    return text + _lambda_mark(parts, detail)


def _function(parts: list[_Part]) -> _Part | None:
    """The last part that is no lambda."""
    return next((part for part in reversed(parts) if not part.instance), None)


_XMMA = re.compile(
    r"(sm\d+_xmma_[a-z]+)_(?:implicit_gemm_)?(?:indexed_)?(\w+)_tilesize(\w+)_stage(\d)_.*?(_split_k)?_kernel.*"
)


def _tidied(base: str) -> str:
    """A name without the words on compilation and vectorisation; in cuDNN's long ones the tile comes first."""
    base = _XMMA.sub(r"\1 \3 stage\4\5 \2", base)
    base = re.sub(r"^cutlass_\d+_(?:simt|tensorop|wmma_tensorop)_", "cutlass ", base)
    base = re.sub(r"_align\d+$", "", base)
    shorter = re.sub(r"_kernel$", "", re.sub(r"^(?:vectorized|unrolled)_", "", base))
    return shorter or base


def _arguments(part: _Part, detail: int, depth: int) -> list[str]:
    """The template arguments of ``part`` that are shown, each once; numbers last: a cut name keeps the words."""
    if depth >= len(_MOST_ARGUMENTS):
        return []
    shown = list(dict.fromkeys(text for one in part.arguments if (text := _argument(one, detail, depth))))
    shown.sort(key=lambda text: bool(_NUMBER.match(text)))
    return shown if detail == _ALL else shown[: _MOST_ARGUMENTS[depth] + (_MORE if detail else 0)]


def _argument(text: str, detail: int, depth: int) -> str:
    """A template argument, empty if it is not shown."""
    number = _NUMBER.match(text)
    if number:
        return number["digits"] if detail == _ALL or (detail and not depth) else ""
    plain = re.sub(r"^(?:const|struct|class) |(?: const)?[ *&]*$", "", text)
    if _is_scalar(plain):
        return _SCALARS.get(plain, plain)
    parts = _parts(plain)
    own = _function(parts)
    if own is None or re.fullmatch(r"T\d+", own.name) or (detail != _ALL and _ADDRESSING.fullmatch(own.name)):
        return ""
    if detail != _ALL and _WRAPPERS.fullmatch(own.name):
        functors = [one for one in own.arguments if not _is_scalar(one) and not _NUMBER.match(one)]
        shown = [functor for one in functors if (functor := _argument(one, detail, depth))]
        if shown:
            return shown[-1]
    numbers = [found["digits"] for one in own.arguments if (found := _NUMBER.match(one))]
    if _TILE.fullmatch(own.name) and len(numbers) > 1:
        return "x".join(numbers[:3])
    mark = _lambda_mark(parts, detail)
    inner = [] if mark else _arguments(own, detail, depth + 1)
    if detail != _ALL and own.name.endswith("ernel_traits"):
        return ", ".join(sorted(inner, key=lambda one: not _SIZES.fullmatch(one)))
    return f"{own.name}<{', '.join(inner)}>" if inner else own.name + mark


def _is_scalar(name: str) -> bool:
    return name in _SCALARS or name in _PLAIN


def _lambda_mark(parts: list[_Part], detail: int) -> str:
    """``λ(float)`` for a lambda of data, else ``λ2`` for the second of its owner; empty if there is none."""
    lambdas = [part for part in parts if part.instance]
    if not lambdas:
        return ""
    types = dict.fromkeys(_SCALARS.get(one, one) for one in lambdas[-1].parameters if _is_scalar(one))
    number = ".".join(part.instance for part in lambdas) if detail else "" if types else lambdas[-1].instance
    return f" λ{number}" + (f"({', '.join(types)})" if types else "")


def _declarator(name: str) -> str:
    """The qualified name of a function, without the type that it returns."""
    words = list(_split(name.replace("operator ()", "operator()").replace("() const", "()"), " "))
    if len(words) > 1 and "(" not in words[0].split("<", 1)[0]:
        words = words[1:]
    return " ".join(words)


def _parts(qualified: str) -> list[_Part]:
    """The parts of a qualified name, lambdas among them; calls of operators are left out."""
    found = []
    for text in _split(qualified.replace("operator ()", "operator()"), "::"):
        text = text.strip()
        match = _LAMBDA.match(text)
        if match:
            parameters = tuple(one.strip() for one in _split(match["parameters"], ",") if one.strip())
            found.append(_Part("", (), parameters, match["instance"]))
        elif text and not text.startswith("operator"):
            found.append(_part(text))
    return found


def _part(text: str) -> _Part:
    """A name with its template arguments; the parameters behind it are left out."""
    begin = re.search(r"[<(]", text)
    if begin is None or text[begin.start()] == "(":
        return _Part(text[: begin.start()] if begin else text)
    end = _closing(text, begin.start())
    return _Part(text[: begin.start()], tuple(one.strip() for one in _split(text[begin.start() + 1 : end], ",")))


_OPENING, _CLOSING = "<([{", ">)]}"


def _closing(text: str, begin: int) -> int:
    """The place of the bracket that closes the one at ``begin``, or the end of the text."""
    depth = 0
    for place in range(begin, len(text)):
        depth += (text[place] in _OPENING) - (text[place] in _CLOSING)
        if not depth:
            return place
    return len(text)


def _split(text: str, separator: str) -> Iterator[str]:
    """The pieces of ``text`` between separators that are within no brackets."""
    depth = begin = place = 0
    while place < len(text):
        if not depth and text.startswith(separator, place):
            yield text[begin:place]
            begin = place = place + len(separator)
            continue
        depth = max(depth + (text[place] in _OPENING) - (text[place] in _CLOSING), 0)
        place += 1
    yield text[begin:]


@lru_cache(maxsize=16384)
def function_name(name: str) -> str:
    """The short name of a function of the CPU, ``pin_memory::call``: with its class or its last namespace.

    A callback, ``function_ref::callback_fn<direct_copy_kernel>``, has the name of the function whose lambda it calls.
    What is no C++ name stays as it is.
    """
    text = re.sub(r"(?: const| volatile| &&?| \[clone [^\]]*\]| \[with .*\])+$", "", _ANONYMOUS.sub("", name))
    if not re.search(r"::|[(<]", text) or text.startswith("["):
        return name
    parts = _parts(_declarator(text))
    own = _function(parts)
    if own is None:
        return name
    place = max(number for number, part in enumerate(parts) if part is own)
    owner = next((part.name for part in reversed(parts[:place]) if part.name), "")
    called = re.search(r"(\w+) λ", " ".join(_arguments(own, _USUAL, 0)))
    named = f"{own.name}<{called[1]}>" if called else own.name
    return (f"{owner}::{named}" if owner else named) + _lambda_mark(parts, _USUAL)
