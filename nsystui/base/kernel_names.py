"""Smart names of kernels: demangled C++ names reduced to what distinguishes kernels.

Return type, arguments, namespaces, and template arguments that only describe addressing are dropped. The functor, the
function around a lambda, tiles and data types remain: ``elementwise<DivFunctor<float>>`` instead of
``void at::native::vectorized_elementwise_kernel<(int)4, at::native::BinaryFunctor<float, …>>(int, T2, T3)``.

Names are demangled by nsys (``[lambda(float) (instance 2)]``, ``(int)4``, ``<unnamed>``) or by c++filt
(``{lambda(float)#2}``, ``4``, ``(anonymous namespace)``).
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache

_ANONYMOUS = re.compile(r"(?:<unnamed>|\(anonymous namespace\)|_GLOBAL__N_\w*|_INTERNAL_\w*)::")
_LAMBDA = re.compile(r"[\[{]lambda\((?P<parameters>.*?)\)(?: \(instance |#)(?P<instance>\d+)\)?[\]}]$", re.DOTALL)
_NUMBER = re.compile(r"(?:\([\w: ]+\))?(?P<digits>-?\d+|true|false)[uUlLfF]*$")
_SCALARS = {
    "__half": "half", "__half2": "half2", "c10::Half": "half", "at::Half": "half", "__nv_bfloat16": "bf16",
    "__nv_bfloat162": "bf16x2", "c10::BFloat16": "bf16", "at::BFloat16": "bf16", "__nv_fp8_e4m3": "e4m3",
    "__nv_fp8_e5m2": "e5m2", "c10::Float8_e4m3fn": "e4m3", "c10::Float8_e5m2": "e5m2", "unsigned int": "uint",
    "unsigned long": "ulong", "unsigned long long": "ulong", "long long": "long", "unsigned char": "uint8",
    "signed char": "int8", "unsigned short": "ushort",
}  # fmt: skip
_PLAIN = frozenset(("float", "double", "int", "long", "short", "char", "bool", "half", "float2", "double2"))

_ADDRESSING = re.compile(
    r"(?:Trivial)?OffsetCalculator|[Aa]rray|(?:Load|Store)With(?:out)?Cast|TensorInfo|integral_constant|\w*Metadata"
)
"""Template arguments that describe addressing, not the computation."""
_WRAPPERS = re.compile(r"[AB]?(?:Bi|U)naryFunctor|ReduceOp|gpu_kernel\w*|func_wrapper_t|enable_sm\w+|identity")
"""Templates whose argument names the computation."""
_GENERIC = frozenset(("Kernel", "Kernel2", "device_kernel", "GemmUniversal"))
"""Kernels whose first argument names the computation."""
_NAMELESS = re.compile(r"kernel(?:_helper\w*)?|run|main_kernel")
"""Kernels whose namespace names the computation."""
_SIZES = re.compile(r"\d+(?:x\d+)+")
_TILE = re.compile(r"(?:\w*_)?[Tt]ile|\w*Shape")
_MAX_ARGUMENTS = (3, 2, 2)
"""The maximum number of arguments shown, by depth; deeper arguments are hidden."""

_EXTRA_ARGUMENTS = 6
_USUAL, _NUMBERS, _ALL = range(3)
"""Levels of detail: usual, with numbers, with everything."""


@dataclass(frozen=True)
class _Part:
    """A part of a qualified name, between ``::``. Only lambdas have ``instance`` and ``parameters`` (types)."""

    name: str
    arguments: tuple[str, ...] = ()
    parameters: tuple[str, ...] = ()
    instance: str = ""


def smart_names(names: Iterable[str]) -> dict[str, str]:
    """Return a different smart name for each of ``names``.

    Equal smart names get numbers, then all details. If they are still equal, they are counted by full name.
    """
    shortened = {name: smart_name(name) for name in names}
    for detail in (_NUMBERS, _ALL):
        counts = Counter(shortened.values())
        if len(counts) == len(shortened):  # nearly always, even with a million names
            return shortened
        shortened = {name: smart_name(name, detail) if counts[text] > 1 else text for name, text in shortened.items()}
    counts, numbers = Counter(shortened.values()), Counter[str]()
    for name in sorted(name for name, text in shortened.items() if counts[text] > 1):
        text = shortened[name]
        numbers[text] += 1
        shortened[name] = f"{text} #{numbers[text]}"
    return shortened


@lru_cache(maxsize=4096)
def smart_name(name: str, detail: int = _USUAL) -> str:
    """Return the smart name of a kernel. Not unique: see `smart_names`."""
    return _kernel(_parts(_declarator(_ANONYMOUS.sub("", name))), detail) or name


def _kernel(parts: list[_Part], detail: int) -> str:
    func = _function(parts)
    if func is None:
        return ""
    arguments = _arguments(func, detail, 0)
    if func.name in _GENERIC and arguments:
        return _tidy(arguments[0]) if detail == _USUAL else ", ".join(arguments)
    base = (re.sub(r"_kernel$", "", func.name) if arguments else func.name) if detail else _tidy(func.name)
    if _NAMELESS.fullmatch(func.name) and len(parts) > 1:
        base = f"{parts[-2].name}::{func.name.removeprefix('kernel_helper_')}"
    text = f"{base}<{', '.join(arguments)}>" if arguments else base
    return text + _lambda_mark(parts, detail)


def _function(parts: list[_Part]) -> _Part | None:
    return next((part for part in reversed(parts) if not part.instance), None)


_XMMA = re.compile(
    r"(sm\d+_xmma_[a-z]+)_(?:implicit_gemm_)?(?:indexed_)?(\w+)_tilesize(\w+)_stage(\d)_.*?(_split_k)?_kernel.*"
)


def _tidy(base: str) -> str:
    """Remove words about compilation and vectorisation; put the tile first in cuDNN's long names."""
    base = _XMMA.sub(r"\1 \3 stage\4\5 \2", base)
    base = re.sub(r"^cutlass_\d+_(?:simt|tensorop|wmma_tensorop)_", "cutlass ", base)
    base = re.sub(r"_align\d+$", "", base)
    return re.sub(r"_kernel$", "", re.sub(r"^(?:vectorized|unrolled)_", "", base)) or base


