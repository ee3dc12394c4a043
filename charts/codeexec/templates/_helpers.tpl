{{/* Names start with the release's, unless it says codeexec already. */}}
{{- define "codeexec.fullname" -}}
{{- if contains .Chart.Name .Release.Name -}}
{{- .Release.Name | trunc 40 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name .Chart.Name | trunc 40 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{/* Labels of every object. */}}
{{- define "codeexec.labels" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end -}}

{{/* What selects the pods of one component: (list $ "operator"). */}}
{{- define "codeexec.selector" -}}
{{- $root := index . 0 -}}
app.kubernetes.io/name: {{ $root.Chart.Name }}
app.kubernetes.io/instance: {{ $root.Release.Name }}
app.kubernetes.io/component: {{ index . 1 }}
{{- end -}}

{{/* An image reference: (list $ "apiServer" "api-server"). */}}
{{- define "codeexec.image" -}}
{{- $root := index . 0 -}}
{{- index $root.Values.images (index . 1) | default (printf "codeexec/%s:%s" (index . 2) $root.Chart.AppVersion) -}}
{{- end -}}

{{/* The spec of the SandboxTemplate `default`. What an image of somebody else's has, we cannot tell. */}}
{{- define "codeexec.templateSpec" -}}
{{- $image := ternary (include "codeexec.image" (list . "sandboxSlim" "sandbox-slim")) (include "codeexec.image" (list . "sandbox" "sandbox")) .Values.template.slim -}}
{{- $spec := dict "image" $image "repl" true -}}
{{- if not (or .Values.template.slim (hasKey .Values.template.spec "image")) -}}
{{- $_ := set $spec "libraries" (.Files.Get "files/sandbox-image.json" | fromJson).libraries -}}
{{- end -}}
{{- range $field, $value := .Values.template.spec -}}
{{- $_ := set $spec $field $value -}}
{{- end -}}
{{- $spec | toJson -}}
{{- end -}}

{{- define "codeexec.keysSecret" -}}
{{- .Values.auth.existingSecret | default (printf "%s-api-keys" (include "codeexec.fullname" .)) -}}
{{- end -}}

{{/* The models file in the API server's container; empty where there is none. */}}
{{- define "codeexec.modelsFile" -}}
{{- if .Values.models.list -}}
/etc/codeexec/models/models.yaml
{{- else if .Values.models.existingSecret -}}
/etc/codeexec/upstreams/models.yaml
{{- end -}}
{{- end -}}

{{- define "codeexec.filesClaim" -}}
{{- .Values.apiServer.storage.existingClaim | default (printf "%s-files" (include "codeexec.fullname" .)) -}}
{{- end -}}

{{/* What Pod Security `restricted` asks for, and a read-only root file system. */}}
{{- define "codeexec.podSecurity" -}}
runAsNonRoot: true
runAsUser: 65532
runAsGroup: 65532
fsGroup: 65532
fsGroupChangePolicy: OnRootMismatch
seccompProfile:
  type: RuntimeDefault
{{- end -}}

{{- define "codeexec.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
privileged: false
capabilities:
  drop: [ALL]
{{- end -}}

{{/* Where pods may run: the values of one component. */}}
{{- define "codeexec.placement" -}}
{{- with .nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .affinity }}
affinity:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}
