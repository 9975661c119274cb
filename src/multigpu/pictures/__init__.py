"""Pictures of devices, copies, memory and time, for notebooks, for the site and for a terminal.

    from multigpu.pictures import traffic
    traffic(machine.traffic)                  # in a notebook: a drawing
    print(traffic(machine.traffic).text())    # in a terminal: the same in letters

One visual language in all of them: GPU or rank i always has the same colour, compute is solid,
communication is striped, memory is a bar filled against its limit. The pictures know only plain
records (anything with the right attributes), so they can draw your own runs too.
"""

from multigpu.pictures.bars import memory
from multigpu.pictures.blocks import holdings
from multigpu.pictures.curves import curves
from multigpu.pictures.flow import steps, traffic
from multigpu.pictures.lanes import timeline
from multigpu.pictures.movements import Step
from multigpu.pictures.picture import Picture
from multigpu.pictures.row_groups import row_groups
from multigpu.pictures.schedule import schedule
from multigpu.pictures.slides import Slide, Slides
from multigpu.pictures.stacks import Stack, stacks
from multigpu.pictures.star import star
from multigpu.pictures.tables import Table
from multigpu.pictures.units import human_bytes
from multigpu.pictures.way import Station, way

__all__ = [
    "Picture",
    "Slide",
    "Slides",
    "Stack",
    "Station",
    "Step",
    "Table",
    "curves",
    "holdings",
    "human_bytes",
    "memory",
    "row_groups",
    "schedule",
    "stacks",
    "star",
    "steps",
    "timeline",
    "traffic",
    "way",
]
