"""``python -m arrayexec``: the command line, see ``arrayexec.cli``."""

from .cli import main

raise SystemExit(main())
