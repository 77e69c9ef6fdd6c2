# The image of a release, from the binaries that goreleaser has built. Its last stage is that of Dockerfile, which builds from source.
FROM --platform=$BUILDPLATFORM busybox:1.37.0@sha256:9db7b59979c38555a39def84a31fb98b5296952f9e3afd4f6f11f05b07adfab0 AS folders
RUN mkdir -p /folders/config /folders/data /folders/run/redlock

FROM gcr.io/distroless/static-debian12:nonroot@sha256:afa5c872c891853ca7fcf1f12c3edb23f7eeef36189728842dd51042ff57f7ab
ARG TARGETPLATFORM
COPY $TARGETPLATFORM/caddy /usr/bin/caddy
COPY $TARGETPLATFORM/redlock /usr/bin/redlock
COPY --from=folders --chown=65532:65532 /folders/ /
ENV XDG_CONFIG_HOME=/config XDG_DATA_HOME=/data
USER 65532:65532
EXPOSE 8080
ENTRYPOINT ["/usr/bin/caddy"]
CMD ["run", "--config", "/etc/redlock/Caddyfile"]
