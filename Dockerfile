# The image of the DaemonSet: Python, the locked dependencies and nvdp, all compiled; no pip, no compiler.
# make image

ARG PYTHON=3.13

FROM python:${PYTHON}-slim AS build
WORKDIR /src
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore
COPY .ci/build.lock .ci/runtime.lock .ci/
RUN python -m venv --without-pip /opt/nvdp
RUN python -m pip --python /opt/nvdp/bin/python install --no-compile --no-deps --require-hashes --only-binary :all: -r .ci/runtime.lock
RUN python -m pip install --no-deps --require-hashes --only-binary :all: -r .ci/build.lock
COPY pyproject.toml README.md LICENSE ./
COPY nvdp nvdp
RUN python -m pip wheel --no-deps --no-build-isolation --wheel-dir /wheels .
RUN python -m pip --python /opt/nvdp/bin/python install --no-compile --no-deps --no-index /wheels/*.whl
# Compiled ahead, and never checked against the source: the root file system is read-only, and compiling at each start
# would cost time and up to 12 MiB.
RUN python -m compileall -q -j 0 --invalidation-mode unchecked-hash /opt/nvdp/lib

FROM python:${PYTHON}-slim
ARG REVISION=
LABEL org.opencontainers.image.title="nvdp" \
      org.opencontainers.image.description="Kubernetes device plugin for NVIDIA GPUs" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.revision="${REVISION}"
# The standard library comes uncompiled in this base image. pip and the means to install it go.
RUN python -m pip uninstall --yes pip \
 && rm -rf /usr/local/lib/python3*/ensurepip /root/.cache \
 && python -m compileall -q -j 0 -x '/(test|tests|idlelib|lib2to3|site-packages)/' --invalidation-mode unchecked-hash /usr/local/lib/python3*/
COPY --from=build /opt/nvdp /opt/nvdp
ENV PATH=/opt/nvdp/bin:$PATH \
    PYTHONDONTWRITEBYTECODE=1 \
    NVDP_REVISION=${REVISION} \
    NVIDIA_VISIBLE_DEVICES=all \
    NVIDIA_DRIVER_CAPABILITIES=utility
# uid 0, since the kubelet's socket directory is root's; the DaemonSet takes all capabilities away.
USER 0:0
ENTRYPOINT ["/opt/nvdp/bin/nvdp"]
CMD ["run"]
