{{- define "weir.labels" -}}
app.kubernetes.io/part-of: weir
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- end }}

{{- define "weir.image" -}}
{{- if .Values.image.digest -}}
{{ .Values.image.repository }}@{{ .Values.image.digest }}
{{- else -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default (printf "v%s" .Chart.AppVersion) }}
{{- end -}}
{{- end }}

{{/* The ConfigMap's content, and its name, which changes with the content so that the pods do too. */}}
{{- define "weir.config" -}}
{{- if .Values.redis.enabled }}
redis-address: {{ join "," .Values.redis.addresses | quote }}
{{- end }}
table: {{ .Values.table | quote }}
{{- with .Values.namespaces }}
namespaces: {{ join "," . | quote }}
{{- end }}
{{- end }}

{{- define "weir.configName" -}}
weir-controller-{{ include "weir.config" . | sha256sum | trunc 10 }}
{{- end }}
