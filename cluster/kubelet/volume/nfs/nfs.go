// Package nfs mounts NFS volumes.
package nfs

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/coracle-project/coracle/cluster/kubelet/volume/mountpoint"
	"github.com/coracle-project/coracle/cluster/kubelet/volume/source"
)

// Volumes mounts NFS by the helper that the node has for it.
type Volumes struct {
	// Places are the directories that the helper is looked for in.
	Places []string
}

// HelperPlaces are the directories where distributions have the helper.
var HelperPlaces = []string{"/sbin", "/usr/sbin", "/bin", "/usr/bin"}

const (
	// patience bounds one try to mount; the helper itself tries for two minutes.
	patience = 100 * time.Second
	// linger is how long what the helper has started may hold its output.
	linger = time.Second
)

func (Volumes) Plugin() string { return "kubernetes.io~nfs" }

// Relabels: the files are the server's, and so are their labels.
func (Volumes) Relabels(*source.Spec) bool { return false }

func (Volumes) Serves(v *source.Spec) bool { return exportOf(v) != nil }

// exportOf is the export that the volume is, nil if it is another kind.
func exportOf(s *source.Spec) *v1.NFSVolumeSource {
	if s.PV != nil {
		return s.PV.Spec.NFS
	}
	return s.Inline.NFS
}

// Mount mounts the export. Whether it is mounted is read from the list of mounts: to look at the
// directory could take for ever, if the server is gone.
func (n Volumes) Mount(ctx context.Context, v *source.Spec) (string, error) {
	export := exportOf(v)
	if v.Block {
		return "", errors.New("nfs volumes have no volumeMode Block")
	}
	if mounted, err := mountpoint.Listed(v.Dir); mounted || err != nil {
		return v.Dir, err
	}
	if strings.HasPrefix(export.Server, "-") { // it would be an option of the helper
		return "", fmt.Errorf("%q is no name of a server", export.Server)
	}
	helper, err := n.find()
	if err != nil {
		return "", err
	}
	if err := os.Mkdir(v.Dir, 0o750); err != nil && !errors.Is(err, fs.ErrExist) {
		return "", err
	}
	server := export.Server
	if strings.Contains(server, ":") && !strings.HasPrefix(server, "[") {
		server = "[" + server + "]"
	}
	args := []string{server + ":" + export.Path, v.Dir}
	var options []string
	if v.PV != nil {
		options = append(options, v.PV.Spec.MountOptions...)
	}
	if v.ReadOnly || export.ReadOnly {
		options = append(options, "ro")
	}
	if len(options) > 0 {
		args = append(args, "-o", strings.Join(options, ","))
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, helper, args...)
	cmd.Env, cmd.Dir, cmd.WaitDelay = []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin"}, "/", linger
	said, err := cmd.CombinedOutput()
	if errors.Is(err, exec.ErrWaitDelay) { // it has succeeded, and something that it started goes on
		if mounted, e := mountpoint.Listed(v.Dir); mounted && e == nil {
			err = nil
		}
	}
	if err == nil {
		return v.Dir, nil
	}
	if ctx.Err() != nil {
		err = fmt.Errorf("the server %q does not answer: %w", export.Server, ctx.Err())
	}
	return "", fmt.Errorf("mount nfs %s: %w: %s", args[0], err, bytes.TrimSpace(said))
}

// find returns the path of mount.nfs.
func (n Volumes) find() (string, error) {
	for _, dir := range n.Places {
		path := filepath.Join(dir, "mount.nfs")
		if info, err := os.Stat(path); err == nil && info.Mode().IsRegular() {
			return path, nil
		}
	}
	return "", errors.New("this node has no mount.nfs: install nfs-common (Debian, Ubuntu), or nfs-utils (Fedora, Arch, Alpine)")
}

// Unmount has nothing to do but what is done for all.
func (Volumes) Unmount(context.Context, source.Mounted) error { return nil }
