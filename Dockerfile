# eaglefeed's image: SGLang's released image (or any with Python 3.11+ for the services without an engine), our
# dependencies in one layer, our code in another, no root at run time. Built by compose.yaml.
ARG BASE_IMAGE=lmsysorg/sglang:v0.5.23
FROM ${BASE_IMAGE}

ENV PYTHONUNBUFFERED=1 PIP_NO_CACHE_DIR=1 EAGLEFEED_HOME=/opt/eaglefeed PYTHONPATH=/opt/eaglefeed
WORKDIR /opt/eaglefeed

# Dependencies change seldom: their layer is built from the project file alone. SGLang's own pins in the base stay.
COPY pyproject.toml README.md LICENSE ./
COPY eaglefeed/__init__.py eaglefeed/__init__.py
RUN python3 -m pip list --format=freeze | grep -E '^(torch|transformers|sglang|numpy)==' > /tmp/base.txt \
    && mkdir -p eaglefeed/stores eaglefeed/export eaglefeed/imports \
    && python3 -m pip install -c /tmp/base.txt '.[operate]' \
    && python3 -m pip uninstall -y eaglefeed

COPY . .
RUN python3 -m pip install --no-deps --no-build-isolation -e . \
    && useradd --create-home --uid 10001 eaglefeed \
    && install -d -o eaglefeed -g eaglefeed -m 700 /var/spool/eaglefeed
USER eaglefeed
VOLUME /var/spool/eaglefeed
ENTRYPOINT []
CMD ["eaglefeed", "--help"]
