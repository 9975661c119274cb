"""``.. script-diff:: ../scripts/one_gpu.py ../scripts/ddp.py``: a script, and what is new in it.

Sphinx's own ``literalinclude`` with ``:diff:`` heads the block with paths of the building machine,
and shows docstrings too. Here the code is compared, and all of the new script is shown.
"""

from difflib import unified_diff
from pathlib import Path

from docutils import nodes
from sphinx.util.docutils import SphinxDirective


def code_of(path):
    """The lines of a script after its docstring."""
    return path.read_text(encoding="utf-8").split('"""', 2)[2].strip("\n").splitlines()


def difference(old, new):
    """All lines of ``new``, and those of ``old`` that are gone: marked ``+``, ``-`` or blank."""
    lines = unified_diff(old, new, lineterm="", n=len(old))
    return list(lines)[3:]  # without the names of the files and the numbers of the lines


class ScriptDiff(SphinxDirective):
    required_arguments = 2

    def run(self):
        code = []
        for name in self.arguments:
            relative, path = self.env.relfn2path(name)
            self.env.note_dependency(relative)
            code.append(code_of(Path(path)))
        words = "\n".join(difference(*code))
        return [nodes.literal_block(words, words, language="diff")]


def setup(app):
    app.add_directive("script-diff", ScriptDiff)
