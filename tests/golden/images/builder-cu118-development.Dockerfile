# Builds wheels of torch 1.13.1 (cu118) on x86_64, for development.
# Written by `invoke image` from build_configs/; run it again instead of changing this.

# docker.io/nvidia/cuda:11.8.0-cudnn8-devel-ubuntu22.04: logs of docker that resolved the tag, and Dockerfiles of several public repositories
FROM docker.io/nvidia/cuda@sha256:8f9dd0d09d3ad3900357a1cf7f887888b5b74056636cd6ef03c160c3cd4b1d95

# Versions are not pinned: archives drop one when the next comes, and it is not found any more.
# hadolint ignore=DL3008
RUN apt-get update \
 && DEBIAN_FRONTEND=noninteractive apt-get install --yes --no-install-recommends \
        ca-certificates \
        git \
        build-essential \
        ccache \
        libnuma-dev \
        pkg-config \
        libjpeg-dev \
        libpng-dev \
        zlib1g-dev \
        python3.10-dev \
        python3.10-venv \
        python3-venv \
 && rm -rf /var/lib/apt/lists/*

RUN python3 -m venv /opt/uv \
 && /opt/uv/bin/pip install --no-cache-dir uv==0.13.9 \
 && UV_PYTHON_INSTALL_DIR=/opt/pythons UV_PYTHON_BIN_DIR=/usr/local/bin \
    /opt/uv/bin/uv python install --no-cache 3.12

COPY suite/requirements.txt /opt/torchmill/requirements.txt
RUN python3.12 -m venv /opt/suite \
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
