package node

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/component-base/featuregate"
	"k8s.io/component-base/version"
	nodeutil "k8s.io/component-helpers/node/util"
	"k8s.io/component-helpers/nodedeclaredfeatures"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	_ "k8s.io/kubernetes/pkg/features" // registers the gates
	"k8s.io/kubernetes/pkg/kubelet/events"
	"k8s.io/utils/ptr"
)

// An informer's copy of the node must stay small: as many images and names are listed as upstream
// lists.
const (
	mostImages = 50
	mostNames  = 5
)

// NoPlugin is the reason of a node's condition Ready while a network plugin is awaited. "coracle
// up" and join do not wait longer: the plugin may be a DaemonSet that is yet to be applied.
const NoPlugin = "NetworkPluginNotReady"

// askTimeout bounds the calls to the runtime that a status is made of.
const askTimeout = 5 * time.Second

func defaultLabels(hostname string) map[string]string {
	return map[string]string{
		v1.LabelHostname:          hostname,
		v1.LabelOSStable:          runtime.GOOS,
		v1.LabelArchStable:        runtime.GOARCH,
		"beta.kubernetes.io/os":   runtime.GOOS,
		"beta.kubernetes.io/arch": runtime.GOARCH,
	}
}

// fill asks the runtime and brings the node's status up to date. It returns whether the node can
// run pods.
func (r *Reporter) fill(ctx context.Context, n *v1.Node) (ready bool) {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	s := &n.Status
	r.fillMachine(n)
	s.Addresses = nil
	for _, a := range r.config.Addresses {
		s.Addresses = append(s.Addresses, v1.NodeAddress{Type: v1.NodeInternalIP, Address: a})
	}
	s.Addresses = append(s.Addresses, v1.NodeAddress{Type: v1.NodeHostName, Address: r.config.Name})
	s.DaemonEndpoints.KubeletEndpoint.Port = int32(r.config.Port)
	if r.config.VolumesInUse != nil {
		s.VolumesInUse = r.config.VolumesInUse(s.VolumesInUse)
	}

	err := r.fillRuntime(ctx, n)
	if err == nil && r.config.Unready != nil {
		err = r.config.Unready(n)
	}
	if err != nil {
		r.unready.Store(&err)
	} else {
		r.unready.Store(nil)
	}
	r.conditions(n, err, metav1.Now())
	return err == nil
}

// gates are the feature gates as the library of declared features asks for them.
type gates struct{ featuregate.FeatureGate }

func (g gates) Enabled(name string) bool { return g.FeatureGate.Enabled(featuregate.Feature(name)) }

// declaredFeatures are what this kubelet can do and one of an earlier version cannot. The scheduler
// and the API server look for them before they ask a node to do so.
func declaredFeatures() []string {
	return nodedeclaredfeatures.DefaultFramework.DiscoverNodeFeatures(&nodedeclaredfeatures.NodeConfiguration{
		FeatureGates: gates{utilfeature.DefaultFeatureGate},
	})
}

func (r *Reporter) fillMachine(n *v1.Node) {
	m, s := r.machine, &n.Status
	capacity, allocatable := Resources(m, r.config.MaxPods)
	// Others may have added resources of their own.
	if s.Capacity == nil {
		s.Capacity = v1.ResourceList{}
	}
	if s.Allocatable == nil {
		s.Allocatable = v1.ResourceList{}
	}
	for name, q := range s.Capacity {
		s.Allocatable[name] = q.DeepCopy()
	}
	for name := range capacity {
		s.Capacity[name], s.Allocatable[name] = capacity[name], allocatable[name]
	}
	i := &s.NodeInfo
	if i.BootID != "" && i.BootID != m.BootID {
		r.rebooted.Do(func() {
			r.recorder.Eventf(r.ref(), v1.EventTypeWarning, events.NodeRebooted, "Node %s has been rebooted, boot id: %s", n.Name, m.BootID)
		})
	}
	i.MachineID, i.SystemUUID, i.BootID = m.MachineID, m.SystemUUID, m.BootID
	i.KernelVersion, i.OSImage = m.Kernel, m.OSImage
	i.OperatingSystem, i.Architecture = runtime.GOOS, runtime.GOARCH
	i.KubeletVersion = version.Get().GitVersion
	s.DeclaredFeatures = declaredFeatures()
	i.Swap = nil
	if m.SwapBytes != 0 {
		i.Swap = &v1.NodeSwapStatus{Capacity: ptr.To(m.SwapBytes)}
	}
}

