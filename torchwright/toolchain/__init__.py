"""What turns source into objects: so far the compiler cache in front of the compilers."""
