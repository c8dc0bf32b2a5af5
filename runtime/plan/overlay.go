package plan

import (
	"errors"
	"fmt"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/opencontainers/runtime-spec/specs-go"
)

// Overlay is a new overlay file system. Its options name directories of the host, which the
// container's process does not see: so it is made where they are, and given to the process
// like a copy of the host's mounts. BuildKit mounts what RUN --mount=from names like this.
type Overlay struct {
	// Options are those of mount(8), but the flags; lower directories uppermost first.
	Options []string `json:"options"`
}

// ofHost says that a mount has to be made on the host. In a user namespace of its own the
// process has to make it, with its rights.
func (b *builder) ofHost(m specs.Mount) bool {
	return m.Type == "overlay" && !b.userns && !b.opts.Gather
}

// overlay adds a mount that ofHost is true of.
func (b *builder) overlay(i int, m specs.Mount, o options, target string) error {
	prop := o.propagation
	if prop == 0 {
		var err error
		if prop, err = b.volumePropagation(); err != nil {
			return err
		}
	}
	data := o.data
	if label := contextOption(b.spec.Linux.MountLabel); label != "" {
		data = append(data[:len(data):len(data)], label)
	}
	tree := &Tree{Path: m.Source, Overlay: &Overlay{Options: data}, Propagation: prop}
	tree.Set, tree.Clear = withTimes(o.set, o.clear)
	fd := b.fd(Open{Name: fmt.Sprintf("mounts[%d]", i), Tree: tree})
	b.add(Attach{Tree: fd, From: "a new overlay", Target: target, Dir: true, Flags: o.flags &^ unix.MS_REMOUNT, Propagation: prop})
	return nil
}

// open makes the file system and returns a descriptor of its mount, which is in no
// namespace yet.
func (o *Overlay) open() (int, error) {
	fs, err := unix.Fsopen("overlay", unix.FSOPEN_CLOEXEC)
	if err != nil {
		return -1, fmt.Errorf("open a new overlay: %w", err)
	}
	defer unix.Close(fs)
	if err := unix.FsconfigSetString(fs, "source", "overlay"); err != nil {
		return -1, fmt.Errorf("overlay: source: %w", err)
	}
	for _, option := range o.Options {
		key, value, assigns := strings.Cut(option, "=")
		switch {
		case key == "lowerdir":
			err = setLower(fs, value)
		case assigns:
			err = unix.FsconfigSetString(fs, key, value)
		default:
			err = unix.FsconfigSetFlag(fs, key)
		}
		if err != nil {
			return -1, fmt.Errorf("overlay option %.200s: %w", option, err)
		}
	}
	if err := unix.FsconfigCreate(fs); err != nil {
		return -1, fmt.Errorf("make the overlay (%.200s): %w", strings.Join(o.Options, ","), err)
	}
	fd, err := unix.Fsmount(fs, unix.FSMOUNT_CLOEXEC, 0)
	if err != nil {
		return -1, fmt.Errorf("mount the overlay: %w", err)
	}
	return fd, nil
}

// setLower gives lower directories one by one, since one string of fsconfig(2) has 255 bytes;
// kernels before 6.5 take but that.
func setLower(fs int, list string) error {
	dirs := lowerDirs(list)
	if err := unix.FsconfigSetString(fs, "lowerdir+", dirs[0]); err != nil {
		if errors.Is(err, unix.EINVAL) {
			return unix.FsconfigSetString(fs, "lowerdir", list)
		}
		return err
	}
	for _, dir := range dirs[1:] {
		if err := unix.FsconfigSetString(fs, "lowerdir+", dir); err != nil {
			return err
		}
	}
	return nil
}

// lowerDirs splits a list of directories; a backslash keeps a colon from ending one.
func lowerDirs(list string) []string {
	dirs := []string{""}
	for i := 0; i < len(list); i++ {
		last := &dirs[len(dirs)-1]
		switch {
		case list[i] == '\\' && i+1 < len(list):
			i++
			*last += string(list[i])
		case list[i] == ':':
			dirs = append(dirs, "")
		default:
			*last += string(list[i])
		}
	}
	return dirs
}
