// Package hostpath makes and checks hostPath volumes, those of pods and those that are
// PersistentVolumes.
package hostpath

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"

	"github.com/coracle-project/coracle/cluster/kubelet/volume/source"
)

// Real is the volume with the path that it has on this node. Pods that work with the
// kubelet, drivers above all, name its directory as it is elsewhere. What is there on this node,
// perhaps another kubelet's, is not theirs. alias is the name of the kubelet's directory in their
// manifests, "" for none.
func Real(source *v1.HostPathVolumeSource, alias, root string) *v1.HostPathVolumeSource {
	if alias == "" || alias == root {
		return source
	}
	rest, ok := strings.CutPrefix(filepath.Clean(source.Path), alias)
	if !ok || rest != "" && rest[0] != '/' || strings.HasPrefix(source.Path+"/", root+"/") ||
		slices.Contains(strings.Split(source.Path, "/"), "..") {
		return source
	}
	real := *source
	real.Path = root + rest
	return &real
}

// Check makes or checks a hostPath volume as its type says. Links are followed: who may use
// host paths chooses among all of the host's.
func Check(source *v1.HostPathVolumeSource) error {
	path := source.Path
	if slices.Contains(strings.Split(path, "/"), "..") {
		return fmt.Errorf("invalid HostPath `%s`: must not contain '..'", path)
	}
	kind := v1.HostPathUnset
	if source.Type != nil {
		kind = *source.Type
	}
	info, err := os.Stat(path)
	missing := errors.Is(err, fs.ErrNotExist)
	var mode fs.FileMode
	if err == nil {
		mode = info.Mode()
	}
	is := func(right bool, what string) error {
		if err == nil && right {
			return nil
		}
		return fmt.Errorf("hostPath type check failed: %s is not a %s", path, what)
	}
	switch kind {
	case v1.HostPathUnset:
		return nil
	case v1.HostPathDirectoryOrCreate:
		if missing {
			return os.MkdirAll(path, 0o755)
		}
		return is(mode.IsDir(), "directory")
	case v1.HostPathDirectory:
		return is(mode.IsDir(), "directory")
	case v1.HostPathFileOrCreate:
		if missing {
			return makeFile(path)
		}
		return is(mode.IsRegular(), "file")
	case v1.HostPathFile:
		return is(mode.IsRegular(), "file")
	case v1.HostPathSocket:
		return is(mode.Type() == fs.ModeSocket, "socket file")
	case v1.HostPathCharDev:
		return is(mode.Type() == fs.ModeDevice|fs.ModeCharDevice, "character device")
	case v1.HostPathBlockDev:
		return is(mode.Type() == fs.ModeDevice, "block device")
	}
	return fmt.Errorf("%s is an invalid volume type", kind)
}

func makeFile(path string) error {
	f, err := os.OpenFile(path, os.O_CREATE, 0o644)
	if err != nil {
		return err
	}
	return f.Close()
}

// Volumes are PersistentVolumes that are paths of the host.
type Volumes struct{}

func (Volumes) Plugin() string { return "kubernetes.io~host-path" }

func (Volumes) Relabels(*source.Spec) bool { return false }

func (Volumes) Serves(v *source.Spec) bool { return v.PV != nil && v.PV.Spec.HostPath != nil }

func (Volumes) Mount(_ context.Context, v *source.Spec) (string, error) {
	if v.Block {
		return "", errors.New("hostPath volumes have no volumeMode Block: use a local volume whose path is the device")
	}
	return v.PV.Spec.HostPath.Path, Check(v.PV.Spec.HostPath)
}

func (Volumes) Unmount(context.Context, source.Mounted) error { return nil }
