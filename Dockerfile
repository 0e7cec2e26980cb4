# Two images from one file: `zookeeper` (Debian's ZooKeeper) and, last and so the default, `broker`.

FROM debian:bookworm-slim AS zookeeper
RUN apt-get update \
    && DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends libzookeeper-java openjdk-17-jre-headless \
    && rm -rf /var/lib/apt/lists/*
RUN useradd --system --uid 10001 --home-dir /var/lib/zookeeper --create-home zookeeper
COPY docker/zoo.cfg /etc/zookeeper/ottla/
COPY docker/zookeeper-entrypoint docker/zookeeper-healthy /usr/local/bin/
USER zookeeper
VOLUME /var/lib/zookeeper
EXPOSE 2181
ENTRYPOINT ["zookeeper-entrypoint"]

FROM debian:bookworm-slim AS build
RUN apt-get update \
    && DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends python3 python3-venv \
    && rm -rf /var/lib/apt/lists/*
RUN python3 -m venv /opt/ottla
# The dependencies first and alone: a change of our code does not fetch them again.
WORKDIR /build
COPY pyproject.toml README.md LICENSE ./
RUN python3 -c 'import tomllib; print(*tomllib.load(open("pyproject.toml", "rb"))["project"]["dependencies"], sep="\n")' >requirements.txt \
    && /opt/ottla/bin/pip install --no-cache-dir --requirement requirements.txt
COPY protocol protocol
COPY controller controller
COPY broker broker
COPY tools tools
RUN /opt/ottla/bin/pip install --no-cache-dir --no-deps .

FROM debian:bookworm-slim AS broker
RUN apt-get update \
    && DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends python3 \
    && rm -rf /var/lib/apt/lists/*
RUN useradd --system --uid 10002 --home-dir /var/lib/ottla --create-home ottla
COPY --from=build /opt/ottla /opt/ottla
COPY docker/broker-entrypoint docker/broker-healthy /usr/local/bin/
ENV PATH=/opt/ottla/bin:$PATH PYTHONUNBUFFERED=1
USER ottla
WORKDIR /var/lib/ottla
VOLUME /var/lib/ottla
ENTRYPOINT ["broker-entrypoint"]
