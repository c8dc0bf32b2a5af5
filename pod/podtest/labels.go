package podtest

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/coracle-project/coracle/pod/mac"
)

// Labels are the SELinux of a host that has it on. Each label without a level gets categories of
// its own.
type Labels struct {
	given    int
	reserved map[string]bool // levels: as in go-selinux, they are not counted
	// Changed is what was relabelled, and how.
	Changed map[string]mac.VolumeLabel
}

// NewLabels makes Labels of which no level is reserved.
func NewLabels() *Labels {
	return &Labels{reserved: map[string]bool{}, Changed: map[string]mac.VolumeLabel{}}
}

// Labels is mac.Labeler's.
func (f *Labels) Labels(options []string) (mac.Labels, error) {
	if slices.Contains(options, "disable") {
		return mac.Labels{Mount: "u:object_r:container_file_t:s0:c1022,c1023"}, nil
	}
	of := map[string]string{"user": "u", "role": "r", "type": "container_t"}
	for _, o := range options {
		name, value, _ := strings.Cut(o, ":")
		of[name] = value
	}
	if of["level"] == "" {
		f.given++
		of["level"] = fmt.Sprintf("s0:c%d,c1000", f.given)
	}
	l := mac.Labels{
		Process: strings.Join([]string{of["user"], of["role"], of["type"], of["level"]}, ":"),
		Mount:   of["user"] + ":object_r:container_file_t:" + of["level"],
	}
	f.Reserve(l.Process)
	return l, nil
}

// Reserve keeps the level of a label from others.
func (f *Labels) Reserve(label string) { f.reserved[level(label)] = true }

// Release makes the level of a label free for others.
func (f *Labels) Release(label string) { delete(f.reserved, level(label)) }

// Reserved returns the levels that are reserved, in order.
func (f *Labels) Reserved() []string { return slices.Sorted(maps.Keys(f.reserved)) }

func level(label string) string { return strings.Join(strings.Split(label, ":")[3:], ":") }

// Relabel notes what is relabelled.
func (f *Labels) Relabel(path, label string, access mac.FileAccess) error {
	f.Changed[path] = mac.VolumeLabel{Mount: label, Access: access}
	return nil
}
