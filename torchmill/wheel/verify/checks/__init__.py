"""Scripts that the interpreter of a wheel runs, down to Python 3.5; they import each other by plain name.

- gpu_checks: try torch, and torchvision where it is installed, on a GPU: results must be those of the CPU
- harness: run checks and print their results
- package_checks: try a package by its facts alone
- sample_checks: try a wheel of the sample
- torch_checks: try a torch wheel, from 1.1 on: what it reports about itself, and whether it computes
- torchaudio_checks: try a torchaudio wheel
- torchvision_checks: try a torchvision wheel
"""
