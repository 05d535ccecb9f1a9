"""Imported first by the processes that run for long: keeps out of their memory what they never use.

httpx loads the libraries of its own command line (rich, click, pygments) wherever they are installed, and
does without them where they are not.
"""

import sys

sys.modules.setdefault("httpx._main", None)  # type: ignore[arg-type]