def _arguments(part: _Part, detail: int, depth: int) -> list[str]:
    """Return the distinct template arguments, numbers last, because shortening cuts the end."""
    if depth >= len(_MAX_ARGUMENTS):
        return []
    shown = list(dict.fromkeys(text for arg in part.arguments if (text := _argument(arg, detail, depth))))
    shown.sort(key=lambda text: bool(_NUMBER.match(text)))
    return shown if detail == _ALL else shown[: _MAX_ARGUMENTS[depth] + (_EXTRA_ARGUMENTS if detail else 0)]


def _argument(text: str, detail: int, depth: int) -> str:
    if number := _NUMBER.match(text):
        return number["digits"] if detail == _ALL or (detail and not depth) else ""
    plain = re.sub(r"^(?:const|struct|class) |(?: const)?[ *&]*$", "", text)
    if _is_scalar(plain):
        return _SCALARS.get(plain, plain)
    parts = _parts(plain)
    func = _function(parts)
    if func is None or re.fullmatch(r"T\d+", func.name) or (detail != _ALL and _ADDRESSING.fullmatch(func.name)):
        return ""
    return _wrapped(func, detail, depth) or _instance(func, parts, detail, depth)


def _wrapped(func: _Part, detail: int, depth: int) -> str:
    """Return the last function that a wrapper applies, if any."""
    if detail == _ALL or not _WRAPPERS.fullmatch(func.name):
        return ""
    functors = [arg for arg in func.arguments if not _is_scalar(arg) and not _NUMBER.match(arg)]
    return next((functor for arg in reversed(functors) if (functor := _argument(arg, detail, depth))), "")


def _instance(func: _Part, parts: list[_Part], detail: int, depth: int) -> str:
    """Return a template's name with its arguments, or the sizes of a tile."""
    numbers = [match["digits"] for arg in func.arguments if (match := _NUMBER.match(arg))]
    if _TILE.fullmatch(func.name) and len(numbers) > 1:
        return "x".join(numbers[:3])
    mark = _lambda_mark(parts, detail)
    inner = [] if mark else _arguments(func, detail, depth + 1)
    if detail != _ALL and func.name.endswith("ernel_traits"):
        return ", ".join(sorted(inner, key=lambda arg: not _SIZES.fullmatch(arg)))
    return f"{func.name}<{', '.join(inner)}>" if inner else func.name + mark


