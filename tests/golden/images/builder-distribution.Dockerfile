# Builds wheels of torch 1.13.1 (cpu) on aarch64, for distribution.
# Written by `invoke image` from build_configs/; run it again instead of changing this.

# quay.io/pypa/manylinux2014_aarch64:2026.08.15-1: pypa/cibuildwheel 8832cf6 (2026-08-18), pinned_docker_images.cfg
FROM quay.io/pypa/manylinux2014_aarch64@sha256:b63ff749fee6f3f2a6b67ed3101a073db3211df1791da19e9acf96f43c0dd6ff

# Versions are not pinned: archives drop one when the next comes, and it is not found any more.
# hadolint ignore=DL3033
RUN yum install -y \
        ca-certificates \
        git \
        shadow-utils \
        gcc-c++ \
        make \
        numactl-devel \
        openblas-devel \
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
    TORCHMILL_TAG=v1.13.1
WORKDIR /opt/torchmill
USER 10001
CMD ["nox", "--list"]
