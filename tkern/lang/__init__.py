"""The kernel language: a kernel's body is written once in these words, and each backend lowers them its own way.

==============  =====================================  ==========================================================
word            on a GPU                               on a CPU
==============  =====================================  ==========================================================
program         one workgroup of ``lanes`` threads     one task of the thread pool
lane            a thread                               the one lane, which works on 16-wide vectors
element         one float32 of this lane               16 neighbouring float32
row             shared by ``per_row`` lanes            worked through by the one lane
column          a step of the row: lane-strided        a step of the row: 16 neighbours
``read``        into registers, once from memory       stays in memory; read again from the cache
``sum``         halving tree in shared memory          halving tree over the 16
``column sums`` registers, then a private row          a private row, which stays in the cache
barrier         ``block.sync``                         nothing
==============  =====================================  ==========================================================

Every size may be any number: a row that is no multiple of a step is masked, and a row past the end has no columns, so
that what is read from it is 0 and what is written to it goes nowhere.

``rows``      plan how rows are laid over programs and lanes, and get the words for that plan
``columns``   sum private rows into one, in a fixed order
``safe``      mathematics that means the same on every backend, Metal's fast-math included
``compiled``  build a kernel once for each set of words
"""

from tkern.lang.compiled import compiled
from tkern.lang.rows import RowPlan, RowSizes, plan_rows

__all__ = ["RowPlan", "RowSizes", "compiled", "plan_rows"]
