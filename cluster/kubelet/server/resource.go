package server

import (
	"bytes"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	statsapi "k8s.io/kubelet/pkg/apis/stats/v1alpha1"
)

// resourceMetrics answers with what nodes, pods and containers use, in the names and the text
// format that metrics-server and Prometheus read.
func (s *Server) resourceMetrics(w http.ResponseWriter, r *http.Request) {
	var e exposition
	summary, err := s.stats.summary(r.Context(), cpuAndMemory)
	if err != nil {
		s.opts.Log.Warn("kubelet API: no figures for /metrics/resource", "err", err)
	} else {
		e.resources(summary)
	}
	failed := 0.0
	if err != nil {
		failed = 1
	}
	e.family("resource_scrape_error", "[STABLE] 1 if there was an error while getting container metrics, 0 otherwise", "gauge")
	e.sample("resource_scrape_error", "", failed, time.Time{})
	w.Header().Set("Content-Type", "text/plain; version=0.0.4; charset=utf-8; escaping=underscores")
	_, _ = w.Write(e.Bytes())
}

// exposition is a text in Prometheus' format.
type exposition struct {
	bytes.Buffer
	// head introduces the family at hand, if it has no sample yet: families without any are left
	// out.
	head string
}

func (e *exposition) family(name, help, kind string) {
	e.head = fmt.Sprintf("# HELP %s %s\n# TYPE %s %s\n", name, help, name, kind)
}

func (e *exposition) sample(name, labels string, value float64, at time.Time) {
	e.WriteString(e.head)
	e.head = ""
	e.WriteString(name)
	e.WriteString(labels)
	e.WriteByte(' ')
	e.Write(strconv.AppendFloat(e.AvailableBuffer(), value, 'g', -1, 64))
	if !at.IsZero() {
		e.WriteByte(' ')
		e.Write(strconv.AppendInt(e.AvailableBuffer(), at.UnixMilli(), 10))
	}
	e.WriteByte('\n')
}

// labels are names and values in turn; the values are names of API objects, which need no escaping.
func labels(pairs ...string) string {
	var parts []string
	for i := 0; i < len(pairs); i += 2 {
		parts = append(parts, pairs[i]+"="+strconv.Quote(pairs[i+1]))
	}
	return "{" + strings.Join(parts, ",") + "}"
}

// second is the nanoseconds that figures of times are in.
const second = float64(time.Second)

func (e *exposition) resources(s *statsapi.Summary) {
	containers := func(each func(labels string, c *statsapi.ContainerStats)) {
		for i := range s.Pods {
			for j := range s.Pods[i].Containers {
				c := &s.Pods[i].Containers[j]
				each(labels("container", c.Name, "namespace", s.Pods[i].PodRef.Namespace, "pod", s.Pods[i].PodRef.Name), c)
			}
		}
	}
	pods := func(each func(labels string, p *statsapi.PodStats)) {
		for i := range s.Pods {
			each(labels("namespace", s.Pods[i].PodRef.Namespace, "pod", s.Pods[i].PodRef.Name), &s.Pods[i])
		}
	}
	cpu := func(name, labels string, c *statsapi.CPUStats) {
		if c != nil && c.UsageCoreNanoSeconds != nil {
			e.sample(name, labels, float64(*c.UsageCoreNanoSeconds)/second, c.Time.Time)
		}
	}
	memory := func(name, labels string, m *statsapi.MemoryStats) {
		if m != nil && m.WorkingSetBytes != nil {
			e.sample(name, labels, float64(*m.WorkingSetBytes), m.Time.Time)
		}
	}
	swap := func(name, labels string, m *statsapi.SwapStats) {
		if m != nil && m.SwapUsageBytes != nil {
			e.sample(name, labels, float64(*m.SwapUsageBytes), m.Time.Time)
		}
	}

	name := "container_cpu_usage_seconds_total"
	e.family(name, "[STABLE] Cumulative cpu time consumed by the container in core-seconds", "counter")
	containers(func(l string, c *statsapi.ContainerStats) { cpu(name, l, c.CPU) })
	name = "container_memory_working_set_bytes"
	e.family(name, "[STABLE] Current working set of the container in bytes", "gauge")
	containers(func(l string, c *statsapi.ContainerStats) { memory(name, l, c.Memory) })
	name = "container_start_time_seconds"
	e.family(name, "[STABLE] Start time of the container since unix epoch in seconds", "gauge")
	containers(func(l string, c *statsapi.ContainerStats) {
		if !c.StartTime.IsZero() {
			e.sample(name, l, float64(c.StartTime.UnixNano())/second, time.Time{})
		}
	})
	name = "container_swap_usage_bytes"
	e.family(name, "[ALPHA] Current amount of the container swap usage in bytes. Reported only on non-windows systems", "gauge")
	containers(func(l string, c *statsapi.ContainerStats) { swap(name, l, c.Swap) })
	name = "node_cpu_usage_seconds_total"
	e.family(name, "[STABLE] Cumulative cpu time consumed by the node in core-seconds", "counter")
	cpu(name, "", s.Node.CPU)
	name = "node_memory_working_set_bytes"
	e.family(name, "[STABLE] Current working set of the node in bytes", "gauge")
	memory(name, "", s.Node.Memory)
	name = "node_swap_usage_bytes"
	e.family(name, "[ALPHA] Current swap usage of the node in bytes. Reported only on non-windows systems", "gauge")
	swap(name, "", s.Node.Swap)
	name = "pod_cpu_usage_seconds_total"
	e.family(name, "[STABLE] Cumulative cpu time consumed by the pod in core-seconds", "counter")
	pods(func(l string, p *statsapi.PodStats) { cpu(name, l, p.CPU) })
	name = "pod_memory_working_set_bytes"
	e.family(name, "[STABLE] Current working set of the pod in bytes", "gauge")
	pods(func(l string, p *statsapi.PodStats) { memory(name, l, p.Memory) })
}
