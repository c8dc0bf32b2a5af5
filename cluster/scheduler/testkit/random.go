// Package testkit makes random nodes and pods for the scheduler's tests. They are built to collide:
// few labels, few zones, small nodes, so that each rule decides often and rules meet.
package testkit

import (
	"fmt"
	"math/rand/v2"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// Random makes objects; equal seeds make equal ones.
type Random struct {
	*rand.Rand
	serial int
}

// New returns a Random.
func New(seed uint64) *Random { return &Random{Rand: rand.New(rand.NewPCG(seed, 1))} }

// GPU is the extended resource that some nodes have.
const GPU v1.ResourceName = "example.com/gpu"

func (r *Random) chance(percent int) bool { return r.IntN(100) < percent }

func pick[T any](r *Random, list ...T) T { return list[r.IntN(len(list))] }

// Namespaces returns the namespaces that pods are in.
func Namespaces() []*v1.Namespace {
	namespace := func(name string, labels map[string]string) *v1.Namespace {
		return &v1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels}}
	}
	return []*v1.Namespace{
		namespace("red", map[string]string{"team": "a"}),
		namespace("green", map[string]string{"team": "a"}),
		namespace("blue", nil),
	}
}

// Node returns a node.
func (r *Random) Node() *v1.Node {
	r.serial++
	name := fmt.Sprintf("node-%d", r.serial)
	labels := map[string]string{v1.LabelHostname: name}
	if r.chance(85) {
		labels[v1.LabelTopologyZone] = pick(r, "z1", "z2", "z3")
	}
	if r.chance(70) {
		labels["disk"] = pick(r, "ssd", "hdd")
	}
	if r.chance(50) {
		labels["rack"] = pick(r, "1", "2", "3", "4")
	}
	allocatable := v1.ResourceList{
		v1.ResourceCPU:              *resource.NewMilliQuantity(int64(r.IntN(9))*500, resource.DecimalSI),
		v1.ResourceMemory:           *resource.NewQuantity(int64(r.IntN(9))<<29, resource.BinarySI),
		v1.ResourceEphemeralStorage: *resource.NewQuantity(int64(r.IntN(4))<<30, resource.BinarySI),
		v1.ResourcePods:             *resource.NewQuantity(int64(pick(r, 2, 5, 110, 110, 110)), resource.DecimalSI),
	}
	if r.chance(30) {
		allocatable[GPU] = *resource.NewQuantity(int64(r.IntN(4)), resource.DecimalSI)
	}
	node := &v1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(name), Labels: labels},
		Spec:       v1.NodeSpec{Unschedulable: r.chance(8)},
		Status:     v1.NodeStatus{Allocatable: allocatable, Capacity: allocatable},
	}
	for range r.IntN(3) {
		if r.chance(40) {
			node.Spec.Taints = append(node.Spec.Taints, v1.Taint{
				Key: pick(r, "k1", "k2"), Value: pick(r, "", "v"),
				Effect: pick(r, v1.TaintEffectNoSchedule, v1.TaintEffectNoExecute, v1.TaintEffectPreferNoSchedule, v1.TaintEffectPreferNoSchedule),
			})
		}
	}
	for i := range 4 {
		if r.chance(40) {
			node.Status.Images = append(node.Status.Images, v1.ContainerImage{
				Names: []string{fmt.Sprintf("image-%d:latest", i), fmt.Sprintf("registry/image-%d:v1", i)}, SizeBytes: int64(i+1) * 200 << 20,
			})
		}
	}
	if r.chance(80) {
		node.Status.DeclaredFeatures = []string{"ExtendWebSocketsToKubelet", "RestartAllContainersOnContainerExits"}
	}
	return node
}

// Pod returns a pod that is on no node.
func (r *Random) Pod() *v1.Pod {
	r.serial++
	name := fmt.Sprintf("pod-%d", r.serial)
	priority := int32(r.IntN(4)) * 10
	pod := &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: pick(r, "red", "red", "green", "blue"), Name: name, UID: types.UID(name), Labels: r.labels(),
			CreationTimestamp: metav1.NewTime(time.Unix(1_700_000_000, 0)),
		},
		Spec: v1.PodSpec{Priority: &priority, SchedulerName: v1.DefaultSchedulerName},
	}
	for i := range 1 + r.IntN(2) {
		pod.Spec.Containers = append(pod.Spec.Containers, r.container(fmt.Sprintf("c%d", i)))
	}
	if r.chance(10) {
		pod.Spec.Containers[0].RestartPolicyRules = []v1.ContainerRestartRule{{Action: v1.ContainerRestartRuleActionRestartAllContainers}}
	}
	if r.chance(15) {
		c := r.container("init")
		if r.chance(50) {
			always := v1.ContainerRestartPolicyAlways
			c.RestartPolicy = &always
		}
		pod.Spec.InitContainers = append(pod.Spec.InitContainers, c)
	}
	if r.chance(10) {
		pod.Spec.Overhead = v1.ResourceList{v1.ResourceCPU: resource.MustParse("50m")}
	}
	if r.chance(8) {
		pod.Spec.Resources = &v1.ResourceRequirements{Requests: v1.ResourceList{v1.ResourceCPU: resource.MustParse("700m")}}
		if r.chance(50) {
			pod.Spec.Resources.Requests[v1.ResourceMemory] = resource.MustParse("300Mi")
		}
	}
	r.constrain(pod)
	return pod
}

// PodOn returns a pod that runs on node.
func (r *Random) PodOn(node *v1.Node) *v1.Pod {
	pod := r.Pod()
	pod.Spec.NodeName = node.Name
	start := metav1.NewTime(time.Unix(1_700_000_000+int64(r.IntN(1000)), 0))
	pod.Status = v1.PodStatus{Phase: v1.PodRunning, StartTime: &start}
	if r.chance(5) {
		pod.DeletionTimestamp = &start
	}
	return pod
}

func (r *Random) labels() map[string]string {
	labels := map[string]string{}
	if r.chance(80) {
		labels["app"] = pick(r, "web", "db", "cache")
	}
	if r.chance(40) {
		labels["tier"] = pick(r, "front", "back")
	}
	return labels
}

func (r *Random) container(name string) v1.Container {
	c := v1.Container{Name: name, Image: fmt.Sprintf("image-%d", r.IntN(4)), Resources: v1.ResourceRequirements{Requests: v1.ResourceList{}}}
	requests := c.Resources.Requests
	if r.chance(70) {
		requests[v1.ResourceCPU] = *resource.NewMilliQuantity(int64(r.IntN(8))*100, resource.DecimalSI)
	}
	if r.chance(70) {
		requests[v1.ResourceMemory] = *resource.NewQuantity(int64(r.IntN(8))<<27, resource.BinarySI)
	}
	if r.chance(10) {
		requests[v1.ResourceEphemeralStorage] = *resource.NewQuantity(int64(r.IntN(3))<<29, resource.BinarySI)
	}
	if r.chance(10) {
		requests[GPU] = *resource.NewQuantity(int64(r.IntN(3)), resource.DecimalSI)
	}
	if r.chance(15) {
		c.Ports = []v1.ContainerPort{{
			ContainerPort: 80, HostPort: int32(pick(r, 80, 81)), Protocol: pick(r, v1.ProtocolTCP, v1.ProtocolUDP, ""),
			HostIP: pick(r, "", "", "127.0.0.1", "0.0.0.0"),
		}}
	}
	return c
}