// fillRuntime asks the runtime for its version, health, handlers and images. The error says why
// pods cannot be run.
func (r *Reporter) fillRuntime(ctx context.Context, n *v1.Node) error {
	s := &n.Status
	v, err := r.runtime.Version(ctx)
	if err != nil {
		return fmt.Errorf("container runtime is down: %w", err)
	}
	s.NodeInfo.ContainerRuntimeVersion = v.RuntimeName + "://" + v.RuntimeVersion
	status, err := r.runtime.Runtime.Status(ctx, &runtimeapi.StatusRequest{})
	if err != nil {
		return fmt.Errorf("container runtime is down: %w", err)
	}
	s.RuntimeHandlers = nil
	for _, h := range status.RuntimeHandlers {
		s.RuntimeHandlers = append(s.RuntimeHandlers, v1.NodeRuntimeHandler{Name: h.Name, Features: &v1.NodeRuntimeHandlerFeatures{
			RecursiveReadOnlyMounts: ptr.To(h.GetFeatures().GetRecursiveReadOnlyMounts()),
			UserNamespaces:          ptr.To(h.GetFeatures().GetUserNamespaces()),
		}})
	}
	s.Features = nil
	if f := status.Features; f != nil {
		s.Features = &v1.NodeFeatures{SupplementalGroupsPolicy: ptr.To(f.SupplementalGroupsPolicy)}
	}
	images, err := r.runtime.Images.ListImages(ctx, &runtimeapi.ListImagesRequest{})
	switch {
	case err == nil:
		s.Images = imageList(images.Images)
	case ctx.Err() == nil:
		r.config.Log.Warn("list images for the node's status", "err", err)
	}
	return r.notReady(status.GetStatus().GetConditions())
}

// builtInNetwork is the reason of coracled's condition NetworkReady while no CNI configuration is
// there, and its own network connects pods.
const builtInNetwork = "BuiltInNetwork"

// noPluginError says why pods wait for a network plugin.
type noPluginError struct{ why string }

func (e *noPluginError) Error() string {
	return "container runtime network not ready: the cluster leaves pods to a network plugin: " + e.why
}

// NetworkErr asks the runtime why a network plugin cannot connect pods. It is nil where no plugin
// has to.
func (r *Reporter) NetworkErr(ctx context.Context) error {
	if !r.config.PluginNetwork {
		return nil
	}
	status, err := r.runtime.Runtime.Status(ctx, &runtimeapi.StatusRequest{})
	if err != nil {
		return fmt.Errorf("container runtime is down: %w", err)
	}
	return r.notReady(status.GetStatus().GetConditions())
}

// notReady reads the runtime's conditions.
func (r *Reporter) notReady(all []*runtimeapi.RuntimeCondition) error {
	for _, want := range []struct{ name, text string }{
		{runtimeapi.RuntimeReady, "container runtime not ready"},
		{runtimeapi.NetworkReady, "container runtime network not ready"},
	} {
		i := slices.IndexFunc(all, func(c *runtimeapi.RuntimeCondition) bool { return c.Type == want.name })
		switch {
		case i < 0:
			return fmt.Errorf("%s: the runtime does not say whether it is", want.text)
		case r.config.PluginNetwork && want.name == runtimeapi.NetworkReady && (!all[i].Status || all[i].Reason == builtInNetwork):
			return &noPluginError{all[i].Message}
		case !all[i].Status:
			return fmt.Errorf("%s: %s=%t reason:%s message:%s", want.text, all[i].Type, all[i].Status, all[i].Reason, all[i].Message)
		}
	}
	return nil
}

