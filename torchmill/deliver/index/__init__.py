"""A static index of wheels: PEP 503, 691, 592, 658, 700 and 714, without a server that thinks."""
