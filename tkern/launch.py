"""A prepared launch: kernels with their arguments, checked, and the outputs they fill."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

from tkern import authored, runtime
from tkern.arrays import Output
from tkern.errors import BackendUnavailable

__all__ = ["Group", "Launch"]


class Group:
    """Numbers that a kernel takes as one argument, a structure of Taichi's type ``kind``.

    Taichi's own instances take 1 ms to make and to hand over; this takes 10 µs, and next to nothing where the same
    object is handed to the same kernel again. Raises TypeError unless every member is given, and nothing else.
    """

    def __init__(self, kind: Any, **values: int | float) -> None:
        if kind.members.keys() != values.keys():
            raise TypeError(f"members {sorted(kind.members.keys() ^ values.keys())} are missing or unknown")
        self.kind = kind
        self.values = values
        # What a kernel was launched with, these numbers in it: {(kernel, types): (program, launch context)}.
        self.handed: dict[tuple[Any, ...], tuple[Any, Any]] = {}


class Launch:
    """Kernels to run one after another, and the outputs they fill.

    ``run`` may be called again and again: it only reads the inputs and writes every element of the outputs. A
    benchmark times it alone; the public functions prepare, run and return the results in one go.
    """

    def __init__(self, outputs: tuple[Output | None, ...]) -> None:
        self._outputs = outputs
        self._program = runtime.program()
        self._steps: list[tuple[Any, tuple[Any, ...]]] = []

    def add(self, kernel: Any, *arguments: Any) -> None:
        """Add a kernel, to be run after those added before."""
        self._steps.append((kernel, arguments))

    @property
    def steps(self) -> tuple[tuple[Any, tuple[Any, ...]], ...]:
        """The kernels and their arguments, in order."""
        return tuple(self._steps)

    def run(self) -> None:
        """Launch the kernels. On a GPU they may still be running when this returns; see ``results``.

        Raises BackendUnavailable where the backend was started anew since: the launch's memory is gone; and KernelError
        where a kernel is launched first and cannot be compiled.
        """
        if runtime.program() is not self._program:
            raise BackendUnavailable("the backend that this launch was prepared for was switched off")
        for kernel, arguments in self._steps:
            _launch(kernel, arguments)

    def results(self) -> tuple[Any, ...]:
        """Return the outputs in the caller's kind, None where one was not asked for, after waiting for the kernels.

        CUDA tensors are not waited for: whoever reads them does so on the stream that the kernels run on.
        """
        if not all(output is None or output.is_ordered() for output in self._outputs):
            runtime.synchronize()
        return tuple(None if output is None else output.result() for output in self._outputs)


# What Taichi made of a kernel for one set of argument types, in the program it was made in:
# {(kernel, types): (program, kernel in C++, its machine code)}.
_compiled: dict[tuple[Any, ...], tuple[Any, Any, Any]] = {}


def _launch(kernel: Any, arguments: tuple[Any, ...]) -> None:
    """Launch a kernel, from the second time on past the checks that Taichi makes in Python.

    Those checks take 130 µs a launch, twice what a small kernel runs; they were all made already, in tkern.arrays.
    """
    ti = sys.modules["taichi"]
    program = ti.lang.impl.get_runtime().prog
    key = (kernel, *(_type_of(value) for value in arguments))
    known = _compiled.get(key)
    if known is None or known[0] is not program:
        arguments = tuple(value.kind(**value.values) if isinstance(value, Group) else value for value in arguments)
        primal = kernel._primal
        with authored.compiling(primal.func):
            instance = primal.compiled_kernels[primal.ensure_compiled(*arguments)]
            code = program.compile_kernel(program.config(), program.get_device_caps(), instance)
        kernel(*arguments)
        _compiled[key] = (program, instance, code)
        return
    context = _context(known, key, arguments)
    for i, value in enumerate(arguments):
        if isinstance(value, float):
            context.set_arg_float((i,), value)
        elif isinstance(value, int):
            context.set_arg_int((i,), value)
        elif isinstance(value, Group):
            continue
        elif isinstance(value, np.ndarray):  # of vectors, whose last axis is no axis to Taichi
            context.set_arg_external_array_with_shape((i,), value.ctypes.data, value.nbytes, value.shape[:-1], 0)
        elif isinstance(value, ti.Ndarray):
            context.set_arg_ndarray((i,), value.arr)
        else:  # a torch tensor on the device, flat or of vectors
            shape = tuple(value.shape[:1])
            size = value.element_size() * value.numel()
            context.set_arg_external_array_with_shape((i,), value.data_ptr(), size, shape, 0)
    program.launch_kernel(known[2], context)


def _context(known: tuple[Any, Any, Any], key: tuple[Any, ...], arguments: tuple[Any, ...]) -> Any:
    """Return a launch context with the numbers of the groups in it: the last one of that kernel, if there was one.

    Not on CUDA: a launch leaves a context there that points at memory of the device, and a second ends the process.
    """
    groups = [(i, value) for i, value in enumerate(arguments) if isinstance(value, Group)]
    kept = len(groups) == 1 and runtime.current() != "cuda"
    if kept:
        program, context = groups[0][1].handed.get(key, (None, None))
        if program is known[0]:
            return context
    context = known[1].make_launch_context()
    for i, group in groups:
        for j, name in enumerate(group.kind.members):
            number = group.values[name]
            if isinstance(number, float):
                context.set_struct_arg_float((i, j), number)
            else:
                context.set_struct_arg_int((i, j), number)
    if kept:
        groups[0][1].handed[key] = known[0], context
    return context


def _type_of(value: Any) -> tuple[Any, int]:
    return value.kind if isinstance(value, Group) else type(value), len(getattr(value, "shape", ()))
