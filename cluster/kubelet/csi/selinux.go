package csi

import (
	"fmt"
	"slices"
	"strings"

	"github.com/moby/sys/mountinfo"
	v1 "k8s.io/api/core/v1"
	podutil "k8s.io/kubernetes/pkg/api/v1/pod"
	volumeutil "k8s.io/kubernetes/pkg/volume/util"

	"github.com/coracle-project/coracle/cluster/kubelet/volume/source"
)

// translator makes labels of what pods ask for.
var translator = volumeutil.NewSELinuxLabelTranslator()

// chooseLabel has the volume mounted with the pod's SELinux label, if only one pod can have the
// volume and the driver says that it can do that. Then no file has to be given a label.
func (r *request) chooseLabel() error {
	if r.object == nil || r.object.Spec.SELinuxMount == nil || !*r.object.Spec.SELinuxMount || r.spec.Block || !r.persistent() ||
		!slices.Equal(r.spec.PV.Spec.AccessModes, []v1.PersistentVolumeAccessMode{v1.ReadWriteOncePod}) || !translator.SELinuxEnabled() {
		return nil
	}
	options, err := labelOptions(r.spec.Pod, r.spec.Inline.Name)
	if err != nil || options == nil {
		return err
	}
	if r.label, err = translator.SELinuxOptionsToFileLabel(options); err != nil {
		return err
	}
	r.options = volumeutil.AddSELinuxMountOption(r.options, r.label)
	return nil
}

// labelOptions is what the containers that mount the volume ask for, nil if they ask for nothing. A
// volume has one label only.
func labelOptions(pod *v1.Pod, name string) (found *v1.SELinuxOptions, err error) {
	if sc := pod.Spec.SecurityContext; sc != nil && sc.SELinuxChangePolicy != nil &&
		*sc.SELinuxChangePolicy == v1.SELinuxChangePolicyRecursive {
		return nil, nil
	}
	first := true
	podutil.VisitContainers(&pod.Spec, podutil.AllContainers, func(c *v1.Container, _ podutil.ContainerType) bool {
		if !slices.ContainsFunc(c.VolumeMounts, func(m v1.VolumeMount) bool { return m.Name == name }) ||
			c.SecurityContext != nil && c.SecurityContext.Privileged != nil && *c.SecurityContext.Privileged {
			return true
		}
		var mine *v1.SELinuxOptions
		if pod.Spec.SecurityContext != nil {
			mine = pod.Spec.SecurityContext.SELinuxOptions
		}
		if c.SecurityContext != nil && c.SecurityContext.SELinuxOptions != nil {
			mine = c.SecurityContext.SELinuxOptions
		}
		if !first && (mine == nil) != (found == nil) || mine != nil && found != nil && *mine != *found {
			err = fmt.Errorf("containers of the pod ask for different SELinux labels of volume %q", name)
			return false
		}
		first, found = false, mine
		return true
	})
	return found, err
}

// Relabels implements source.Source.
func (n *Node) Relabels(v *source.Spec) bool {
	if v.Block {
		return false
	}
	r, err := readRecord(v.Dir)
	if err != nil {
		return false
	}
	mounts, err := n.mounts.at(n.places.target(user{}, v.Mounted, false))
	return err == nil && len(mounts) > 0 && relabels(v, r, mounts[0])
}

// relabels says whether files are given labels one by one: the pod may write to them, the mount has
// not one label for all, and the file system has labels.
func relabels(v *source.Spec, r *record, mount *mountinfo.Info) bool {
	readOnly := v.ReadOnly
	if v.PV != nil {
		readOnly = readOnly || v.PV.Spec.CSI.ReadOnly
	} else if own := v.Inline.CSI.ReadOnly; own != nil {
		readOnly = readOnly || *own
	}
	return !v.Block && !readOnly && r.SELinux == "" && slices.Contains(strings.Split(mount.VFSOptions, ","), "seclabel")
}
