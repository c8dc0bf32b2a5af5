package server

import (
	"context"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"k8s.io/component-base/metrics/legacyregistry"
	statsapi "k8s.io/kubelet/pkg/apis/stats/v1alpha1"
)

// metrics answers with what the process counts, and with what the claims of this node's pods take.
func (s *Server) metrics() http.Handler {
	if s.opts.Claims == nil {
		return legacyregistry.Handler()
	}
	claims := prometheus.NewRegistry()
	claims.MustRegister(claimMetrics{s})
	return promhttp.HandlerFor(prometheus.Gatherers{legacyregistry.DefaultGatherer, claims}, promhttp.HandlerOpts{})
}

// claimTimeout bounds how long the figures of all claims are waited for.
const claimTimeout = 10 * time.Second

// claimMetrics are upstream's kubelet_volume_stats metrics.
type claimMetrics struct{ *Server }

// claimFigures are the metrics and where their values are.
var claimFigures = []struct {
	desc  *prometheus.Desc
	value func(*statsapi.VolumeStats) *uint64
}{
	{claimDesc("capacity_bytes", "Capacity in bytes of the volume"), func(v *statsapi.VolumeStats) *uint64 { return v.CapacityBytes }},
	{claimDesc("available_bytes", "Number of available bytes in the volume"), func(v *statsapi.VolumeStats) *uint64 {
		return v.AvailableBytes
	}},
	{claimDesc("used_bytes", "Number of used bytes in the volume"), func(v *statsapi.VolumeStats) *uint64 { return v.UsedBytes }},
	{claimDesc("inodes", "Maximum number of inodes in the volume"), func(v *statsapi.VolumeStats) *uint64 { return v.Inodes }},
	{claimDesc("inodes_free", "Number of free inodes in the volume"), func(v *statsapi.VolumeStats) *uint64 { return v.InodesFree }},
	{claimDesc("inodes_used", "Number of used inodes in the volume"), func(v *statsapi.VolumeStats) *uint64 { return v.InodesUsed }},
	{
		claimDesc("health_status_abnormal",
			"Abnormal volume health status. The count is either 1 or 0. 1 indicates the volume is unhealthy, 0 indicates volume is healthy"),
		abnormal,
	},
}

func claimDesc(name, help string) *prometheus.Desc {
	return prometheus.NewDesc("kubelet_volume_stats_"+name, "[ALPHA] "+help, []string{"namespace", "persistentvolumeclaim"}, nil)
}

func abnormal(v *statsapi.VolumeStats) *uint64 {
	if v.VolumeHealthStats == nil {
		return nil
	}
	var n uint64
	if v.VolumeHealthStats.Abnormal {
		n = 1
	}
	return &n
}

// Describe implements prometheus.Collector.
func (claimMetrics) Describe(all chan<- *prometheus.Desc) {
	for _, f := range claimFigures {
		all <- f.desc
	}
}

// Collect implements prometheus.Collector. A claim that several pods have is counted once.
func (c claimMetrics) Collect(all chan<- prometheus.Metric) {
	ctx, cancel := context.WithTimeout(context.Background(), claimTimeout)
	defer cancel()
	seen := map[statsapi.PVCReference]bool{}
	for _, pod := range c.host.Pods() {
		for _, v := range c.opts.Claims(ctx, pod) {
			if v.PVCRef == nil || seen[*v.PVCRef] {
				continue
			}
			seen[*v.PVCRef] = true
			for _, f := range claimFigures {
				if value := f.value(&v); value != nil {
					all <- prometheus.MustNewConstMetric(f.desc, prometheus.GaugeValue, float64(*value), v.PVCRef.Namespace, v.PVCRef.Name)
				}
			}
		}
	}
}
