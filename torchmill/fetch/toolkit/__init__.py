"""CUDA toolkits, libraries and host compilers, without root."""
