"""Pictures that answer: the reader chooses, and the page shows the case that belongs to it.

    {"title": …, "draw": "memory",         which drawing of course.js shows a case
     "choices": [choice("gpus", …), …],   one group of buttons each
     "cases": {"64 mixed": {…}, …}}       by the values of the choices, in their order

is a record: the result of everything that can be chosen, from formulas or from a run, found when
the site is built. Our script looks a case up and draws it. In a stepper's record, which has
"sides", a case is a list of frames for each side. The tables are what a reader without JavaScript
sees, and everybody's way to the numbers.

``.. explorer:: NAME`` stands for one of ``EXPLORERS``. For another one write a module with
``record(env)``, ``tables(record)`` and ``SUMMARY``, and name it here.
"""

import json
from inspect import getfile

from sphinx.util.docutils import SphinxDirective

from course.element import html, raw
from course.explorers import (
    cases,
    dp_step,
    mesh_groups,
    pipeline_bubble,
    planned_run,
    ring,
    ring_attention,
    server_traffic,
    sharded_memory,
    tensor_pair,
)

EXPLORERS = {
    "sharded-memory": sharded_memory,
    "pipeline-bubble": pipeline_bubble,
    "server-traffic": server_traffic,
    "planned-run": planned_run,
    "mesh-groups": mesh_groups,
    # steppers
    "dp-step": dp_step,
    "ring": ring,
    "ring-attention": ring_attention,
    "tensor-pair": tensor_pair,
}


class Explorer(SphinxDirective):
    required_arguments = 1

    def run(self):
        """A box with its title, the stage for our script, the tables, and the record."""
        if self.arguments[0] not in EXPLORERS:
            raise self.error(f"{self.arguments[0]}: choose one of {', '.join(EXPLORERS)}")
        made = EXPLORERS[self.arguments[0]]
        for source in (__file__, cases.__file__, getfile(made)):
            self.env.note_dependency(source)
        record = made.record(self.env)
        # "</" would end the script element early.
        data = json.dumps(record, separators=(",", ":")).replace("</", "<\\/")
        summary = html("summary", made.SUMMARY)
        tables = made.tables(record)
        return [
            html(
                "div",
                html("p", record["title"], classes=["course-label"]),
                html("div", classes=["course-stage"]),
                html("details", summary, *tables, classes=["course-numbers"], open=""),
                raw(f'<script type="application/json">{data}</script>'),
                classes=["course-explorer", *(["course-stepper"] if "sides" in record else [])],
            )
        ]


def setup(app):
    app.add_directive("explorer", Explorer)
