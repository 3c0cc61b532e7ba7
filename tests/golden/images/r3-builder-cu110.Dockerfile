# Builds wheels of torch 1.8.0 (cu110) on x86_64, for development.
# Written by `invoke image` from build_configs/; run it again instead of changing this.

# docker.io/library/ubuntu:20.04: docker-library/repo-info 72e4be7 (images of 2022-12-09)
FROM docker.io/library/ubuntu@sha256:0e0402cd13f68137edb0266e1d2c682f217814420f2d43d300ed8f65479b14fb AS base

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
RUN curl --fail --silent --show-error --location --remote-name https://developer.download.nvidia.com/compute/cuda/11.0.3/local_installers/cuda_11.0.3_450.51.06_linux.run \
 && printf '%s  %s\n' b079c4e408adf88c3f1ffb8418a97dc4227c37935676b4bf4ca0beec6c328cc0 cuda_11.0.3_450.51.06_linux.run > digests \
 && sha256sum --check digests \
 && sh cuda_11.0.3_450.51.06_linux.run --silent --override --toolkit \
 && /usr/local/cuda-11.0/bin/nvcc --version \
 && rm -rf /unpacked/*
RUN curl --fail --silent --show-error --location --remote-name https://developer.download.nvidia.com/compute/redist/cudnn/v8.0.5/cudnn-11.0-linux-x64-v8.0.5.39.tgz \
 && printf '%s  %s\n' 4e16ee7895deb4a8b1c194b812ba49586ef7d26902051401d3717511898a9b73 cudnn-11.0-linux-x64-v8.0.5.39.tgz > digests \
 && sha256sum --check digests \
 && tar --extract --file cudnn-11.0-linux-x64-v8.0.5.39.tgz --strip-components=1 \
 && cp -P include/cudnn* /usr/local/cuda-11.0/include/ \
 && cp -P lib*/libcudnn* /usr/local/cuda-11.0/lib64/ \
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
        pkg-config \
        libsox-dev \
        libjpeg-dev \
        libpng-dev \
        zlib1g-dev \
        python3.8-dev \
        python3.8-venv \
        python3-venv \
 && rm -rf /var/lib/apt/lists/*

COPY --from=toolkit /usr/local/cuda-11.0/ /usr/local/cuda-11.0/

RUN python3 -m venv /opt/uv \
 && /opt/uv/bin/pip install --no-cache-dir uv==0.13.9 \
 && UV_PYTHON_INSTALL_DIR=/opt/pythons UV_PYTHON_BIN_DIR=/usr/local/bin \
    /opt/uv/bin/uv python install --no-cache 3.12

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
    CUDA_HOME=/usr/local/cuda-11.0 \
    TORCHMILL_TAG=v1.8.0
WORKDIR /opt/torchmill
USER 10001
CMD ["nox", "--list"]
