"""The SPIR-V of a kernel that Taichi's Metal backend would get, made on another machine.

Taichi generates the same SPIR-V for Vulkan and Metal but for the capabilities that the device declares; so a Vulkan
program, started with Metal's options, is told those of an Apple Silicon GPU.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from tkern.msl.gather import Configured

__all__ = ["CAPABILITIES", "emit"]

# What taichi/rhi/metal/metal_device.mm of 1.7.4 declares for Apple family 7 (M1) and later: no 64-bit floats, no atomic
# operation on floats. SPIR-V 1.3 is 0x10300.
CAPABILITIES = [
    f"spirv_version={0x10300}",
    *(f"spirv_has_{name}" for name in (
        "int8", "int16", "int64", "float16", "subgroup_basic", "subgroup_vote", "subgroup_ballot",
        "subgroup_arithmetic",
    )),
]  # fmt: skip


def emit(configured: Configured, folder: Path) -> list[Path]:
    """Write the SPIR-V of a kernel into ``folder``, a file for each of its launches; return the files in order.

    Raises what Taichi raises where it cannot compile the kernel.
    """
    ti: Any = sys.modules["taichi"]
    primal = configured.kernel._primal
    kernel = primal.compiled_kernels[primal.ensure_compiled(*configured.arguments)]
    builder = ti.lang.impl.get_runtime().prog.make_aot_module_builder(ti.lang.impl.current_cfg().arch, CAPABILITIES)
    builder.add(configured.name, kernel)
    folder.mkdir(parents=True, exist_ok=True)
    builder.dump(str(folder), "")
    described = folder / "metadata.json"
    (found,) = json.loads(described.read_text(encoding="utf-8"))["kernels"]
    files = [folder / f"{task['name']}.spv" for task in found["tasks_attribs"]]
    described.unlink()
    (folder / "graphs.json").unlink(missing_ok=True)
    return files
