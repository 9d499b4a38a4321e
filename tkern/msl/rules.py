"""What Metal cannot take, read from a kernel's MSL.

Taichi checks none of this on Metal: what does not hold there is silent garbage, or ends the process. Each rule has a
name, and a finding says what broke it and in which line of the MSL.
"""

from __future__ import annotations

import math
import re
import struct
from dataclasses import dataclass

__all__ = ["MOST_BUFFER", "MOST_SHARED", "MOST_THREADS", "RULES", "Finding", "check", "shared_bytes", "threads_of"]

# Metal Feature Set Tables: threadgroup memory and threads of a group on every Apple family since 4, and the 31 entries
# of a function's table of buffers, 0 to 30.
MOST_SHARED = 32 * 1024
MOST_THREADS = 1024
MOST_BUFFER = 30

# The rules by name, and what each asks for.
RULES = {
    "compiles": "Taichi makes SPIR-V of it with Metal's capabilities",
    "valid SPIR-V": "spirv-val objects to nothing",
    "translates": "spirv-cross makes MSL of it",
    "threadgroup memory": f"at most {MOST_SHARED} bytes of a workgroup's memory",
    "buffers": f"buffer indices up to {MOST_BUFFER}",
    "threads": f"at most {MOST_THREADS} threads a workgroup",
    "float atomics": "no atomic operation on floats, nor a loop of compare-and-swap in its place",
    "device barrier": "no barrier of device memory (an integer atomic brings one) under a branch or in a loop",
    "64-bit floats": "no double",
    "infinities": "no literal infinity or NaN, and no test for one: Metal compiles as if there were none",
}


@dataclass(frozen=True)
class Finding:
    """A rule that a kernel breaks: ``line`` is of its MSL, 0 where it is about the whole."""

    rule: str
    what: str
    line: int = 0


_BYTES = {"float": 4, "int": 4, "uint": 4, "half": 2, "short": 2, "ushort": 2, "char": 1, "uchar": 1, "bool": 1,
          "long": 8, "ulong": 8}  # fmt: skip
_DECLARED = re.compile(r"^\s*threadgroup\s+(?P<type>[\w<>, ]+?)\s+(?P<name>\w+)(?P<sizes>(?:\[\d+\])*)\s*;")
_GROUP = re.compile(r"\bgl_WorkGroupSize\b.*=\s*uint3\(([^)]*)\)")
_BUFFER = re.compile(r"(\w+)\s*\[\[buffer\((\d+)\)\]\]")
_FLOAT_ATOMIC = re.compile(r"\batomic_(?:float|half)\b")
_SWAP = re.compile(r"\batomic_compare_exchange\w*\(.*\bas_type<")
_DEVICE_BARRIER = re.compile(r"\w+_barrier\([^)]*\bmem_device\b")
_DOUBLE = re.compile(r"\bdouble[234]?\b")
_BITS = re.compile(r"as_type<(float|half)[234]?>\((?:ushort\()?(0x[0-9a-fA-F]+|\d+)u?\s*(?:/\*.*?\*/\s*)?\)")
_INFINITE = re.compile(r"\b(?:INFINITY|NAN|HUGE_VALF?)\b|\(-?[01]\.0[hf]?\s*/\s*0\.0[hf]?\)")
_TEST = re.compile(r"\b(isnan|isinf|isfinite|isnormal|isunordered|isordered)\(")


def check(msl: str) -> list[Finding]:
    """Return what breaks a rule in the MSL of one kernel."""
    found = []
    shared = shared_bytes(msl)
    if shared is None:
        found.append(Finding("threadgroup memory", "it declares memory of a type whose size is not known here"))
    elif shared > MOST_SHARED:
        at = next((n for n, line in _numbered(msl) if _DECLARED.match(line)), 0)
        found.append(Finding("threadgroup memory", f"{shared} bytes, where {MOST_SHARED} are there", at))
    threads = threads_of(msl)
    if threads is None or threads > MOST_THREADS:
        at = next((n for n, line in _numbered(msl) if "gl_WorkGroupSize" in line), 0)
        found.append(Finding("threads", f"{threads or 'an unknown number of'} threads a workgroup", at))
    for number, line in _numbered(msl):
        found += [Finding(rule, what, number) for rule, what in _in_line(line)]
    found += _device_barriers(msl)
    return found


