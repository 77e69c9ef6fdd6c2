# The image of a release, from the binaries that goreleaser has built. Its last stage is that of Dockerfile, which builds from source.
FROM --platform=$BUILDPLATFORM busybox:1.37 AS folders
RUN mkdir -p /folders/config /folders/data /folders/run/redlock

FROM gcr.io/distroless/static-debian12:nonroot
ARG TARGETPLATFORM
COPY $TARGETPLATFORM/caddy /usr/bin/caddy
COPY $TARGETPLATFORM/redlock /usr/bin/redlock
COPY --from=folders --chown=65532:65532 /folders/ /
ENV XDG_CONFIG_HOME=/config XDG_DATA_HOME=/data
USER 65532:65532
EXPOSE 8080 2020
ENTRYPOINT ["/usr/bin/caddy"]
CMD ["run", "--config", "/etc/redlock/Caddyfile"]
