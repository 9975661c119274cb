#!/bin/sh
# Run a Python program with a Python that is new enough: sh tools/python.sh PROGRAM ARGUMENTS
#
# PYTHON=... decides; else it is the one of .venv, then python3 (what you use every day, an active
# conda environment say), then the newest python3.N. Names may exist without running: try each.
needs='import sys; sys.exit(sys.version_info < (3, 11))'

for candidate in ${PYTHON:-.venv/bin/python python3 python3.14 python3.13 python3.12 python3.11}; do
    if "$candidate" -c "$needs" 2>/dev/null; then
        exec "$candidate" "$@"
    fi
done

found=$("${PYTHON:-python3}" --version 2>/dev/null || echo "no Python")
echo "The course needs Python 3.11 or newer, and ${PYTHON:-python3} is $found." \
    "Install one (python.org/downloads), or say where it is: make start PYTHON=/path/to/python3.12" >&2
exit 2
