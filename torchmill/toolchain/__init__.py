"""What turns source into objects: the compiler cache in front of the compilers."""
