package csi

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/coracle-project/coracle/cluster/kubelet/csi/client"
	"github.com/coracle-project/coracle/cluster/kubelet/csi/registration"
	"github.com/coracle-project/coracle/cluster/kubelet/volume/source"
	"github.com/coracle-project/coracle/cluster/kubelet/volume/tokens"
	"github.com/coracle-project/coracle/cluster/kubelet/volume/watched"
)

// request is one pod's wish for one volume, with what the driver is told.
type request struct {
	spec       *source.Spec
	user       user
	driverName string
	handle     string
	// object is the driver's CSIDriver, nil if there is none.
	object *storagev1.CSIDriver
	mode   storagev1.VolumeLifecycleMode
	access v1.PersistentVolumeAccessMode
	fsType string
	// readOnly is that the driver publishes it read-only.
	readOnly   bool
	attributes map[string]string
	secret     *v1.SecretReference
	options    []string
	// label is the SELinux label that the volume is mounted with, "" for none.
	label string
	// publishContext is what the attacher has said.
	publishContext map[string]string
}

// requests builds requests from what the API has. It is safe for concurrent use.
type requests struct {
	kube kubernetes.Interface
	// tokens are the pods' tokens for drivers.
	tokens *tokens.Cache
}

// make returns the request for a volume, if its driver may be asked for it.
func (q *requests) make(ctx context.Context, v *source.Spec) (*request, error) {
	r := &request{spec: v, user: user{pod: v.Pod.UID, volume: v.Name}, access: v1.ReadWriteOnce}
	switch {
	case v.PV != nil && v.PV.Spec.CSI != nil:
		csi := v.PV.Spec.CSI
		r.driverName, r.handle, r.mode = csi.Driver, csi.VolumeHandle, storagev1.VolumeLifecyclePersistent
		r.fsType, r.attributes, r.secret = csi.FSType, csi.VolumeAttributes, csi.NodePublishSecretRef
		r.readOnly = v.ReadOnly || csi.ReadOnly
		r.options = slices.Clone(v.PV.Spec.MountOptions)
		if len(v.PV.Spec.AccessModes) > 0 {
			r.access = v.PV.Spec.AccessModes[0]
		}
	case v.PV == nil && v.Inline != nil && v.Inline.CSI != nil:
		csi := v.Inline.CSI
		r.driverName, r.handle, r.mode = csi.Driver, inlineHandle(v.Pod.UID, v.Name), storagev1.VolumeLifecycleEphemeral
		r.attributes = csi.VolumeAttributes
		r.readOnly = csi.ReadOnly != nil && *csi.ReadOnly
		if csi.FSType != nil {
			r.fsType = *csi.FSType
		}
		if ref := csi.NodePublishSecretRef; ref != nil {
			r.secret = &v1.SecretReference{Namespace: v.Pod.Namespace, Name: ref.Name}
		}
	default:
		return nil, errNoSource
	}
	if err := client.CheckName(r.driverName); err != nil {
		return nil, err
	}
	if r.handle == "" {
		return nil, fmt.Errorf("persistentvolume %q has no volumeHandle", v.Name)
	}
	if err := checkBlockName(v); err != nil {
		return nil, err
	}
	var err error
	if r.object, err = registration.Object(ctx, q.kube, r.driverName); err != nil {
		return nil, err
	}
	if err := r.checkMode(); err != nil {
		return nil, err
	}
	return r, r.chooseLabel()
}

// checkMode refuses a volume of a kind that the driver does not have.
func (r *request) checkMode() error {
	switch {
	case r.object == nil && r.mode == storagev1.VolumeLifecyclePersistent:
		return nil
	case r.object == nil:
		return fmt.Errorf("volume mode %q not supported by driver %s (no CSIDriver object)", r.mode, r.driverName)
	case !slices.Contains(r.object.Spec.VolumeLifecycleModes, r.mode):
		return fmt.Errorf("volume mode %q not supported by driver %s (only supports %q)", r.mode, r.driverName,
			r.object.Spec.VolumeLifecycleModes)
	}
	return nil
}

// pv is the source of a persistent volume.
func (r *request) pv() *v1.CSIPersistentVolumeSource { return r.spec.PV.Spec.CSI }

func (r *request) persistent() bool { return r.mode == storagev1.VolumeLifecyclePersistent }

// attachable says whether the volume has to be attached to the node first.
func (r *request) attachable() bool {
	return r.persistent() && (r.object == nil || r.object.Spec.AttachRequired == nil || *r.object.Spec.AttachRequired)
}

// republished says whether the driver wants to be called again from time to time.
func (r *request) republished() bool {
	return r.object != nil && r.object.Spec.RequiresRepublish != nil && *r.object.Spec.RequiresRepublish
}

// capability is how the volume is used, as the driver is told it.
func (r *request) capability(s *client.Session) *csipb.VolumeCapability {
	c := &csipb.VolumeCapability{AccessMode: &csipb.VolumeCapability_AccessMode{Mode: accessMode(r.access, s)}}
	if r.spec.Block {
		c.AccessType = &csipb.VolumeCapability_Block{Block: &csipb.VolumeCapability_BlockVolume{}}
		return c
	}
	m := &csipb.VolumeCapability_MountVolume{FsType: r.fsType, MountFlags: r.options}
	if group := r.group(); group != nil && s.Can[csipb.NodeServiceCapability_RPC_VOLUME_MOUNT_GROUP] {
		m.VolumeMountGroup = strconv.FormatInt(*group, 10)
	}
	c.AccessType = &csipb.VolumeCapability_Mount{Mount: m}
	return c
}

