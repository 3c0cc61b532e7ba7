# Builds wheels of torch 1.13.1 (cu118) on x86_64, for development.
# Written by `invoke image` from build_configs/; run it again instead of changing this.

# docker.io/library/ubuntu:22.04: docker-library/repo-info 01470af (images of 2026-07-31)
FROM docker.io/library/ubuntu@sha256:3b06811b2afd352be909dd088a004166d665dc76d38b13eada33522a9d915c6f AS base

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
RUN curl --fail --silent --show-error --location --remote-name https://developer.download.nvidia.com/compute/cuda/11.8.0/local_installers/cuda_11.8.0_520.61.05_linux.run \
 && printf '%s  %s\n' 9223c4af3aebe4a7bbed9abd9b163b03a1b34b855fbc2b4a0d1b706ac09a5a16 cuda_11.8.0_520.61.05_linux.run > digests \
 && sha256sum --check digests \
 && sh cuda_11.8.0_520.61.05_linux.run --silent --override --toolkit \
 && /usr/local/cuda-11.8/bin/nvcc --version \
 && rm -rf /unpacked/*
RUN curl --fail --silent --show-error --location --remote-name https://developer.download.nvidia.com/compute/cudnn/redist/cudnn/linux-x86_64/cudnn-linux-x86_64-8.9.7.29_cuda11-archive.tar.xz \
 && printf '%s  %s\n' a3e2509028cecda0117ce5a0f42106346e82e86d390f4bb9475afc976c77402e cudnn-linux-x86_64-8.9.7.29_cuda11-archive.tar.xz > digests \
 && sha256sum --check digests \
 && tar --extract --file cudnn-linux-x86_64-8.9.7.29_cuda11-archive.tar.xz --strip-components=1 \
 && cp -P include/cudnn* /usr/local/cuda-11.8/include/ \
 && cp -P lib*/libcudnn* /usr/local/cuda-11.8/lib64/ \
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
        libjpeg-dev \
        libpng-dev \
        zlib1g-dev \
        python3.10-dev \
        python3.10-venv \
        python3-venv \
 && rm -rf /var/lib/apt/lists/*

COPY --from=toolkit /usr/local/cuda-11.8/ /usr/local/cuda-11.8/

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
    CUDA_HOME=/usr/local/cuda-11.8 \
    TORCHMILL_TAG=v1.13.1
WORKDIR /opt/torchmill
USER 10001
CMD ["nox", "--list"]
