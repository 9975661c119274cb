"""Pictures of devices, copies, memory and time, for notebooks, for the site and for a terminal.

    from multigpu.pictures import traffic
    traffic(machine.traffic)                  # in a notebook: a drawing
    print(traffic(machine.traffic).text())    # in a terminal: the same as text

One visual language in all of them: GPU or rank i always has the same color, compute is solid,
communication is striped, memory is a bar filled against its limit. The pictures know only plain
records (anything with the right attributes), so they can draw your own runs too. Begin to read in
picture.py; the other modules each draw one kind.
"""

from multigpu.pictures.arrows import Step, star, steps, traffic
from multigpu.pictures.axes import curves, roofline
from multigpu.pictures.bars import Stack, memory, row_groups, stacks
from multigpu.pictures.holdings import holdings
from multigpu.pictures.picture import Picture, Slide, Slides, Table
from multigpu.pictures.timeline import schedule, timeline
from multigpu.pictures.units import human_bytes, human_count

__all__ = [
    "Picture",
    "Slide",
    "Slides",
    "Stack",
    "Step",
    "Table",
    "curves",
    "holdings",
    "human_bytes",
    "human_count",
    "memory",
    "roofline",
    "row_groups",
    "schedule",
    "stacks",
    "star",
    "steps",
    "timeline",
    "traffic",
]
