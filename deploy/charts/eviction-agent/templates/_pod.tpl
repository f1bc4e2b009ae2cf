{{- /* The pod's spec. `root` is the chart's context, `args` are the container's arguments, `daemon` is set for the
DaemonSet: the test is such a pod that ends. */}}
{{- define "eviction-agent.pod" -}}
{{- $root := .root -}}
{{- $daemon := .daemon -}}
{{- $args := concat .args (include "eviction-agent.storageArgs" .root | fromYamlArray) -}}
{{- $reclaims := include "eviction-agent.reclaims" .root -}}
{{- $criSocketDir := .root.Values.disks.criSocketDir | default "/run/containerd" -}}
{{- $capabilities := concat (.root.Values.capabilities.base | default list) (.root.Values.disks.readPodStorage | ternary (list "DAC_READ_SEARCH") list) (.root.Values.capabilities.extra | default list) | uniq -}}
{{- with .root.Values -}}
serviceAccountName: {{ include "eviction-agent.serviceAccount" $root }}
automountServiceAccountToken: true
{{- include "eviction-agent.placement" $root | trim | nindent 0 }}
# OOM kills are attributed, and processes signalled, by process ids of the host.
hostPID: {{ .hostPID }}
{{- if $daemon }}
terminationGracePeriodSeconds: 5
{{- else }}
restartPolicy: Never
{{- end }}
{{- with .podSecurityContext }}
securityContext:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- if $reclaims }}
initContainers:
# Has the runtime's socket in place of the agent, and offers it what node reclaim needs: docs/reclaim.md.
- name: cri-proxy
  image: {{ include "eviction-agent.image" $root }}
  imagePullPolicy: {{ .image.pullPolicy }}
  # It runs beside the agent.
  restartPolicy: Always
  args:
  - cri-proxy
  - --cri-socket={{ dig "reclaim" "criSocket" "" .config | default (printf "%s/%s.sock" $criSocketDir (base $criSocketDir)) }}
  - --socket=/run/eviction-agent-cri/cri.sock
  resources:
    requests: {cpu: 1m, memory: 8Mi}
    limits: {memory: 64Mi}
  securityContext:
    # The socket is root's.
    runAsUser: 0
    readOnlyRootFilesystem: true
    allowPrivilegeEscalation: false
    capabilities:
      drop: [ALL]
  volumeMounts:
  - {name: cri-proxy, mountPath: /run/eviction-agent-cri}
  # The directory and not the socket: the runtime makes a new socket at each start.
  - {name: cri, mountPath: {{ $criSocketDir }}, mountPropagation: HostToContainer}
{{- end }}
containers:
- name: {{ if $daemon }}agent{{ else }}check{{ end }}
  image: {{ include "eviction-agent.image" $root }}
  imagePullPolicy: {{ .image.pullPolicy }}
  args:
  {{- toYaml $args | nindent 2 }}
  env:
  - name: NODE_NAME
    valueFrom:
      fieldRef:
        fieldPath: spec.nodeName
  # Where the kubelet is asked.
  - name: NODE_IP
    valueFrom:
      fieldRef:
        fieldPath: status.hostIP
  - name: POD_IP
    valueFrom:
      fieldRef:
        fieldPath: status.podIP
  {{- with .extraEnv }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
  {{- if $daemon }}
  ports:
  - name: metrics
    containerPort: {{ .metrics.port }}
  {{- end }}
  {{- with .resources }}
  resources:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- if $daemon }}
  startupProbe:
    httpGet: {path: /healthz, port: metrics}
    periodSeconds: 2
    failureThreshold: 30
  livenessProbe:
    httpGet: {path: /healthz, port: metrics}
    periodSeconds: 10
    timeoutSeconds: 5
    failureThreshold: 6
  readinessProbe:
    httpGet: {path: /readyz, port: metrics}
    periodSeconds: 10
    timeoutSeconds: 5
  {{- end }}
  securityContext:
    # Most runtimes hand capabilities on to root alone; it is no more than this list says.
    runAsUser: 0
    readOnlyRootFilesystem: true
    {{- if .privileged }}
    privileged: true
    {{- else }}
    allowPrivilegeEscalation: false
    capabilities:
      drop: [ALL]
      # What each is for: docs/reference/capabilities.md.
      add: [{{ join ", " $capabilities }}]
    {{- end }}
  volumeMounts:
  # Usage thresholds of cgroup version 1 and pressure triggers are written into it.
  - {name: cgroup, mountPath: /sys/fs/cgroup}
  - {name: config, mountPath: /etc/eviction-agent, readOnly: true}
  # The state directory: kept across restarts of the agent, not of the node.
  - {name: run, mountPath: /run/eviction-agent}
  {{- if .kubelet.configFile }}
  - {name: kubelet-config, mountPath: /host/kubelet/config.yaml, readOnly: true}
  {{- end }}
  {{- if .kubelet.certificateFile }}
  - {name: kubelet-certificate, mountPath: /host/kubelet/kubelet.crt, readOnly: true}
  {{- end }}
  {{- range include "eviction-agent.storagePaths" $root | fromYamlArray }}
  # For what pods use of the disks, at the same path as on the host.
  - {name: {{ .name }}, mountPath: {{ .path }}, readOnly: true, mountPropagation: HostToContainer}
  {{- end }}
  {{- if $reclaims }}
  - {name: cri-proxy, mountPath: /run/eviction-agent-cri}
  {{- end }}
  {{- if and $daemon (dig "recorder" "directory" "" .config) }}
  # Recordings stay when the pod goes.
  - {name: recordings, mountPath: {{ .config.recorder.directory }}}
  {{- end }}
  {{- with .extraVolumeMounts }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
volumes:
- name: cgroup
  hostPath: {path: /sys/fs/cgroup, type: Directory}
- name: config
  configMap: {name: {{ include "eviction-agent.fullname" $root }}}
- name: run
  hostPath: {path: {{ .stateDir }}, type: DirectoryOrCreate}
{{- with .kubelet.configFile }}
- name: kubelet-config
  hostPath: {path: {{ . }}, type: File}
{{- end }}
{{- with .kubelet.certificateFile }}
- name: kubelet-certificate
  hostPath: {path: {{ . }}, type: File}
{{- end }}
{{- range include "eviction-agent.storagePaths" $root | fromYamlArray }}
- name: {{ .name }}
  hostPath: {path: {{ .path }}, type: Directory}
{{- end }}
{{- if $reclaims }}
- name: cri
  hostPath: {path: {{ $criSocketDir }}, type: Directory}
- name: cri-proxy
  emptyDir: {}
{{- end }}
{{- if and $daemon (dig "recorder" "directory" "" .config) }}
- name: recordings
  hostPath: {path: {{ .config.recorder.directory }}, type: DirectoryOrCreate}
{{- end }}
{{- with .extraVolumes }}
{{- toYaml . | nindent 0 }}
{{- end }}
{{- end }}
{{- end }}

{{- /* What is mounted for what pods use of the disks. */}}
{{- define "eviction-agent.storagePaths" -}}
{{- with .Values.disks }}
{{- if .readPodStorage }}
- {name: kubelet-pods, path: {{ .kubeletDir }}/pods}
{{- with .podLogsDir }}
- {name: pod-logs, path: {{ . }}}
{{- end }}
{{- with .runtimeDir }}
- {name: runtime, path: {{ . }}}
{{- end }}
{{- end }}
{{- end }}
{{- end }}

{{- define "eviction-agent.storageArgs" -}}
{{- with .Values.disks }}
{{- if .readPodStorage }}
- --kubelet-root-dir={{ .kubeletDir }}
{{- with .podLogsDir }}
- --pod-logs-dir={{ . }}
{{- end }}
{{- end }}
{{- end }}
{{- end }}

{{- /* On which nodes a pod runs, and by which network. */}}
{{- define "eviction-agent.placement" -}}
{{- with .Values -}}
{{- with .imagePullSecrets }}
imagePullSecrets:
{{- toYaml . | nindent 0 }}
{{- end }}
{{- with .priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- with .nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .affinity }}
affinity:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .tolerations }}
tolerations:
{{- toYaml . | nindent 0 }}
{{- end }}
{{- if .hostNetwork }}
hostNetwork: true
dnsPolicy: ClusterFirstWithHostNet
{{- end }}
{{- end }}
{{- end }}

