{{- define "sluice.name" -}}
{{- if eq .Release.Name "sluice" }}sluice{{ else }}{{ printf "%s-sluice" .Release.Name | trunc 40 | trimSuffix "-" }}{{ end }}
{{- end }}

{{- define "sluice.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end }}

{{- define "sluice.selector" -}}
app.kubernetes.io/name: sluice
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .part }}
{{- end }}

{{- define "sluice.labels" -}}
{{ include "sluice.selector" . }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
helm.sh/chart: {{ .root.Chart.Name }}-{{ .root.Chart.Version }}
{{- end }}

{{- define "sluice.certificate" -}}
{{ .Values.engine.certificateSecret | default (printf "%s-engine" (include "sluice.name" .)) }}
{{- end }}

{{/* Host names of the engine's pods: a certificate names each of them. */}}
{{- define "sluice.engines" -}}
{{- $name := include "sluice.name" . -}}
{{- $hosts := list -}}
{{- range $number := until (int .Values.engine.replicas) -}}
{{- $hosts = append $hosts (printf "%s-engine-%d.%s-engine" $name $number $name) -}}
{{- end -}}
{{- $hosts | join "," -}}
{{- end }}

{{/* What every container has. */}}
{{- define "sluice.container" -}}
image: {{ include "sluice.image" . | quote }}
imagePullPolicy: {{ .Values.image.pullPolicy }}
securityContext:
  allowPrivilegeEscalation: false
  capabilities: {drop: [ALL]}
envFrom:
{{- range .Values.secrets }}
  - secretRef: {name: {{ . | quote }}}
{{- end }}
{{- end }}

{{- define "sluice.mounts" -}}
- {name: conf, mountPath: /etc/sluice/conf, readOnly: true}
- {name: dagster, mountPath: /var/lib/sluice/dagster/dagster.yaml, subPath: dagster.yaml, readOnly: true}
- {name: certificate, mountPath: /etc/sluice/certificate, readOnly: true}
{{- end }}

{{/* The key of the certificate is in the pods of the engine alone. */}}
{{- define "sluice.volumes" -}}
{{- $name := include "sluice.name" .root -}}
- name: conf
  projected:
    sources:
      - configMap: {name: {{ $name }}-conf}
      - configMap:
          name: {{ $name }}-destinations
          items:
          {{- range $destination, $_ := .root.Values.conf.destinations }}
            - {key: {{ $destination }}.yaml, path: destinations/{{ $destination }}.yaml}
          {{- end }}
- name: dagster
  configMap: {name: {{ $name }}-dagster}
- name: certificate
  secret:
    secretName: {{ include "sluice.certificate" .root }}
    items:
      - {key: ca.crt, path: ca.crt}
    {{- if eq .part "engine" }}
      - {key: tls.crt, path: tls.crt}
      - {key: tls.key, path: tls.key}
    {{- end }}
{{- end }}

{{- define "sluice.pod" -}}
serviceAccountName: {{ include "sluice.name" . }}
{{- with .Values.imagePullSecrets }}
imagePullSecrets: {{ toJson . }}
{{- end }}
securityContext:
  runAsNonRoot: true
  runAsUser: 10001
  runAsGroup: 10001
  fsGroup: 10001
  seccompProfile: {type: RuntimeDefault}
{{- end }}

{{/* A change of conf/ other than of its destinations, or of dagster.yaml, starts the pods again; the engine follows destinations by itself. */}}
{{- define "sluice.annotations" -}}
checksum/conf: {{ include "sluice.conf" . | sha256sum }}
checksum/dagster: {{ include "sluice.dagster" . | sha256sum }}
{{- end }}
