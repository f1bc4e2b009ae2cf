{{- define "eviction-agent.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 50 | trimSuffix "-" }}
{{- end }}

{{- define "eviction-agent.fullname" -}}
{{- $name := include "eviction-agent.name" . -}}
{{- if .Values.fullnameOverride }}
{{- .Values.fullnameOverride | trunc 50 | trimSuffix "-" }}
{{- else if contains $name .Release.Name }}
{{- .Release.Name | trunc 50 | trimSuffix "-" }}
{{- else }}
{{- printf "%s-%s" .Release.Name $name | trunc 50 | trimSuffix "-" }}
{{- end }}
{{- end }}

{{- define "eviction-agent.serviceAccount" -}}
{{- if .Values.serviceAccount.name }}
{{- .Values.serviceAccount.name }}
{{- else if .Values.serviceAccount.create }}
{{- include "eviction-agent.fullname" . }}
{{- else }}
{{- "default" }}
{{- end }}
{{- end }}

{{- define "eviction-agent.image" -}}
{{- with .Values.image.registry }}{{ . }}/{{ end }}{{ .Values.image.repository }}
{{- if .Values.image.digest }}@{{ .Values.image.digest }}{{ else }}:{{ .Values.image.tag | default .Chart.AppVersion }}{{ end }}
{{- end }}

{{- /* What tells the pods of the DaemonSet from those of the test and of the clean-up. */}}
{{- define "eviction-agent.selector" -}}
app.kubernetes.io/name: {{ include "eviction-agent.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/component: node-agent
{{- end }}

{{- define "eviction-agent.labels" -}}
{{ include "eviction-agent.metadataLabels" (dict "root" . "component" "node-agent") }}
{{- end }}

{{- define "eviction-agent.metadataLabels" -}}
{{- with .root -}}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
app.kubernetes.io/name: {{ include "eviction-agent.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/component: {{ $.component }}
app.kubernetes.io/part-of: eviction-agent
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- with .Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end }}
{{- end }}

{{- /* The AgentConfiguration, with the paths of what the chart mounts. */}}
{{- define "eviction-agent.config" -}}
{{- $config := deepCopy .Values.config }}
{{- $thresholds := default dict $config.thresholds }}
{{- if .Values.kubelet.configFile }}
{{- $files := default dict $thresholds.files }}
{{- $_ := set $files "config" "/host/kubelet/config.yaml" }}
{{- $_ := set $thresholds "files" $files }}
{{- end }}
{{- if .Values.kubelet.certificateFile }}
{{- $configz := default dict $thresholds.configz }}
{{- $_ := set $configz "certificateAuthority" "/host/kubelet/kubelet.crt" }}
{{- $_ := set $thresholds "configz" $configz }}
{{- end }}
{{- $_ := set $config "thresholds" $thresholds }}
{{- if include "eviction-agent.reclaims" . }}
{{- $reclaim := default dict $config.reclaim }}
{{- $_ := set $reclaim "criSocket" "unix:///run/eviction-agent-cri/cri.sock" }}
{{- $_ := set $config "reclaim" $reclaim }}
{{- end }}
{{- toYaml $config }}
{{- end }}

{{- /* Whether the agent removes images and containers, through the container `cri-proxy`; empty if not. */}}
{{- define "eviction-agent.reclaims" -}}
{{- if eq (dig "eviction" "nodeReclaim" "Kubelet" .Values.config) "CRI" }}true{{ end }}
{{- end }}

{{- /* The option for which the agent signals processes; empty if there is none. */}}
{{- define "eviction-agent.killOption" -}}
{{- $config := .Values.config }}
{{- $eviction := default dict $config.eviction }}
{{- if eq (default "None" $config.action) "Kill" }}
{{- "config.action: Kill" }}
{{- else if eq (default "None" $config.action) "Evict" }}
{{- if eq (default "Evict" $eviction.hardMode) "EvictAndKill" }}
{{- "config.eviction.hardMode: EvictAndKill" }}
{{- else if eq (default "Wait" $eviction.whenAPIServerDown) "Kill" }}
{{- "config.eviction.whenAPIServerDown: Kill" }}
{{- end }}
{{- end }}
{{- end }}

{{- /* Refuses values that contradict each other, with the mend in the message. */}}
{{- define "eviction-agent.validate" -}}
{{- $config := .Values.config }}
{{- $thresholds := default dict $config.thresholds }}
{{- $source := default "Files" $thresholds.source }}
{{- $dryRun := default "None" $config.dryRun }}
{{- /* A list that a values file has without items is null. */}}
{{- $capabilities := concat (.Values.capabilities.base | default list) (.Values.capabilities.extra | default list) }}
{{- with include "eviction-agent.killOption" . }}
{{- if not $.Values.hostPID }}
{{- fail (printf "%s needs the PID namespace of the host: set hostPID: true" .) }}
{{- end }}
{{- if and (eq $dryRun "None") (not $.Values.privileged) (not (has "KILL" $capabilities)) }}
{{- fail (printf "%s needs the capability KILL: set capabilities.extra: [KILL], or config.dryRun: Client" .) }}
{{- end }}
{{- end }}
{{- if and (eq $dryRun "Server") (ne (default "None" $config.action) "Evict") }}
{{- fail (printf "config.dryRun: Server is for config.action: Evict, and this is %s: set config.dryRun: Client or None" (default "None" $config.action)) }}
{{- end }}
{{- if hasKey (default dict $config.server) "listenAddress" }}
{{- fail "config.server.listenAddress: set metrics.address and metrics.port, from which probes, ports and monitors are made" }}
{{- end }}
{{- range $capabilities }}
{{- if hasPrefix "CAP_" . }}
{{- fail (printf "capabilities: Kubernetes names capabilities without CAP_: write %s" (trimPrefix "CAP_" .)) }}
{{- end }}
{{- end }}
{{- $address := .Values.metrics.address }}
{{- if and (contains ":" $address) (not (regexMatch "^\\[.*\\]$" $address)) }}
{{- fail (printf "metrics.address: an IPv6 address needs brackets: set metrics.address: '[%s]'" $address) }}
{{- end }}
{{- if and (default dict .Values.podSecurityContext).appArmorProfile (semverCompare "<1.30.0-0" .Capabilities.KubeVersion.Version) }}
{{- fail (printf "podSecurityContext.appArmorProfile: Kubernetes has it from 1.30 on, and this is %s: set the annotation podAnnotations: {container.apparmor.security.beta.kubernetes.io/agent: unconfined}" .Capabilities.KubeVersion.Version) }}
{{- end }}
{{- if and (eq $source "Configz") (semverCompare "<1.33.0-0" .Capabilities.KubeVersion.Version) }}
{{- fail (printf "config.thresholds.source: Configz needs kubelets of Kubernetes 1.33 or later, and this is %s: set config.thresholds.source: Files and kubelet.configFile: /var/lib/kubelet/config.yaml" .Capabilities.KubeVersion.Version) }}
{{- end }}
{{- if and (eq $source "Files") (not .Values.kubelet.configFile) (not (dig "files" "config" "" $thresholds)) }}
{{- fail "config.thresholds.source: Files needs the kubelet's file: set kubelet.configFile: /var/lib/kubelet/config.yaml, or config.thresholds.files.config to what extraVolumes mount" }}
{{- end }}
{{- if and .Values.metrics.podMonitor.enabled .Values.metrics.serviceMonitor.enabled }}
{{- fail "metrics.podMonitor and metrics.serviceMonitor would scrape each agent twice: enable one of them" }}
{{- end }}
{{- /* Without a cluster, as in `helm template`, it is not known which APIs there are. */}}
{{- if and (not (.Capabilities.APIVersions.Has "monitoring.coreos.com/v1")) (lookup "v1" "Namespace" "" "default") }}
{{- range $name := list "podMonitor" "serviceMonitor" "prometheusRule" }}
{{- if (index $.Values.metrics $name).enabled }}
{{- fail (printf "metrics.%s.enabled: this cluster has no monitoring.coreos.com/v1: install the Prometheus operator first, or set metrics.%s.enabled: false" $name $name) }}
{{- end }}
{{- end }}
{{- end }}
{{- end }}
