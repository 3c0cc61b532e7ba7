"""Toolkits of CUDA, its libraries and host compilers, brought into the user's cache without root."""
