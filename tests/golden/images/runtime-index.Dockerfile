# torch 1.13.1 (cpu) for Python 3.10, to run it.
# Written by `invoke image` from build_configs/; run it again instead of changing this.

# docker.io/library/python:3.10-slim-bookworm: docker-library/repo-info 33a22f4 (Python 3.10.21, images of 2026-08-25)
FROM docker.io/library/python@sha256:673f009e3763f8d03953b525c89b03a9ee8ca315bf6b8006979b5c4a4e2e4d68 AS python

FROM python AS install
RUN python3.10 -m venv /opt/torch \
 && /opt/torch/bin/pip download --no-cache-dir --no-deps --dest /wheels \
        --index-url https://download.pytorch.org/whl/cpu torch==1.13.1+cpu torchvision==0.14.1+cpu \
 && /opt/torch/bin/pip install --no-cache-dir /wheels/*.whl 'numpy<2'

FROM python
COPY --from=install /opt/torch/ /opt/torch/
COPY run-torch /usr/local/bin/run-torch
RUN useradd --create-home --shell /bin/bash --uid 10001 app
ENV PATH=/opt/torch/bin:$PATH
LABEL org.opencontainers.image.title="torch 1.13.1 (cpu)" \
      org.opencontainers.image.version="1.13.1" \
      org.opencontainers.image.description="Run it with --shm-size=8G or --ipc=host: DataLoader workers hand batches over in shared memory, and an engine gives 64 MB of it." \
      run="podman run --rm -it --shm-size=8G IMAGE"
WORKDIR /home/app
USER 10001
ENTRYPOINT ["run-torch"]
CMD ["python"]
