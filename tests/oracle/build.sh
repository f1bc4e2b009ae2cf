#!/bin/sh
# Builds ./oracle from the published Kubernetes module, whose files stay where Go keeps them. Go
# refuses an overlay there, so the overlay gives build/kubernetes all files of the module, and
# - _overlay/oracle_hooks.go as one more file of the kubelet's eviction package,
# - helpers.go with two results passed through oracleTurn (see the hooks file).
set -eu
cd "$(dirname "$0")"
here=$PWD
go mod download k8s.io/kubernetes
module=$(go list -mod=mod -m -f '{{.Dir}}' k8s.io/kubernetes)
mkdir -p build/kubernetes
awk '
  /^func (thresholdsMetGracePeriod|nodeConditionsObservedSince)\(/ { inside = 1 }
  inside && /^\treturn results$/ { print "\treturn oracleTurn(results)"; inside = 0; changed++; next }
  { print }
  END { if (changed != 2) { print "build.sh: helpers.go is not as expected" > "/dev/stderr"; exit 1 } }
' "$module/pkg/kubelet/eviction/helpers.go" > build/helpers.go
cp "$module/go.mod" build/kubernetes/go.mod
{
  printf '{"Replace": {\n'
  (cd "$module" && find pkg cmd plugin staging test third_party -type f 2>/dev/null) |
    grep -v '_test\.go$\|/testdata/\|^pkg/kubelet/eviction/helpers\.go$' |
    while read -r file; do printf '"%s/build/kubernetes/%s": "%s/%s",\n' "$here" "$file" "$module" "$file"; done
  printf '"%s/build/kubernetes/pkg/kubelet/eviction/helpers.go": "%s/build/helpers.go",\n' "$here" "$here"
  printf '"%s/build/kubernetes/pkg/kubelet/eviction/oracle_hooks.go": "%s/_overlay/oracle_hooks.go"\n}}\n' "$here" "$here"
} > build/overlay.json
cp go.mod build/go.mod
cp go.sum build/go.sum
go mod edit -replace "k8s.io/kubernetes=./build/kubernetes" build/go.mod
go build -modfile=build/go.mod -mod=mod -overlay build/overlay.json -o oracle .
