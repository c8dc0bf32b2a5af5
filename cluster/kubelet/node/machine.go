package node

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// Machine is what does not change while the machine is up.
type Machine struct {
	CPUs         int
	MemoryBytes  int64
	SwapBytes    int64
	StorageBytes int64
	// HugePages is the memory that is set aside in pages of each size, in bytes, by the size in
	// bytes.
	HugePages map[int64]int64

	MachineID, SystemUUID, BootID, Kernel, OSImage string
}

// ReadMachine looks at /proc, /sys and /etc. dir is on the file system that counts as storage. What
// can be missing (ids) stays empty.
func ReadMachine(dir string) (Machine, error) {
	m := Machine{
		CPUs:       runtime.NumCPU(),
		HugePages:  map[int64]int64{},
		MachineID:  firstLine("/etc/machine-id", "/var/lib/dbus/machine-id"),
		SystemUUID: firstLine("/sys/class/dmi/id/product_uuid", "/proc/device-tree/vm,uuid", "/etc/machine-id"),
		BootID:     firstLine("/proc/sys/kernel/random/boot_id"),
		OSImage:    osImage("/etc/os-release"),
	}
	meminfo, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		return m, fmt.Errorf("read the machine's memory: %w", err)
	}
	m.MemoryBytes = meminfoBytes(meminfo, "MemTotal")
	m.SwapBytes = meminfoBytes(meminfo, "SwapTotal")
	if m.MemoryBytes == 0 {
		return m, fmt.Errorf("read the machine's memory: no MemTotal in /proc/meminfo")
	}
	var u unix.Utsname
	if err := unix.Uname(&u); err == nil {
		m.Kernel = unix.ByteSliceToString(u.Release[:])
	}
	var s unix.Statfs_t
	if err := unix.Statfs(dir, &s); err != nil {
		return m, fmt.Errorf("size of the file system of %s: %w", dir, err)
	}
	m.StorageBytes = int64(s.Blocks) * s.Bsize
	pools, _ := filepath.Glob("/sys/kernel/mm/hugepages/hugepages-*kB")
	for _, p := range pools {
		kb, err := strconv.ParseInt(strings.TrimSuffix(strings.TrimPrefix(filepath.Base(p), "hugepages-"), "kB"), 10, 64)
		pages, err2 := strconv.ParseInt(firstLine(filepath.Join(p, "nr_hugepages")), 10, 64)
		if err == nil && err2 == nil {
			m.HugePages[kb<<10] = kb << 10 * pages
		}
	}
	return m, nil
}

func firstLine(files ...string) string {
	for _, f := range files {
		if content, err := os.ReadFile(f); err == nil {
			line, _, _ := bytes.Cut(content, []byte("\n"))
			return strings.TrimSpace(string(bytes.TrimRight(line, "\x00")))
		}
	}
	return ""
}

func meminfoBytes(content []byte, key string) int64 {
	for line := range strings.Lines(string(content)) {
		fields := strings.Fields(line)
		if len(fields) >= 2 && fields[0] == key+":" {
			kb, _ := strconv.ParseInt(fields[1], 10, 64)
			return kb << 10
		}
	}
	return 0
}

func osImage(file string) string {
	content, err := os.ReadFile(file)
	if err != nil {
		return "Linux"
	}
	for line := range strings.Lines(string(content)) {
		if name, ok := strings.CutPrefix(strings.TrimSpace(line), "PRETTY_NAME="); ok {
			if unquoted, err := strconv.Unquote(name); err == nil {
				return unquoted
			}
			return strings.Trim(name, "'")
		}
	}
	return "Linux"
}

// What is never given to pods: the least free memory and storage that a node keeps.
const (
	memoryKept         = 100 << 20
	storageKeptPercent = 10
)

// Resources returns the machine's capacity and what of it pods can be given.
func Resources(m Machine, maxPods int) (capacity, allocatable v1.ResourceList) {
	capacity = v1.ResourceList{
		v1.ResourceCPU:              *resource.NewMilliQuantity(int64(m.CPUs)*1000, resource.DecimalSI),
		v1.ResourceMemory:           *resource.NewQuantity(m.MemoryBytes, resource.BinarySI),
		v1.ResourceEphemeralStorage: *resource.NewQuantity(m.StorageBytes, resource.BinarySI),
		v1.ResourcePods:             *resource.NewQuantity(int64(maxPods), resource.DecimalSI),
	}
	memory := m.MemoryBytes - memoryKept
	for size, bytes := range m.HugePages {
		name := v1.ResourceName(v1.ResourceHugePagesPrefix + resource.NewQuantity(size, resource.BinarySI).String())
		capacity[name] = *resource.NewQuantity(bytes, resource.BinarySI)
		memory -= bytes
	}
	allocatable = capacity.DeepCopy()
	allocatable[v1.ResourceMemory] = *resource.NewQuantity(max(memory, 0), resource.BinarySI)
	allocatable[v1.ResourceEphemeralStorage] = *resource.NewQuantity(m.StorageBytes-m.StorageBytes/100*storageKeptPercent, resource.BinarySI)
	return capacity, allocatable
}
