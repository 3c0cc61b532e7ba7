"""Keep a build within the memory and the processors that this process may really use.

Here are the limits (`limits`, over what `cgroups` reads), the number of jobs that follows from them
(`jobs`) and the measurement of what a build used (`watch`). The admission of single compilers as
memory comes and goes (policy, server, the gate in front of the compiler, what was learned of each
file) gets its place here too.
"""
