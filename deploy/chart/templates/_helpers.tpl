{{/* What a label selector of Caddy, of the masters or of the check chooses; the argument is a list of the root and the name. */}}
{{- define "labels" -}}
app.kubernetes.io/name: redlock
app.kubernetes.io/instance: {{ (index . 0).Release.Name }}
app.kubernetes.io/component: {{ index . 1 }}
{{- end }}

{{- define "caddyfile" -}}
{{ .Values.caddyfile | default (.Files.Get "Caddyfile") }}
{{- end }}

{{- define "masters" -}}
{{- if .Values.masters -}}
{{ join " " .Values.masters }}
{{- else -}}
{{- range $i, $_ := until (int .Values.redis.replicas) -}}
{{ if $i }} {{ end }}redis://{{ $.Release.Name }}-redis-{{ $i }}.{{ $.Release.Name }}-redis:6379
{{- end }}
{{- end }}
{{- end }}

{{/* What the pods of Caddy and of the check have in common. */}}
{{- define "caddy" -}}
name: caddy
image: {{ .Values.image }}
env:
  - name: REDLOCK_MASTERS
    value: {{ include "masters" . }}
  - name: UPSTREAM
    value: {{ .Values.upstream }}
  - name: OPS_ADDRESS # the policy in network.yaml says who reaches it
    value: 0.0.0.0
{{ include "secured" . }}
volumeMounts:
  - name: caddyfile
    mountPath: /etc/redlock/Caddyfile
    subPath: Caddyfile
    readOnly: true
  - name: password
    mountPath: /run/secrets/redis-password
    subPath: redis-password
    readOnly: true
  - name: config
    mountPath: /config
  - name: data
    mountPath: /data
{{- end }}

{{/* The argument is a list of the root and the name of the ConfigMap that has the Caddyfile. */}}
{{- define "caddy.volumes" -}}
- name: caddyfile
  configMap:
    name: {{ index . 1 }}
- name: password
  secret:
    secretName: {{ (index . 0).Values.secrets.password }}
- name: config
  emptyDir: {}
- name: data
  emptyDir: {}
{{- end }}

{{/* What the Pod Security Standard "restricted" asks of a container. */}}
{{- define "secured" -}}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities:
    drop: [ALL]
{{- end }}

{{/* The same of a pod, and what all pods have in common; the argument is a list of the root and the user. */}}
{{- define "pod" -}}
{{- $root := index . 0 -}}
{{- $user := index . 1 -}}
automountServiceAccountToken: false
enableServiceLinks: false
securityContext:
  runAsNonRoot: true
  runAsUser: {{ $user }}
  runAsGroup: {{ $user }}
  fsGroup: {{ $user }}
  seccompProfile:
    type: RuntimeDefault
{{- with $root.Values.pod }}
{{ toYaml . }}
{{- end }}
{{- end }}
