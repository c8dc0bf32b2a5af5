package csi

import (
	"fmt"
	"path/filepath"

	"github.com/coracle-project/coracle/cluster/kubelet/volume/source"
)

// blockDir is the directory of a staged block volume's record. Volumes with files are known by
// their handles, but block volumes by their names, as upstream has it.
func (p places) blockDir(spec string) string {
	return filepath.Join(p.pluginDir(), devicesDir, spec, dataDir)
}

// checkBlockName refuses the names that are directories of all block volumes.
func checkBlockName(v *source.Spec) error {
	if v.Block && (v.Name == stagingDir || v.Name == publishDir) {
		return fmt.Errorf("a block volume cannot be named %q: give the persistentvolume another name", v.Name)
	}
	return nil
}

// target is where the driver publishes a volume for one pod: a directory, or a device.
func (p places) target(u user, m source.Mounted, block bool) string {
	if block {
		return filepath.Join(p.pluginDir(), devicesDir, publishDir, u.volume, string(u.pod))
	}
	return filepath.Join(m.Dir, mountName)
}

// recordDir is where the record of a published volume is.
func recordDir(m source.Mounted, block bool) string {
	if block {
		return m.State
	}
	return m.Dir
}
