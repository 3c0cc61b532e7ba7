# Builds wheels of torch 1.1.0 (cu90) on x86_64, for development.
# Written by `invoke image` from build_configs/; run it again instead of changing this.

# docker.io/library/python:3.12-slim-bookworm: docker-library/repo-info 33a22f4 (Python 3.12.14, images of 2026-08-25)
FROM docker.io/library/python@sha256:0f5b26b9518d002b6173fd61daad821fa340635ebfec5bba471013f9ca114579 AS uv
RUN pip install --no-cache-dir uv==0.13.9

# docker.io/library/ubuntu:16.04: docker-library/repo-info 72e4be7 (images of 2021-08-31 to 2022-10-25, the last)
FROM docker.io/library/ubuntu@sha256:1f1a2d56de1d604801a9671f301190704c25d604a416f59e03c04f5c6ffee0d6 AS base

FROM base AS toolkit
# Versions are not pinned: archives drop one when the next comes, and it is not found any more.
# hadolint ignore=DL3008
RUN apt-get update \
 && DEBIAN_FRONTEND=noninteractive apt-get install --yes --no-install-recommends \
        ca-certificates \
        curl \
        g++ \
        libxml2 \
        make \
        perl \
        xz-utils \
 && rm -rf /var/lib/apt/lists/*

WORKDIR /unpacked
RUN curl --fail --silent --show-error --location --remote-name https://developer.nvidia.com/compute/cuda/9.0/Prod/local_installers/cuda_9.0.176_384.81_linux-run \
 && printf '%s  %s\n' 96863423feaa50b5c1c5e1b9ec537ef7ba77576a3986652351ae43e66bcd080c cuda_9.0.176_384.81_linux-run > digests \
 && sha256sum --check digests \
 && sh cuda_9.0.176_384.81_linux-run --silent --override --toolkit \
 && /usr/local/cuda-9.0/bin/nvcc --version \
 && rm -rf /unpacked/*
RUN curl --fail --silent --show-error --location --remote-name https://developer.download.nvidia.com/compute/redist/cudnn/v7.6.5/cudnn-9.0-linux-x64-v7.6.5.32.tgz \
 && printf '%s  %s\n' bd0a4c0090d5b02feec3f195738968690cc2470b9bc6026e6fe8ff245cd261c8 cudnn-9.0-linux-x64-v7.6.5.32.tgz > digests \
 && sha256sum --check digests \
 && tar --extract --file cudnn-9.0-linux-x64-v7.6.5.32.tgz --strip-components=1 \
 && cp -P include/cudnn* /usr/local/cuda-9.0/include/ \
 && cp -P lib*/libcudnn* /usr/local/cuda-9.0/lib64/ \
 && rm -rf /unpacked/*
RUN curl --fail --silent --show-error --location --remote-name https://github.com/NVIDIA/nccl/archive/v2.4.8-1.tar.gz \
 && printf '%s  %s\n' e2260da448ebbebe437f74768a346d28c74eabdb92e372a3dc6652a626318924 v2.4.8-1.tar.gz > digests \
 && sha256sum --check digests \
 && tar --extract --file v2.4.8-1.tar.gz --strip-components=1 \
 && make --jobs "$(nproc)" src.build CUDA_HOME=/usr/local/cuda-9.0 \
 && mkdir -p /system/include /system/lib/x86_64-linux-gnu \
 && cp build/include/nccl* /system/include/ \
 && cp -P build/lib/libnccl* /system/lib/x86_64-linux-gnu/ \
 && rm -rf /unpacked/*

FROM base

# Versions are not pinned: archives drop one when the next comes, and it is not found any more.
# hadolint ignore=DL3008
RUN apt-get update \
 && DEBIAN_FRONTEND=noninteractive apt-get install --yes --no-install-recommends \
        ca-certificates \
        git \
        build-essential \
        ccache \
        libnuma-dev \
        python3.5-dev \
        python3.5-venv \
 && rm -rf /var/lib/apt/lists/*

COPY --from=toolkit /usr/local/cuda-9.0/ /usr/local/cuda-9.0/
COPY --from=toolkit /system/ /usr/

COPY --from=uv /usr/local/bin/uv /usr/local/bin/uv
RUN UV_PYTHON_INSTALL_DIR=/opt/pythons UV_PYTHON_BIN_DIR=/usr/local/bin \
    uv python install --no-cache 3.12

COPY suite/requirements.txt /opt/torchmill/
COPY suite/packages /opt/torchmill/packages
WORKDIR /opt/torchmill
RUN python3.12 -m venv /opt/suite \
 && /opt/suite/bin/pip install --no-cache-dir -r requirements.txt

COPY suite/ /opt/torchmill/

RUN useradd --create-home --shell /bin/bash --uid 10001 builder
ENV PATH=/opt/suite/bin:$PATH \
    PYTHONDONTWRITEBYTECODE=1 \
    TORCHMILL_HOME=/home/builder/torchmill \
    NOX_ENVDIR=/home/builder/nox \
    CUDA_HOME=/usr/local/cuda-9.0 \
    TORCHMILL_TAG=v1.1.0
WORKDIR /opt/torchmill
USER 10001
CMD ["nox", "--list"]
