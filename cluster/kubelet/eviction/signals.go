package eviction

import (
	"maps"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	evictionapi "k8s.io/kubernetes/pkg/kubelet/eviction/api"
	"k8s.io/utils/ptr"
)

// Policy says when the node is short of something.
type Policy struct {
	// Hard are the least amounts of each signal; nil are upstream's (DefaultHard), empty are none.
	Hard map[evictionapi.Signal]evictionapi.ThresholdValue
	// Every is how often the node is looked at (10 s), LimitsEvery how often pods' local storage (1
	// min).
	Every, LimitsEvery time.Duration
	// Transition is for how long a node's condition outlives its cause (5 min).
	Transition time.Duration
}

// DefaultHard are upstream's defaults.
func DefaultHard() map[evictionapi.Signal]evictionapi.ThresholdValue {
	return map[evictionapi.Signal]evictionapi.ThresholdValue{
		evictionapi.SignalMemoryAvailable:   {Quantity: ptr.To(resource.MustParse("100Mi"))},
		evictionapi.SignalNodeFsAvailable:   {Percentage: 0.1},
		evictionapi.SignalNodeFsInodesFree:  {Percentage: 0.05},
		evictionapi.SignalImageFsAvailable:  {Percentage: 0.15},
		evictionapi.SignalImageFsInodesFree: {Percentage: 0.05},
	}
}

func (p Policy) withDefaults() Policy {
	if p.Hard == nil {
		p.Hard = DefaultHard()
	}
	p.Hard = maps.Clone(p.Hard)
	for field, d := range map[*time.Duration]time.Duration{
		&p.Every: 10 * time.Second, &p.LimitsEvery: time.Minute,
		&p.Transition: 5 * time.Minute,
	} {
		if *field == 0 {
			*field = d
		}
	}
	return p
}

// resourceInodes is what upstream calls inodes where resources are named.
const resourceInodes v1.ResourceName = "inodes"

// signal is one thing that a node may be short of.
type signal struct {
	name      evictionapi.Signal
	resource  v1.ResourceName
	condition v1.NodeConditionType
	// images is set for the disk that images are on.
	images bool
}

// signals are all of them, in the order in which they are relieved: memory does not wait.
var signals = []signal{
	{name: evictionapi.SignalMemoryAvailable, resource: v1.ResourceMemory, condition: v1.NodeMemoryPressure},
	{name: evictionapi.SignalNodeFsAvailable, resource: v1.ResourceEphemeralStorage, condition: v1.NodeDiskPressure},
	{name: evictionapi.SignalNodeFsInodesFree, resource: resourceInodes, condition: v1.NodeDiskPressure},
	{name: evictionapi.SignalImageFsAvailable, resource: v1.ResourceEphemeralStorage, condition: v1.NodeDiskPressure, images: true},
	{name: evictionapi.SignalImageFsInodesFree, resource: resourceInodes, condition: v1.NodeDiskPressure, images: true},
}

// onDisk says whether the removal of images helps. shared is set if there is one disk for
// everything.
func (s signal) onDisk(shared bool) bool {
	return s.condition == v1.NodeDiskPressure && (s.images || shared)
}

// figure is how much there is of something, and how much is left.
type figure struct{ available, capacity int64 }

// observations are the node's figures; what could not be read is missing.
type observations map[evictionapi.Signal]figure

// met returns the signals whose thresholds the node is below.
func (p Policy) met(seen observations) []signal {
	var met []signal
	for _, s := range signals {
		f, known := seen[s.name]
		if least, set := p.least(s.name, f); known && set && f.available < least {
			met = append(met, s)
		}
	}
	return met
}

// least is the threshold of a signal in bytes or inodes.
func (p Policy) least(name evictionapi.Signal, f figure) (int64, bool) {
	value, set := p.Hard[name]
	return evictionapi.GetThresholdQuantity(value, resource.NewQuantity(f.capacity, resource.BinarySI)).Value(), set
}
