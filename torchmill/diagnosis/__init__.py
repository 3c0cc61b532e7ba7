"""From a log to the cause of a failure, and to its cure."""