{{- /* The pod of a hook that asks the API server: `root` is the chart's context, `account` the service account, `args`
are the container's arguments. */}}
{{- define "eviction-agent.apiPod" -}}
{{- with .root -}}
serviceAccountName: {{ $.account }}
automountServiceAccountToken: true
restartPolicy: Never
{{- include "eviction-agent.placement" . | trim | nindent 0 }}
securityContext:
  runAsNonRoot: true
  runAsUser: 65532
  runAsGroup: 65532
  seccompProfile:
    type: RuntimeDefault
containers:
- name: {{ index $.args 0 }}
  image: {{ include "eviction-agent.image" . }}
  imagePullPolicy: {{ .Values.image.pullPolicy }}
  args:
  {{- toYaml $.args | nindent 2 }}
  {{- with .Values.extraEnv }}
  env:
  {{- toYaml . | nindent 2 }}
  {{- end }}
  resources:
    requests: {cpu: 50m, memory: 64Mi}
    limits: {memory: 64Mi}
  securityContext:
    allowPrivilegeEscalation: false
    readOnlyRootFilesystem: true
    capabilities:
      drop: [ALL]
{{- end }}
{{- end }}

{{- /* Metadata of an object of a hook: `root`, `name`, `namespace` unless it is of the cluster, `component`, `hook`, `weight`;
`policy` if it is not deleted afterwards. */}}
{{- define "eviction-agent.hookMetadata" -}}
name: {{ .name }}
{{- with .namespace }}
namespace: {{ . }}
{{- end }}
labels:
  {{- include "eviction-agent.metadataLabels" . | nindent 2 }}
annotations:
  helm.sh/hook: {{ .hook }}
  helm.sh/hook-weight: {{ .weight | default "-1" | quote }}
  helm.sh/hook-delete-policy: {{ .policy | default "before-hook-creation,hook-succeeded" }}
{{- end }}

{{- /* The account of a hook, which may read DaemonSets and pods of the namespace, and has the rules by which OpenShift
admits its pods. Arguments as above. */}}
{{- define "eviction-agent.hookAccount" -}}
apiVersion: v1
kind: ServiceAccount
metadata:
  {{- include "eviction-agent.hookMetadata" . | nindent 2 }}
automountServiceAccountToken: false
---
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata:
  {{- include "eviction-agent.hookMetadata" . | nindent 2 }}
rules:
- apiGroups: [apps]
  resources: [daemonsets]
  verbs: [get]
- apiGroups: [""]
  resources: [pods]
  verbs: [list]
{{- with .root.Values.rbac.extraRules }}
{{ toYaml . }}
{{- end }}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata:
  {{- include "eviction-agent.hookMetadata" . | nindent 2 }}
roleRef:
  apiGroup: rbac.authorization.k8s.io
  kind: Role
  name: {{ .name }}
subjects:
- kind: ServiceAccount
  name: {{ .name }}
  namespace: {{ .namespace }}
{{- end }}
