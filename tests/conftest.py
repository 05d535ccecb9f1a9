"""What every test can rely on."""

from __future__ import annotations

import signal

# A shell that runs this in the background has it ignore Ctrl-C, and every child would inherit that.
for _number in (signal.SIGINT, signal.SIGQUIT):
    if signal.getsignal(_number) is signal.SIG_IGN:
        signal.signal(_number, signal.default_int_handler if _number is signal.SIGINT else signal.SIG_DFL)
