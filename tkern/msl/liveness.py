"""Which variables of a kernel's MSL hold a value that is still wanted, line by line.

spirv-cross writes one statement a line and braces on lines of their own, so that the text is its own control flow.
Liveness is found as usual, backwards to a fixed point: a variable is live before a line that reads it, and before one
after which it is live unless that line gives it its value.
"""

from __future__ import annotations

import re

__all__ = ["live_words"]

_WORDS = {"float": 1, "int": 1, "uint": 1, "bool": 1, "half": 0.5, "short": 0.5, "ushort": 0.5, "char": 0.5,
          "uchar": 0.5, "long": 2, "ulong": 2}  # fmt: skip
_KIND = r"(?:float|int|uint|bool|half|short|ushort|char|uchar|long|ulong)[234]?"
_DECLARED = re.compile(rf"(?P<kind>{_KIND}|spvUnsafeArray<{_KIND}, \d+>) (?P<name>\w+)(?: = |;)")
_ASSIGNED = re.compile(rf"(?:(?:{_KIND}|spvUnsafeArray<{_KIND}, \d+>) )?(?P<name>\w+) = (?P<value>.*)")
# An integer made of integers and arguments: nothing is read from memory and no float is looked at.
_ADDRESS = re.compile(r"(?:int|uint|bool) \w+ = (?!.*(?:\[|_buffer|as_type|float|\bhalf))")
_CHANGED = re.compile(r"\b(\w+)(?:\+\+|--| (?:[-+*/%&|^]|<<|>>)= )")
_NAME = re.compile(r"\b[A-Za-z_]\w*\b")


def live_words(msl: str) -> tuple[float, float]:
    """Return the most 32-bit words that are live before one line of a kernel: of what must be kept, and of all.

    An integer that is made once, of other integers and of the kernel's arguments alone, need not be kept: it is an
    address or a bound, which a compiler makes anew where registers are short.
    """
    lines = _statements(msl)
    bits: dict[str, int] = {}
    masks: dict[float, int] = {}
    for line in lines:
        declared = _DECLARED.match(line)
        if declared and declared["name"] not in bits:
            bits[declared["name"]] = bit = 1 << len(bits)
            words = _words(declared["kind"])
            masks[words] = masks.get(words, 0) | bit
    accesses = [_reads_and_writes(line, bits) for line in lines]
    after = _successors(lines)
    reads, writes = [read for read, _ in accesses], [write for _, write in accesses]
    every = _fixed_point(after, reads, writes)
    remade = _remade(lines, bits, reads, writes)
    lasting = _fixed_point(after, [_replaced(read, remade) for read in reads], writes)
    # Making an address anew may keep more alive than the address was.
    return min(_most(lasting, masks), _most(every, masks)), _most(every, masks)


def _most(live: list[int], masks: dict[float, int]) -> float:
    return max((sum(words * (now & mask).bit_count() for words, mask in masks.items()) for now in live), default=0.0)


def _remade(lines: list[str], bits: dict[str, int], reads: list[int], writes: list[int]) -> dict[int, int]:
    """Return, for each integer that can be made anew, what it is made of, which cannot."""
    once: dict[int, int] = {}
    # Those that change in place are made more than once.
    twice = 0
    for line in lines:
        for name in _CHANGED.findall(line):
            twice |= bits.get(name, 0)
    for line, read, write in zip(lines, reads, writes, strict=True):
        if not write:
            continue
        if write in once or write & twice:
            once.pop(write, None)
            twice |= write
        elif _ADDRESS.match(line):
            once[write] = read
        else:
            twice |= write
    remade: dict[int, int] = {}
    for bit, read in once.items():  # in the order in which they are made
        remade[bit] = _replaced(read, remade)
    return remade


def _replaced(read: int, remade: dict[int, int]) -> int:
    """Return variables that are read, with what others are made of in their place."""
    out, left = 0, read
    while left:
        bit = left & -left
        left ^= bit
        out |= remade.get(bit, bit)
    return out


def _statements(msl: str) -> list[str]:
    """Return the lines of a kernel's body, the beginning of a ``for`` before it on a line of its own."""
    lines = [line.strip() for line in msl.splitlines()]
    start = next((n for n, line in enumerate(lines) if line.startswith("kernel ")), len(lines))
    out = []
    for line in lines[start + 1 :]:
        loop = re.match(r"for \((.+?); (.*)", line)
        out += [f"{loop[1]};", f"for (; {loop[2]}"] if loop else [line]
    return out


def _words(kind: str) -> float:
    array = re.fullmatch(r"spvUnsafeArray<(.+), (\d+)>", kind)
    if array:
        return _words(array[1]) * int(array[2])
    width = int(kind[-1]) if kind[-1].isdigit() else 1
    return _WORDS[kind.rstrip("234")] * width


def _reads_and_writes(line: str, bits: dict[str, int]) -> tuple[int, int]:
    assigned = _ASSIGNED.match(line)
    write = bits.get(assigned["name"], 0) if assigned else 0
    text = assigned["value"] if assigned and write else "" if _DECLARED.match(line) else line
    read = 0
    for name in set(_NAME.findall(text)):
        read |= bits.get(name, 0)
    return read, write


def _successors(lines: list[str]) -> list[tuple[int, ...]]:
    """Return the lines that may follow each line."""
    closing, opened = {}, []
    for number, line in enumerate(lines):
        if line.startswith("{"):
            opened.append(number)
        elif line.startswith("}") and opened:
            closing[opened.pop()] = number
    after: list[tuple[int, ...]] = [(n + 1,) for n in range(len(lines))]
    # For each line, where the loop or switch around it is left, and where the loop's next turn begins.
    leave: list[int | None] = [None] * len(lines)
    again: list[int | None] = [None] * len(lines)
    for number, line in enumerate(lines):
        end = closing.get(number + 1)
        if end is None:
            continue
        inside = range(number + 2, end)
        if line.startswith(("for ", "while ")):
            after[number], after[end] = (number + 1, end + 1), (number,)
            leave, again = _within(leave, inside, end + 1), _within(again, inside, number)
        elif line == "do":
            after[end] = (number + 1, end + 1)
            leave, again = _within(leave, inside, end + 1), _within(again, inside, end)
        elif line.startswith("switch "):
            labels = tuple(n for n in inside if lines[n].startswith(("case ", "default:")))
            after[number] = (*labels, end + 1)
            leave = _within(leave, inside, end + 1)
        elif line.startswith("if "):
            other = closing.get(end + 2) if end + 1 < len(lines) and lines[end + 1] == "else" else None
            after[number] = (number + 1, end + 1 if other is None else end + 2)
            if other is not None:
                after[end] = (other + 1,)
    for number, line in enumerate(lines):
        target = leave[number] if line == "break;" else again[number] if line == "continue;" else None
        if target is not None:
            after[number] = (target,)
        elif line == "return;":
            after[number] = ()
    return after


def _within(targets: list[int | None], inside: range, target: int) -> list[int | None]:
    # Outer blocks come first, so that the innermost is set last.
    targets[inside.start : inside.stop] = [target] * len(inside)
    return targets


def _fixed_point(after: list[tuple[int, ...]], reads: list[int], writes: list[int]) -> list[int]:
    live = [0] * (len(after) + 1)
    changed = True
    while changed:
        changed = False
        for number in range(len(after) - 1, -1, -1):
            out = 0
            for follower in after[number]:
                out |= live[min(follower, len(after))]
            now = reads[number] | (out & ~writes[number])
            if now != live[number]:
                live[number], changed = now, True
    return live[:-1]