// accessMode is the driver's word for an access mode. One that cannot tell pods from nodes gets the
// nearest that it knows.
func accessMode(mode v1.PersistentVolumeAccessMode, s *client.Session) csipb.VolumeCapability_AccessMode_Mode {
	several := s.Can[csipb.NodeServiceCapability_RPC_SINGLE_NODE_MULTI_WRITER]
	switch {
	case mode == v1.ReadWriteOnce && several:
		return csipb.VolumeCapability_AccessMode_SINGLE_NODE_MULTI_WRITER
	case mode == v1.ReadWriteOncePod && several:
		return csipb.VolumeCapability_AccessMode_SINGLE_NODE_SINGLE_WRITER
	case mode == v1.ReadWriteOnce || mode == v1.ReadWriteOncePod:
		return csipb.VolumeCapability_AccessMode_SINGLE_NODE_WRITER
	case mode == v1.ReadOnlyMany:
		return csipb.VolumeCapability_AccessMode_MULTI_NODE_READER_ONLY
	case mode == v1.ReadWriteMany:
		return csipb.VolumeCapability_AccessMode_MULTI_NODE_MULTI_WRITER
	}
	return csipb.VolumeCapability_AccessMode_UNKNOWN
}

// group is the pod's fsGroup.
func (r *request) group() *int64 {
	if sc := r.spec.Pod.Spec.SecurityContext; sc != nil {
		return sc.FSGroup
	}
	return nil
}

// givesGroup says whether the kubelet, and not the driver, gives the files to the pod's group.
func (r *request) givesGroup(s *client.Session) (bool, error) {
	if r.spec.Block || r.readOnly || r.group() == nil || s.Can[csipb.NodeServiceCapability_RPC_VOLUME_MOUNT_GROUP] {
		return false, nil
	}
	policy := storagev1.ReadWriteOnceWithFSTypeFSGroupPolicy
	if r.object != nil {
		if r.object.Spec.FSGroupPolicy == nil {
			return false, fmt.Errorf("csidriver %s has no fsGroupPolicy", r.driverName)
		}
		policy = *r.object.Spec.FSGroupPolicy
	}
	switch policy {
	case storagev1.NoneFSGroupPolicy:
		return false, nil
	case storagev1.FileFSGroupPolicy:
		return true, nil
	}
	return r.fsType != "" && (!r.persistent() || r.oneWriter()), nil
}

// oneWriter says whether the volume is written by one node or pod only.
func (r *request) oneWriter() bool {
	return slices.ContainsFunc(r.spec.PV.Spec.AccessModes, func(m v1.PersistentVolumeAccessMode) bool {
		return m == v1.ReadWriteOnce || m == v1.ReadWriteOncePod
	})
}

// volumeContext is what the driver is told of the volume and, if it wants that, of the pod. Tokens
// are in one of the two maps.
func (q *requests) volumeContext(ctx context.Context, r *request) (attributes, secrets map[string]string, err error) {
	attributes = maps.Clone(r.attributes)
	if secrets, err = q.secrets(ctx, r.secret); err != nil || r.object == nil {
		return attributes, secrets, err
	}
	if attributes == nil {
		attributes = map[string]string{}
	}
	pod := r.spec.Pod
	if r.object.Spec.PodInfoOnMount != nil && *r.object.Spec.PodInfoOnMount {
		attributes["csi.storage.k8s.io/pod.name"] = pod.Name
		attributes["csi.storage.k8s.io/pod.namespace"] = pod.Namespace
		attributes["csi.storage.k8s.io/pod.uid"] = string(pod.UID)
		attributes["csi.storage.k8s.io/serviceAccount.name"] = pod.Spec.ServiceAccountName
		attributes["csi.storage.k8s.io/ephemeral"] = strconv.FormatBool(!r.persistent())
	}
	tokens, err := q.tokensFor(ctx, r)
	if err != nil || tokens == "" || r.spec.Block { // upstream gives none to block volumes
		return attributes, secrets, err
	}
	const key = "csi.storage.k8s.io/serviceAccount.tokens"
	if r.object.Spec.ServiceAccountTokenInSecrets != nil && *r.object.Spec.ServiceAccountTokenInSecrets {
		if secrets == nil {
			secrets = map[string]string{}
		}
		secrets[key] = tokens
	} else {
		attributes[key] = tokens
	}
	return attributes, secrets, nil
}

// secrets reads the secret that a volume names, if it names one. Nodes are granted it with the pod.
func (q *requests) secrets(ctx context.Context, ref *v1.SecretReference) (map[string]string, error) {
	if ref == nil {
		return nil, nil
	}
	ctx, cancel := context.WithTimeout(ctx, apiTimeout)
	defer cancel()
	var secret *v1.Secret
	err := watched.OnceGranted(ctx, func() (err error) {
		secret, err = q.kube.CoreV1().Secrets(ref.Namespace).Get(ctx, ref.Name, metav1.GetOptions{})
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("read secret %s/%s for the driver: %w", ref.Namespace, ref.Name, err)
	}
	values := make(map[string]string, len(secret.Data))
	for k, v := range secret.Data {
		values[k] = string(v)
	}
	return values, nil
}

// errNoSource is of a volume that Serves refuses.
var errNoSource = errors.New("the volume is not of a CSI driver")
