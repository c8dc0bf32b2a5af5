package plan

import (
	"fmt"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// Fd refers to a descriptor that the child is given: an index of Plan.Opens.
type Fd int

// Open says what a descriptor of a plan is. One of the fields beyond Name is set, or none:
// then the maker of the container has it, and Name says which one it is.
type Open struct {
	Name string `json:"name"`
	// Tree is a copy of a part of the host's mounts.
	Tree *Tree `json:"tree,omitempty"`
	// Path is a file of the host's, opened with Flags of open(2).
	Path  string `json:"path,omitempty"`
	Flags int    `json:"flags,omitempty"`
	// Gathered: the process opens Tree itself, by Take, and any descriptor does.
	Gathered bool `json:"gathered,omitempty"`
}

// Names of descriptors that the maker has.
const (
	FdSync = "sync" // the child's end of a SOCK_SEQPACKET pair; always descriptor 0 of a plan
	FdGate = "gate" // a FIFO; one byte lets the child execute its program
	// Standard streams and further files of the process.
	FdStdin, FdStdout, FdStderr = "stdin", "stdout", "stderr"
	FdConsole                   = "console socket"
	FdCgroup                    = "cgroup"    // directory, on a unified hierarchy
	FdContainer                 = "container" // pidfd of the container's init
)

// FdFile is the name of the file that becomes descriptor 3+i.
func FdFile(i int) string { return fmt.Sprintf("file %d", i) }

// Tree is a copy of mounts: of a directory or a file on the host, with those below it if
// Recursive (open_tree(2)).
type Tree struct {
	Path      string `json:"path"`
	Recursive bool   `json:"recursive,omitempty"`
	// Overlay, if not nil, is mounted instead of copying what is there.
	Overlay *Overlay `json:"overlay,omitempty"`
	// Set and Clear are MOUNT_ATTR flags for the mount at the top, SetAll and ClearAll for
	// all of them (mount_setattr(2)).
	Set      Attrs `json:"set,omitempty"`
	Clear    Attrs `json:"clear,omitempty"`
	SetAll   Attrs `json:"setAll,omitempty"`
	ClearAll Attrs `json:"clearAll,omitempty"`
	// Propagation is a flag of mount(2) such as MS_PRIVATE, with MS_REC if it is for all.
	Propagation uintptr `json:"propagation,omitempty"`
	// IDMap maps the owners of files; with IDMapAll in mounts below, too.
	IDMap    *Mappings `json:"idMap,omitempty"`
	IDMapAll bool      `json:"idMapAll,omitempty"`
	// IDMapBy, if not empty, is the file of the user namespace that maps them instead.
	IDMapBy string `json:"idMapBy,omitempty"`
	// Proc makes it be checked to be of a file system of type proc.
	Proc bool `json:"proc,omitempty"`
	// Device makes the path be checked to be this character device, major and minor.
	Device *[2]uint32 `json:"device,omitempty"`
}

// Attrs are MOUNT_ATTR flags of mount_setattr(2).
type Attrs uint64

var attrNames = []struct {
	flag Attrs
	name string
}{
	{unix.MOUNT_ATTR_RDONLY, "ro"},
	{unix.MOUNT_ATTR_NOSUID, "nosuid"},
	{unix.MOUNT_ATTR_NODEV, "nodev"},
	{unix.MOUNT_ATTR_NOEXEC, "noexec"},
	{unix.MOUNT_ATTR_NOATIME, "noatime"},
	{unix.MOUNT_ATTR_STRICTATIME, "strictatime"},
	{unix.MOUNT_ATTR_NODIRATIME, "nodiratime"},
	{unix.MOUNT_ATTR_NOSYMFOLLOW, "nosymfollow"},
}

// String lists the flags as mount(8) writes them.
func (f Attrs) String() string {
	var out []string
	for _, n := range attrNames {
		if f&n.flag != 0 {
			out = append(out, n.name)
		}
	}
	return strings.Join(out, ",")
}

// MarshalText writes the flags as String does.
func (f Attrs) MarshalText() ([]byte, error) { return []byte(f.String()), nil }

// Mappings are the ids of a user namespace.
type Mappings struct {
	UIDs []Mapping `json:"uids"`
	GIDs []Mapping `json:"gids"`
	// Path is a user namespace whose ids they are, instead.
	Path string `json:"path,omitempty"`
}

// Mapping maps Size ids from Inside to Outside.
type Mapping struct {
	Inside  uint32 `json:"inside"`
	Outside uint32 `json:"outside"`
	Size    uint32 `json:"size"`
}

// fd adds a descriptor, once for each name.
func (b *builder) fd(o Open) Fd {
	if i := slices.IndexFunc(b.plan.Opens, func(have Open) bool { return have.Name == o.Name }); i >= 0 {
		return Fd(i)
	}
	o.Gathered = o.Tree != nil && b.opts.Gather
	b.plan.Opens = append(b.plan.Opens, o)
	return Fd(len(b.plan.Opens) - 1)
}

// given adds a descriptor that the maker has.
func (b *builder) given(name string) Fd { return b.fd(Open{Name: name}) }
