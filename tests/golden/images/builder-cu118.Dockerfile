# Builds wheels of torch 1.13.1 (cu118) on x86_64, for distribution.
# Written by `invoke image` from build_configs/; run it again instead of changing this.

# quay.io/pypa/manylinux2014_x86_64:2026.08.15-1: pypa/cibuildwheel 8832cf6 (2026-08-18), pinned_docker_images.cfg
FROM quay.io/pypa/manylinux2014_x86_64@sha256:95440e0e72dd3a81dc8d2cf59a84d57af661456620f5bc821ff92048d0e54ff9 AS base

FROM base AS toolkit
# Versions are not pinned: archives drop one when the next comes, and it is not found any more.
# hadolint ignore=DL3033
RUN yum install -y \
        ca-certificates \
        libxml2 \
        make \
        perl \
        xz \
 && yum clean all

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
        bzip2-devel \
        libffi-devel \
        openssl-devel \
        readline-devel \
        sqlite-devel \
        xz-devel \
 && yum clean all

COPY --from=toolkit /usr/local/cuda-11.8/ /usr/local/cuda-11.8/

WORKDIR /unpacked
RUN curl --fail --silent --show-error --location --remote-name https://www.python.org/ftp/python/3.7.17/Python-3.7.17.tgz \
 && printf '%s  %s\n' fd50161bc2a04f4c22a0971ff0f3856d98b4bf294f89740a9f06b520aae63b49 Python-3.7.17.tgz > digests \
 && sha256sum --check digests \
 && tar --extract --file Python-3.7.17.tgz --strip-components=1 \
 && ./configure \
 && make --jobs "$(nproc)" \
 && make altinstall \
 && rm -rf /unpacked/*

RUN python3.11 -m venv /opt/uv \
 && /opt/uv/bin/pip install --no-cache-dir uv==0.13.9 \
 && UV_PYTHON_INSTALL_DIR=/opt/pythons UV_PYTHON_BIN_DIR=/usr/local/bin \
    /opt/uv/bin/uv python install --no-cache 3.8

COPY suite/requirements.txt /opt/torchmill/
COPY suite/packages /opt/torchmill/packages
WORKDIR /opt/torchmill
RUN python3.11 -m venv /opt/suite \
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
