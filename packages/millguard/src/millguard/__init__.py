"""Runs any build with as many compilers at a time as its memory allows."""
