"""Bringing wheels to where others get them, without ever replacing what is there."""
