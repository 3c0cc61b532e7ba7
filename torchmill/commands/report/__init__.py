"""`invoke report`.

- command: `invoke report`: draw what a build did with memory and time
- picture: draw a recording as a PNG: memory, running units, events
- recording: A build's timeline read back: sums, longest and largest units, and its summary in words
- trace: write a recording in the Trace Event Format, which Perfetto and chrome://tracing open
"""
