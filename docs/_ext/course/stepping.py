"""A recording for a page: what a script prints, kept in ``docs/records/``.

It is made again when the script has changed, and by ``make record`` with the page that shows it.
"""

import json
import subprocess
import sys
from hashlib import sha256
from pathlib import Path

from sphinx.errors import ExtensionError

from course import records


def recorded(env, name, sources):
    """What the script ``sources[0]`` prints; ``sources`` are the files that it consists of."""
    root = Path(env.srcdir).parent
    key = sha256(b"".join(source.read_bytes() for source in sources)).hexdigest()[:16]
    record, shown = (root / place / f"{name}.json" for place in (records.PLACE, records.SHOWN))
    for path in (record, *sources):
        env.note_dependency(str(path))
    for path in (record, shown):
        if path.exists() and not env.config.course_record:
            kept = json.loads(path.read_text(encoding="utf-8"))
            if kept["key"] == key:
                return kept["recording"]
    made = json.loads(printed_by(sources[0]))
    target = record if env.config.course_record else shown
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(json.dumps({"key": key, "recording": made}), encoding="utf-8")
    return made


def printed_by(script):
    """Run a script in a process of its own."""
    ran = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=120)
    if ran.returncode:
        raise ExtensionError(f"{script.name} failed:\n{ran.stderr}")
    return ran.stdout
