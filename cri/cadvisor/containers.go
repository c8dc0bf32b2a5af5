package cadvisor

import (
	"time"

	"github.com/coracle-project/coracle/pod"
	"github.com/coracle-project/coracle/pod/podconfig"
)

// ofContainers are the metrics that only containers have.
var ofContainers = []family[*Container]{
	{
		name: "container_last_seen", help: "When the container was measured, in seconds since 1970.", kind: gauge,
		of: func(c *Container) []point { return at(c.Stats.Usage.Time) },
	},
	{
		name: "container_start_time_seconds", help: "When the container was started, in seconds since 1970.", kind: gauge,
		of: func(c *Container) []point { return at(c.Container.StartedAt) },
	},
	{
		name: "container_processes", help: "Processes of the container.", kind: gauge,
		of: func(c *Container) []point { return one(c.Processes.Count) },
	},
	{
		name: "container_threads", help: "Threads of the container.", kind: gauge,
		of: func(c *Container) []point { return one(c.Stats.Usage.Tasks) },
	},
	{
		name: "container_threads_max", help: "How many threads the container may have; 0 is no limit.", kind: gauge,
		of: func(c *Container) []point { return one(c.Stats.Usage.TasksLimit) },
	},
	{
		name: "container_tasks_state", help: "Threads of the container by their state.", kind: gauge, labels: []string{"state"},
		of: func(c *Container) []point {
			s := &c.Processes.States
			return []point{
				{[]string{"running"}, s.Running},
				{[]string{"sleeping"}, s.Sleeping},
				{[]string{"stopped"}, s.Stopped},
				{[]string{"uninterruptible"}, s.Uninterruptible},
			}
		},
	},
	{
		name: "container_file_descriptors", help: "Open files of all processes of the container.", kind: gauge,
		of: func(c *Container) []point { return one(c.Processes.Descriptors) },
	},
	{
		name: "container_sockets", help: "Open sockets of all processes of the container.", kind: gauge,
		of: func(c *Container) []point { return one(c.Processes.Sockets) },
	},
	{
		name: "container_ulimits_soft", help: "Soft limits of the container's first process.", kind: gauge, labels: []string{"ulimit"},
		of: func(c *Container) []point { return []point{{[]string{"max_open_files"}, c.Processes.OpenFiles}} },
	},
	{
		name: "container_spec_cpu_period", help: "Period of the processor time's quota, in microseconds.", kind: gauge,
		of: func(c *Container) []point { return limit(c.resources().CPUPeriod) },
	},
	{
		name: "container_spec_cpu_quota", help: "Quota of processor time in each period, in microseconds.", kind: gauge,
		of: func(c *Container) []point { return limit(c.resources().CPUQuota) },
	},
	{
		name: "container_spec_cpu_shares", help: "Weight of the container when processors are short.", kind: gauge,
		of: func(c *Container) []point { return one(uint64(max(c.resources().CPUShares, 0))) },
	},
	{
		name: "container_spec_memory_limit_bytes", help: "Memory limit, in bytes; 0 is none.", kind: gauge,
		of: func(c *Container) []point { return one(uint64(max(c.resources().MemoryLimit, 0))) },
	},
	{
		name: "container_spec_memory_swap_limit_bytes", help: "Limit of memory and swap space together, in bytes; 0 is none.", kind: gauge,
		of: func(c *Container) []point { return one(uint64(max(c.resources().MemorySwapLimit, 0))) },
	},
	{
		name: "container_spec_memory_reservation_limit_bytes",
		help: "Memory that is kept from being taken back, in bytes; CRI has no such setting.", kind: gauge,
		of: func(*Container) []point { return one(0) },
	},
	fsOf("container_fs_usage_bytes", "What the writable layer takes, in bytes.", func(c *Container) uint64 { return c.Stats.DiskBytes }),
	fsOf("container_fs_limit_bytes", "Size of the file system that the writable layer is on, in bytes.",
		func(c *Container) uint64 { return c.FS.Bytes }),
	fsOf("container_fs_inodes_total", "Inodes of the file system that the writable layer is on.",
		func(c *Container) uint64 { return c.FS.Inodes }),
	fsOf("container_fs_inodes_free", "Free inodes of the file system that the writable layer is on.",
		func(c *Container) uint64 { return c.FS.InodesFree }),
}

func (c *Container) resources() *podconfig.Resources { return &c.Container.Config.Resources }

func at(t time.Time) []point { return one(uint64(max(t.Unix(), 0))) }

// limit is a point only for a limit that is set.
func limit(n int64) []point {
	if n <= 0 {
		return nil
	}
	return one(uint64(n))
}

func fsOf(name, help string, of func(*Container) uint64) family[*Container] {
	return family[*Container]{
		name: name, help: help, kind: gauge, labels: []string{"device"},
		of: func(c *Container) []point { return []point{{[]string{c.FS.Device}, of(c)}} },
	}
}

// linkOf makes a counter of a pod's interfaces.
func linkOf(name, help string, of func(*pod.InterfaceUsage) uint64) family[*pod.PodStats] {
	return family[*pod.PodStats]{
		name: name, help: help, kind: counter, labels: []string{"interface"},
		of: func(s *pod.PodStats) (out []point) {
			for i := range s.Interfaces {
				out = append(out, point{[]string{s.Interfaces[i].Name}, of(&s.Interfaces[i])})
			}
			return out
		},
	}
}

// ofNetworks are the metrics of a pod's network.
var ofNetworks = []family[*pod.PodStats]{
	linkOf("container_network_receive_bytes_total", "Bytes received.", func(i *pod.InterfaceUsage) uint64 { return i.RxBytes }),
	linkOf("container_network_receive_packets_total", "Packets received.", func(i *pod.InterfaceUsage) uint64 { return i.RxPackets }),
	linkOf("container_network_receive_packets_dropped_total", "Received packets that were dropped.",
		func(i *pod.InterfaceUsage) uint64 { return i.RxDropped }),
	linkOf("container_network_receive_errors_total", "Errors in receiving.", func(i *pod.InterfaceUsage) uint64 { return i.RxErrors }),
	linkOf("container_network_transmit_bytes_total", "Bytes sent.", func(i *pod.InterfaceUsage) uint64 { return i.TxBytes }),
	linkOf("container_network_transmit_packets_total", "Packets sent.", func(i *pod.InterfaceUsage) uint64 { return i.TxPackets }),
	linkOf("container_network_transmit_packets_dropped_total", "Packets to be sent that were dropped.",
		func(i *pod.InterfaceUsage) uint64 { return i.TxDropped }),
	linkOf("container_network_transmit_errors_total", "Errors in sending.", func(i *pod.InterfaceUsage) uint64 { return i.TxErrors }),
}