// imageList is the largest images by their names.
func imageList(images []*runtimeapi.Image) []v1.ContainerImage {
	images = slices.Clone(images)
	slices.SortStableFunc(images, func(a, b *runtimeapi.Image) int { return cmp.Compare(b.Size, a.Size) })
	var list []v1.ContainerImage
	for _, i := range images[:min(len(images), mostImages)] {
		names := append(slices.Clone(i.RepoDigests), i.RepoTags...)
		list = append(list, v1.ContainerImage{Names: names[:min(len(names), mostNames)], SizeBytes: int64(i.Size)})
	}
	return list
}

// pressures are the conditions of a node that runs short of something, in upstream's words.
var pressures = []struct {
	kind                       v1.NodeConditionType
	fine, isFine, fineEvent    string
	short, isShort, shortEvent string
}{
	{
		v1.NodeMemoryPressure, "KubeletHasSufficientMemory", "kubelet has sufficient memory available", "NodeHasSufficientMemory",
		"KubeletHasInsufficientMemory", "kubelet has insufficient memory available", "NodeHasInsufficientMemory",
	},
	{
		v1.NodeDiskPressure, "KubeletHasNoDiskPressure", "kubelet has no disk pressure", "NodeHasNoDiskPressure",
		"KubeletHasDiskPressure", "kubelet has disk pressure", "NodeHasDiskPressure",
	},
	{
		v1.NodePIDPressure, "KubeletHasSufficientPID", "kubelet has sufficient PID available", "NodeHasSufficientPID",
		"KubeletHasInsufficientPID", "kubelet has insufficient PID available", "NodeHasInsufficientPID",
	},
}

// conditions sets the node's conditions, Ready last.
func (r *Reporter) conditions(n *v1.Node, notReady error, now metav1.Time) {
	var pressure []v1.NodeConditionType
	if r.config.Pressure != nil {
		pressure = r.config.Pressure()
	}
	for _, p := range pressures {
		c, event := v1.NodeCondition{Type: p.kind, Status: v1.ConditionFalse, Reason: p.fine, Message: p.isFine}, p.fineEvent
		if slices.Contains(pressure, p.kind) {
			c.Status, c.Reason, c.Message, event = v1.ConditionTrue, p.short, p.isShort, p.shortEvent
		}
		if r.condition(n, c, now) {
			r.event(event)
		}
	}
	c := v1.NodeCondition{Type: v1.NodeReady, Status: v1.ConditionTrue, Reason: "KubeletReady", Message: "kubelet is posting ready status"}
	if notReady != nil {
		c.Status, c.Reason, c.Message = v1.ConditionFalse, "KubeletNotReady", notReady.Error()
		if _, ok := errors.AsType[*noPluginError](notReady); ok {
			c.Reason = NoPlugin
		}
	}
	_, was := nodeutil.GetNodeCondition(&n.Status, v1.NodeReady)
	if r.condition(n, c, now) && was != nil {
		if notReady == nil {
			r.event(events.NodeReady)
		} else {
			r.event(events.NodeNotReady)
		}
	}
}

// condition sets one condition and returns whether its status changed.
func (r *Reporter) condition(n *v1.Node, c v1.NodeCondition, now metav1.Time) (turned bool) {
	c.LastHeartbeatTime, c.LastTransitionTime = now, now
	i, was := nodeutil.GetNodeCondition(&n.Status, c.Type)
	if was == nil {
		n.Status.Conditions = append(n.Status.Conditions, c)
		return true
	}
	turned = was.Status != c.Status
	if !turned {
		c.LastTransitionTime = was.LastTransitionTime
	}
	n.Status.Conditions[i] = c
	return turned
}

func (r *Reporter) event(reason string) {
	r.recorder.Eventf(r.ref(), v1.EventTypeNormal, reason, "Node %s status is now: %s", r.config.Name, reason)
}

// ref names the node in events as upstream does: with its name for a UID.
func (r *Reporter) ref() *v1.ObjectReference { return Ref(r.config.Name) }
