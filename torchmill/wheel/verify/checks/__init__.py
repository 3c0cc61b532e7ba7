"""Checks.

- gpu_checks: try torch, and torchvision where it is installed, on a GPU: the same computed there and on
  the CPU
- gpu_numerics: the same computed on a GPU and on the CPU, by each of the libraries that torch computes
  with there
- harness: run checks under the wheel's own interpreter (Python 3.5 and newer) and print what came of them
- package_checks: try a package of which no more is known than its facts say: its import, its versions,
  and its own lines
- sample_checks: try a wheel of the sample: tinytorch, or tinyvision that stands on it
- torch_checks: try a torch wheel, from 1.1 on: what it says of itself, and whether it computes
- torch_cuda: try what a torch wheel with CUDA says of itself, and that it gets along where there is no
  driver
- torch_numerics: compute with torch what is known in closed form
- torchaudio_checks: try a torchaudio wheel: transforms with known answers, and filters that run in C++
  where they are built
- torchvision_checks: try a torchvision wheel: its operators in C++, its transforms, a model, and the
  image decoders
"""
