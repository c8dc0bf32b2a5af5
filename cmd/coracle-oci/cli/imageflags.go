package cli

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/coracle-project/coracle/runtime"
)

// imageFlags are the flags that checkpoint and restore share.
type imageFlags struct {
	opts     runtime.ImageOptions
	emptyNs  []string
	imageDir string
	workDir  string
}

func (i *imageFlags) add(cmd *cobra.Command) {
	f := cmd.Flags()
	f.StringVar(&i.imageDir, "image-path", "", "directory of the image files (default: checkpoint in the working directory)")
	f.StringVar(&i.workDir, "work-path", "", "directory of criu's log and work files (default: that of the images)")
	f.BoolVar(&i.opts.TCPEstablished, "tcp-established", false, "allow open TCP connections")
	f.BoolVar(&i.opts.ExternalUnixSockets, "ext-unix-sk", false, "allow unix sockets with an end outside the container")
	f.BoolVar(&i.opts.ShellJob, "shell-job", false, "allow a session whose leader is outside, such as a shell's job")
	f.BoolVar(&i.opts.FileLocks, "file-locks", false, "allow locks on files")
	f.BoolVar(&i.opts.LazyPages, "lazy-pages", false, "leave memory behind, to be fetched when it is touched (userfaultfd)")
	f.BoolVar(&i.opts.AutoDedup, "auto-dedup", false, "drop pages from older images as newer ones replace them")
	f.StringVar(&i.opts.CgroupMode, "manage-cgroups-mode", "", "soft, full, strict or ignore (default soft)")
	f.StringArrayVar(&i.emptyNs, "empty-ns", nil, "namespace without saved properties: network (always the case)")
}

// options checks the flags and makes paths absolute.
func (i *imageFlags) options() (runtime.ImageOptions, error) {
	switch i.opts.CgroupMode {
	case "", "soft", "full", "strict", "ignore":
	default:
		return i.opts, fmt.Errorf("--manage-cgroups-mode %q is unknown, use soft, full, strict or ignore", i.opts.CgroupMode)
	}
	for _, ns := range i.emptyNs {
		if ns != "network" {
			return i.opts, fmt.Errorf("--empty-ns %q is not supported, only network is", ns)
		}
	}
	if i.imageDir == "" {
		i.imageDir = "checkpoint"
	}
	var err error
	if i.opts.ImageDir, err = filepath.Abs(i.imageDir); err != nil {
		return i.opts, err
	}
	if i.workDir != "" {
		i.opts.WorkDir, err = filepath.Abs(i.workDir)
	}
	return i.opts, err
}

// checkParent wants the directory of an earlier pre-dump to be where criu looks for it.
func checkParent(imageDir, parent string) error {
	if parent == "" {
		return nil
	}
	if filepath.IsAbs(parent) {
		return fmt.Errorf("--parent-path %q is absolute, give it relative to --image-path", parent)
	}
	st, err := os.Stat(filepath.Join(imageDir, parent))
	if err == nil && !st.IsDir() {
		err = errors.New("it is not a directory")
	}
	if err != nil {
		return fmt.Errorf("--parent-path %q: %w", parent, err)
	}
	return nil
}
