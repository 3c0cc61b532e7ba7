# Builds wheels of torch 1.13.1 (cu118) on x86_64, for distribution.
# Written by `invoke image` from build_configs/; run it again instead of changing this.
# Without Python 3.7, which is not available for this image.

# docker.io/nvidia/cuda:11.8.0-devel-rockylinux8 has no digest here: what the name stands for can change.
FROM docker.io/nvidia/cuda:11.8.0-devel-rockylinux8 AS toolkit

# quay.io/pypa/manylinux2014_x86_64:2026.08.15-1: pypa/cibuildwheel 8832cf6 (2026-08-18), pinned_docker_images.cfg
FROM quay.io/pypa/manylinux2014_x86_64@sha256:95440e0e72dd3a81dc8d2cf59a84d57af661456620f5bc821ff92048d0e54ff9

# Versions are not pinned: archives drop one when the next comes, and it is not found any more.
# hadolint ignore=DL3033
RUN yum install -y \
        ca-certificates \
        git \
        shadow-utils \
        gcc-c++ \
        make \
        ccache \
        numactl-devel \
        libjpeg-turbo-devel \
        libpng-devel \
        zlib-devel \
 && yum clean all

COPY --from=toolkit /usr/local/cuda-11.8/ /usr/local/cuda-11.8/

RUN python3.11 -m venv /opt/uv \
 && /opt/uv/bin/pip install --no-cache-dir uv==0.13.9 \
 && UV_PYTHON_INSTALL_DIR=/opt/pythons UV_PYTHON_BIN_DIR=/usr/local/bin \
    /opt/uv/bin/uv python install --no-cache 3.8

COPY suite/requirements.txt /opt/torchmill/requirements.txt
RUN python3.11 -m venv /opt/suite \
 && /opt/suite/bin/pip install --no-cache-dir -r /opt/torchmill/requirements.txt

COPY suite/ /opt/torchmill/

RUN useradd --create-home --shell /bin/bash --uid 10001 builder
ENV PATH=/opt/suite/bin:$PATH \
    PYTHONDONTWRITEBYTECODE=1 \
    TORCHMILL_HOME=/home/builder/torchmill \
    NOX_ENVDIR=/home/builder/nox \
    CUDA_HOME=/usr/local/cuda-11.8 \
    TORCHMILL_TAG=v1.13.1
WORKDIR /opt/torchmill
USER 10001
CMD ["nox", "--list"]
