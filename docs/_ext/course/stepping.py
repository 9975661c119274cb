"""A recording for a page: what a script prints, made once per state of the code and kept."""

import json
import subprocess
import sys
from hashlib import sha256
from pathlib import Path

from sphinx.errors import ExtensionError

from course.execution import state_of_the_code


def recorded(env, name, sources):
    """What the script ``sources[0]`` prints, kept while neither code nor sources change."""
    folder = Path(env.srcdir) / "_recorded"
    key = sha256(state_of_the_code().encode())
    for source in sources:
        env.note_dependency(str(source))
        key.update(source.read_bytes())
    kept = folder / f"{name}-{key.hexdigest()[:16]}.json"
    if not kept.exists():
        command = [sys.executable, str(sources[0])]
        ran = subprocess.run(command, capture_output=True, text=True, timeout=120)
        if ran.returncode:
            raise ExtensionError(f"{sources[0].name} failed:\n{ran.stderr}")
        folder.mkdir(exist_ok=True)
        for old in folder.glob(f"{name}-*.json"):
            old.unlink(missing_ok=True)
        kept.write_text(ran.stdout, encoding="utf-8")
    return json.loads(kept.read_text(encoding="utf-8"))
