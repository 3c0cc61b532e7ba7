# torch 1.1.0 (cu90) for Python 3.5, to run it.
# Written by `invoke image` from build_configs/; run it again instead of changing this.

# docker.io/library/python:3.5-slim-buster has no digest here: what the name stands for can change.
FROM docker.io/library/python:3.5-slim-buster AS python

FROM python AS install
COPY wheels/ /wheels/
RUN python3.5 -m venv /opt/torch \
 && /opt/torch/bin/pip install --no-cache-dir --upgrade 'pip>=20.3' \
 && /opt/torch/bin/pip install --no-cache-dir /wheels/*.whl 'numpy<2' 'pillow<7'

FROM python
COPY --from=install /opt/torch/ /opt/torch/
COPY run-torch /usr/local/bin/run-torch
RUN useradd --create-home --shell /bin/bash --uid 10001 app
ENV PATH=/opt/torch/bin:$PATH
ENV NVIDIA_VISIBLE_DEVICES=all \
    NVIDIA_DRIVER_CAPABILITIES=compute,utility
LABEL org.opencontainers.image.title="torch 1.1.0 (cu90)" \
      org.opencontainers.image.version="1.1.0" \
      org.opencontainers.image.description="Run it with --shm-size=8G or --ipc=host: DataLoader workers hand batches over in shared memory, and an engine gives 64 MB of it." \
      run="podman run --rm -it --shm-size=8G --gpus all IMAGE"
WORKDIR /home/app
USER 10001
ENTRYPOINT ["run-torch"]
CMD ["python"]