def _is_scalar(name: str) -> bool:
    return name in _SCALARS or name in _PLAIN


def _lambda_mark(parts: list[_Part], detail: int) -> str:
    """Return ``λ(float)`` for a lambda over data, ``λ2`` for the second lambda of its owner, or an empty text."""
    lambdas = [part for part in parts if part.instance]
    if not lambdas:
        return ""
    types = dict.fromkeys(_SCALARS.get(kind, kind) for kind in lambdas[-1].parameters if _is_scalar(kind))
    number = ".".join(part.instance for part in lambdas) if detail else "" if types else lambdas[-1].instance
    return f" λ{number}" + (f"({', '.join(types)})" if types else "")


def _declarator(name: str) -> str:
    """Return a function's qualified name without its return type."""
    words = list(_split(name.replace("operator ()", "operator()").replace("() const", "()"), " "))
    if len(words) > 1 and "(" not in words[0].split("<", 1)[0]:
        words = words[1:]
    return " ".join(words)


def _parts(qualified: str) -> list[_Part]:
    """Split a name into parts, including lambdas, without calls of operators."""
    parts = []
    for text in _split(qualified.replace("operator ()", "operator()"), "::"):
        text = text.strip()
        if match := _LAMBDA.match(text):
            parameters = tuple(parameter.strip() for parameter in _split(match["parameters"], ",") if parameter.strip())
            parts.append(_Part("", (), parameters, match["instance"]))
        elif text and not text.startswith("operator"):
            parts.append(_part(text))
    return parts


def _part(text: str) -> _Part:
    """Parse a name with its template arguments, ignoring parameters."""
    begin = re.search(r"[<(]", text)
    if begin is None or text[begin.start()] == "(":
        return _Part(text[: begin.start()] if begin else text)
    end = _closing_index(text, begin.start())
    return _Part(text[: begin.start()], tuple(arg.strip() for arg in _split(text[begin.start() + 1 : end], ",")))


_OPENING = "<([{"
_BRACKETS = r"[<(\[{>)\]}]"
_TOKENS = {separator: re.compile(f"{separator}|{_BRACKETS}") for separator in (" ", ",", "::")}


def _closing_index(text: str, begin: int) -> int:
    """Return the index of the bracket that closes the bracket at ``begin``, or the text's end."""
    depth = 0
    for match in re.compile(_BRACKETS).finditer(text, begin):
        depth += 1 if match[0] in _OPENING else -1
        if not depth:
            return match.start()
    return len(text)


def _split(text: str, separator: str) -> Iterator[str]:
    """Yield the parts between separators that are in no bracket."""
    depth = begin = 0
    for match in _TOKENS[separator].finditer(text):
        if match[0] != separator:
            depth = max(depth + (1 if match[0] in _OPENING else -1), 0)
        elif not depth:
            yield text[begin : match.start()]
            begin = match.end()
    yield text[begin:]


@lru_cache(maxsize=16384)
def function_name(name: str) -> str:
    """Return the short name of a CPU function, with its class or last namespace: ``pin_memory::call``.

    A callback, ``function_ref::callback_fn<direct_copy_kernel>``, gets the name of the function whose lambda it calls.
    Names that are not C++ are unchanged.
    """
    text = re.sub(r"(?: const| volatile| &&?| \[clone [^\]]*\]| \[with .*\])+$", "", _ANONYMOUS.sub("", name))
    if not re.search(r"::|[(<]", text) or text.startswith("["):
        return name
    parts = _parts(_declarator(text))
    func = _function(parts)
    if func is None:
        return name
    func_index = max(index for index, part in enumerate(parts) if part is func)
    owner = next((part.name for part in reversed(parts[:func_index]) if part.name), "")
    callee = re.search(r"(\w+) λ", " ".join(_arguments(func, _USUAL, 0)))
    label = f"{func.name}<{callee[1]}>" if callee else func.name
    return (f"{owner}::{label}" if owner else label) + _lambda_mark(parts, _USUAL)
