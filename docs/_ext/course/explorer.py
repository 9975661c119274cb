"""Pictures that answer: the reader chooses, and the page shows the case that belongs to it.

    {"title": …, "draw": "bars",          which drawing of docs/_script shows a case
     "choices": [choice("gpus", …), …],   one group of buttons each
     "cases": {"64 mixed": {…}, …}}       by the values of the choices, in their order

is a record: everything that can be chosen, computed or recorded when the site is built. Our script
looks up and draws, it computes nothing. A stepper is a record, too, with frames in its cases. The
tables are what a reader without JavaScript sees, and everybody's way to the numbers.

``.. explorer:: NAME`` stands for one of ``EXPLORERS``. For another one write a module with
``record(env)``, ``tables(record)`` and ``SUMMARY``, and name it there.
"""

import json
from inspect import getfile

from sphinx.util.docutils import SphinxDirective

from course import mesh_groups, pipeline_bubble, planned_run, server_traffic, sharded_memory
from course.element import html, raw, text

EXPLORERS = {
    "sharded-memory": sharded_memory,
    "pipeline-bubble": pipeline_bubble,
    "server-traffic": server_traffic,
    "planned-run": planned_run,
    "mesh-groups": mesh_groups,
}


class Explorer(SphinxDirective):
    required_arguments = 1

    def run(self):
        if self.arguments[0] not in EXPLORERS:
            raise self.error(f"{self.arguments[0]}: choose one of {', '.join(EXPLORERS)}")
        made = EXPLORERS[self.arguments[0]]
        for source in (__file__, getfile(made)):
            self.env.note_dependency(source)
        record = made.record(self.env)
        return [box(record, made.SUMMARY, made.tables(record))]


def box(record, summary, tables):
    """Title, the stage for our script, the tables, and the record."""
    # "</" would end the script element early.
    data = json.dumps(record, separators=(",", ":")).replace("</", "<\\/")
    numbers = html(
        "details", html("summary", text(summary)), *tables, classes=["course-numbers"], open=""
    )
    return html(
        "div",
        html("p", text(record["title"]), classes=["course-label"]),
        html("div", classes=["course-stage"]),
        numbers,
        raw(f'<script type="application/json">{data}</script>'),
        classes=["course-explorer", "course-stepper"] if "sides" in record else ["course-explorer"],
    )


def setup(app):
    app.add_directive("explorer", Explorer)
