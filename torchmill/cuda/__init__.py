"""With what a cell that has CUDA is compiled: the toolkit, the libraries beside it, the host compiler."""
