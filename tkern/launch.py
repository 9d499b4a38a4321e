"""A prepared launch: kernels with their arguments, checked, and the outputs they fill."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

from tkern import runtime
from tkern.arrays import Output

__all__ = ["Launch"]


class Launch:
    """Kernels to run one after another, and the outputs they fill.

    ``run`` may be called again and again: it only reads the inputs and writes every element of the outputs. A
    benchmark times it alone; the public functions prepare, run and return the results in one go.
    """

    def __init__(self, outputs: tuple[Output | None, ...]) -> None:
        self._outputs = outputs
        self._steps: list[tuple[Any, tuple[Any, ...]]] = []

    def add(self, kernel: Any, *arguments: Any) -> None:
        """Add a kernel, to be run after those added before."""
        self._steps.append((kernel, arguments))

    def run(self) -> None:
        """Launch the kernels. On a GPU they may still be running when this returns; see ``results``."""
        for kernel, arguments in self._steps:
            _launch(kernel, arguments)

    def results(self) -> tuple[Any, ...]:
        """Wait for the kernels and return the outputs in the caller's kind, None where one was not asked for."""
        runtime.synchronize()
        return tuple(None if output is None else output.result() for output in self._outputs)


# What Taichi made of a kernel, for the program it was made in: {kernel: (program, kernel in C++, its machine code)}.
_compiled: dict[Any, tuple[Any, Any, Any]] = {}


def _launch(kernel: Any, arguments: tuple[Any, ...]) -> None:
    """Launch a kernel, past Taichi's own checks where its arguments are NumPy arrays and numbers.

    Those checks were made already, in tkern.arrays, and take 130 µs a launch, twice what a small kernel runs. They
    are skipped from the second launch on, on the CPU, where all of an array's types are fixed by the annotation.
    """
    program = sys.modules["taichi"].lang.impl.get_runtime().prog
    known = _compiled.get(kernel)
    if known is None or known[0] is not program:
        kernel(*arguments)
        _remember(kernel, program, arguments)
        return
    context = known[1].make_launch_context()
    for i, value in enumerate(arguments):
        if isinstance(value, np.ndarray):
            context.set_arg_external_array_with_shape((i,), value.ctypes.data, value.nbytes, value.shape[:-1], 0)
        elif isinstance(value, float):
            context.set_arg_float((i,), value)
        else:
            context.set_arg_int((i,), value)
    program.launch_kernel(known[2], context)


def _remember(kernel: Any, program: Any, arguments: tuple[Any, ...]) -> None:
    _compiled.pop(kernel, None)
    instances = list(kernel._primal.compiled_kernels.values())
    plain = all(isinstance(value, (float, int)) or _is_vectors(value) for value in arguments)
    if plain and len(instances) == 1:
        code = program.compile_kernel(program.config(), program.get_device_caps(), instances[0])
        _compiled[kernel] = (program, instances[0], code)


def _is_vectors(value: Any) -> bool:
    return isinstance(value, np.ndarray) and value.ndim == 2 and bool(value.flags.c_contiguous)
