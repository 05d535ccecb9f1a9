"""How children are run on this system: under a shim, or, on Windows, plainly."""

import sys

if sys.platform == "win32":
    from corral.worker.child.plain_process import PlainChild as Child
    from corral.worker.child.plain_process import become_subreaper, reap_orphans, sweep
else:
    from corral.worker.child.process import Child
    from corral.worker.child.strays import become_subreaper, reap_orphans, sweep

__all__ = ["Child", "become_subreaper", "reap_orphans", "sweep"]