def shared_bytes(msl: str) -> int | None:
    """Return the bytes of threadgroup memory that a kernel declares, None where a type's size is not known."""
    total = 0
    for line in msl.splitlines():
        if not re.match(r"\s*threadgroup\s", line):
            continue
        declared = _DECLARED.match(line)
        size = _size_of(declared["type"]) if declared else None
        if declared is None or size is None:
            return None
        total += size * math.prod(int(n) for n in re.findall(r"\d+", declared["sizes"]))
    return total


def threads_of(msl: str) -> int | None:
    """Return the threads of a workgroup, None where the MSL does not say."""
    sizes = _GROUP.search(msl)
    if sizes is None:
        return None
    numbers = [int(n) for n in re.findall(r"\d+", sizes[1])]
    # One number stands for all three.
    return math.prod(numbers) if len(numbers) == 3 else numbers[0] ** 3


def _size_of(kind: str) -> int | None:
    array = re.fullmatch(r"spvUnsafeArray<(.+),\s*(\d+)>", kind)
    if array:
        inner = _size_of(array[1].strip())
        return None if inner is None else inner * int(array[2])
    vector = re.fullmatch(r"([a-z]+)([234]?)", kind)
    if not vector or vector[1] not in _BYTES:
        return None
    # A vector of 3 takes the place of 4.
    return _BYTES[vector[1]] * {"": 1, "2": 2, "3": 4, "4": 4}[vector[2]]


def _numbered(msl: str) -> list[tuple[int, str]]:
    return list(enumerate(msl.splitlines(), 1))


def _in_line(line: str) -> list[tuple[str, str]]:
    found = [
        ("buffers", f"{name} is buffer {index}, and {MOST_BUFFER} is the last")
        for name, index in _BUFFER.findall(line)
        if int(index) > MOST_BUFFER
    ]
    if _SWAP.search(line):
        found.append(("float atomics", "an atomic operation on a float, as a loop of compare-and-swap on its bits"))
    elif _FLOAT_ATOMIC.search(line):
        found.append(("float atomics", "an atomic operation on a float"))
    if _DOUBLE.search(line):
        found.append(("64-bit floats", "a double"))
    found += [("infinities", f"a literal {name}") for name in _not_finite(line)]
    found += [("infinities", f"{name}(), which is compiled as if there were none") for name in _TEST.findall(line)]
    return found


def _not_finite(line: str) -> list[str]:
    names = ["infinity or NaN" for _ in _INFINITE.findall(line)]
    for kind, digits in _BITS.findall(line):
        number = int(digits, 0)
        code, size = ("<f", 4) if kind == "float" else ("<e", 2)
        (value,) = struct.unpack(code, (number % 2 ** (8 * size)).to_bytes(size, "little"))
        if not math.isfinite(value):
            names.append("NaN" if math.isnan(value) else "infinity")
    return names


def _device_barriers(msl: str) -> list[Finding]:
    """Find barriers of device memory that not every thread may pass, or not as often as the others."""
    found, depth, inside_kernel = [], 0, False
    for number, line in _numbered(msl):
        if depth == 0 and "(" in line:
            inside_kernel = line.startswith("kernel ")
        depth += line.count("{") - line.count("}")
        if _DEVICE_BARRIER.search(line):
            if not inside_kernel:
                found.append(
                    Finding("device barrier", "a barrier of device memory in a function that is called", number)
                )
            elif depth > 1:
                found.append(
                    Finding("device barrier", "a barrier of device memory under a branch or in a loop", number)
                )
    return found
