"""Reads, repairs, packs and verifies Python wheels of any size, reproducibly."""
