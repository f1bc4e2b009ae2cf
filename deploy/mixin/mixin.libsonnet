// For users of monitoring mixins. The sources are the files of the Helm chart.
{
  prometheusAlerts+:: std.parseYaml(importstr '../charts/eviction-agent/rules/alerts.yaml'),
  prometheusRules+:: std.parseYaml(importstr '../charts/eviction-agent/rules/recording.yaml'),
  grafanaDashboards+:: {
    'eviction-agent-fleet.json': import '../charts/eviction-agent/dashboards/fleet.json',
    'eviction-agent-node.json': import '../charts/eviction-agent/dashboards/node.json',
  },
}
