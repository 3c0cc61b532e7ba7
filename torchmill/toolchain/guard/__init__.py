"""The memory guard: keep a build within its memory and processors."""
