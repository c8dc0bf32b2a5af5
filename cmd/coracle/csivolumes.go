package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/moby/sys/mountinfo"

	"github.com/coracle-project/coracle/internal/safepath"
)

// down does not unmount volumes of CSI drivers: only the driver knows what else it has made
// on the node, and its data may not be written yet. A purge would delete the records that the next
// kubelet needs for that (cluster/kubelet/csi).

const (
	csiRecord = "vol_data.json"
	// mostCSIRecord is the kubelet's limit for a record.
	mostCSIRecord = 64 << 10
	// mostNamed is how many volumes an error names.
	mostNamed = 10
)

// csiRecords are the places of records below the kubelet's directory: of volumes that are staged,
// and of those that pods have.
var csiRecords = []string{
	"plugins/kubernetes.io/csi/*/*/" + csiRecord,
	"plugins/kubernetes.io/csi/volumeDevices/*/data/" + csiRecord,
	"pods/*/volumes/kubernetes.io~csi/*/" + csiRecord,
	"pods/*/plugins/kubernetes.io~csi/*/" + csiRecord,
}

// csiVolumes lists the volumes that drivers have, or may have, on this node, and what else is
// mounted in the directories of drivers. It looks at no file system of a driver.
func csiVolumes(kubelet string) ([]string, error) {
	kubelet, err := filepath.EvalSymlinks(kubelet)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	root, err := safepath.Open(kubelet)
	if err != nil {
		return nil, err
	}
	defer root.Close()
	var found []string
	var recorded []string // directories with a record: what is mounted below is named already
	for _, pattern := range csiRecords {
		records, err := fs.Glob(os.DirFS(kubelet), pattern)
		if err != nil {
			return nil, err
		}
		for _, path := range records {
			recorded = append(recorded, filepath.Join(kubelet, filepath.Dir(path))+"/")
			found = append(found, csiVolumeName(root, path))
		}
	}
	mounts, err := mountinfo.GetMounts(mountinfo.PrefixFilter(kubelet))
	if err != nil {
		return nil, err
	}
	for _, m := range mounts {
		path, below := strings.CutPrefix(m.Mountpoint, kubelet+"/")
		ofDriver := strings.HasPrefix(path, "plugins/") || strings.HasPrefix(path, "pods/") && strings.Contains(path, "/kubernetes.io~csi/")
		named := slices.ContainsFunc(recorded, func(dir string) bool { return strings.HasPrefix(m.Mountpoint, dir) })
		if below && ofDriver && !named {
			found = append(found, "the mount "+m.Mountpoint)
		}
	}
	slices.Sort(found)
	return slices.Compact(found), nil
}

// csiVolumeName is how the record calls its volume, or the record's path.
func csiVolumeName(root *safepath.Root, path string) string {
	var record struct {
		Spec   string `json:"specVolID"`
		Handle string `json:"volumeHandle"`
		Driver string `json:"driverName"`
	}
	raw, err := root.ReadFile(path, mostCSIRecord)
	if err == nil {
		err = json.Unmarshal(raw, &record)
	}
	if err != nil || record.Driver == "" {
		return "the volume of " + path
	}
	name := record.Spec
	if name == "" {
		name = record.Handle
	}
	return fmt.Sprintf("%.80q of driver %.80q", name, record.Driver)
}

// checkCSI refuses a purge while drivers have volumes on this node.
func (p place) checkCSI() error {
	found, err := csiVolumes(p.kubelet())
	if err != nil {
		return fmt.Errorf("volumes of CSI drivers cannot be listed: %w", err)
	}
	if len(found) == 0 {
		return nil
	}
	more := ""
	if n := len(found) - mostNamed; n > 0 {
		more = fmt.Sprintf(" and %d more", n)
	}
	return fmt.Errorf("volumes of CSI drivers are still on this node: %s%s; run 'coracle up%s', delete the pods that use them, wait until "+
		"the drivers have taken "+
		"them away ('kubectl get node -o yaml' lists them in volumesInUse), and purge again; where a driver is gone for good, unmount its "+
		"volumes by hand "+
		"and remove the directories of their %s below %s", strings.Join(found[:min(len(found), mostNamed)], ", "), more, p.flags(), csiRecord,
		p.kubelet())
}
