"""One room per op. See :mod:`tkern.registry` for how they are found."""
