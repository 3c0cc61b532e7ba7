"""Signals as a user's terminal has them: a shell ignores some for a program in the background."""

import signal

signal.signal(signal.SIGINT, signal.default_int_handler)
for number in (signal.SIGQUIT, signal.SIGHUP, signal.SIGTERM):
    signal.signal(number, signal.SIG_DFL)
