"""The parts of :mod:`tkern.metal`: what Metal would run, as Metal would get it, and what Metal cannot take."""
