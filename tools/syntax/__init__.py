"""Whether the C++ files of extensions parse against the headers of every torch, without compiling torch or them.

- parse_cells: the program, which parses the files of cells and records the results as facts
- torch_headers: the headers of a torch on the index, without its libraries
"""
