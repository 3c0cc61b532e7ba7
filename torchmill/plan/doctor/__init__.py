"""Judge a machine against the needs of a build, and say how to meet them; pure.

The examination and its parts:
- examination: examine a machine for one build, or for everything that it could build
- finding: a line of the doctor's table, the input of a check, and the kinds of cures
- judgement: the findings that matter for the wheel itself, before its build begins
- cure_command: read the commands in a cure
- foresight: which causes of failures the doctor foresees, and why not others
- cures: the cures of some findings together

Checks of the machine:
- arch: the architecture of the machine
- crossing: the needs of a crossed build: cross compilers, QEMU, a Python of the target
- c_library: the C library, and so the systems that can install a wheel
- resources: disks, memory, and limits of processes
- gpu_driver: the GPU driver
- gpu_code: the GPUs, and the code that the wheel has for them
- absent_gpu: why no GPU answers

Checks of what is installed:
- interpreter: the Python interpreter
- compiler: the C++ compiler
- tools: git, CMake, ninja, compiler caches, Xcode
- cuda: the CUDA toolkit and its parts
- libraries: the libraries of CUDA: cuDNN, NCCL, cuSPARSELt, NVSHMEM and MAGMA
- packages: system packages
- blas: the BLAS

Checks of the build:
- source: the fetched source
- settings: the settings of --set
- base_wheel: the wheel of torch that an extension is built against
- target_libraries: the torch and the libraries that the wheel finds where it runs
- official_wheel: the official wheel, and the parts that the planned one lacks
- vulnerabilities: the known vulnerabilities of the wheel

How a lack can be mended on a machine:
- compiler_cures: by another C++ compiler
- package_cures: by system packages
- container_cures: by building in a container
- other_toolkits: by a build with another CUDA toolkit
"""
