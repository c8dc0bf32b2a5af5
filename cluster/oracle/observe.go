package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"
	"k8s.io/metrics/pkg/apis/metrics"
)

// commands are kubectl's, whose output is compared line by line.
var commands = []string{
	"api-resources --no-headers --sort-by=name",
	"get all,cm,secrets,quota,limits,pdb,ing,netpol,roles,rolebindings,sa,endpointslices -o wide -n oracle --no-headers",
	"get all,quota,limits -o wide -n oracle-limited --no-headers",
	"get nodes,priorityclasses,runtimeclasses,crd -o wide --no-headers",
	"get pods,pvc,statefulsets -o wide -n oracle-volumes --no-headers",
	"get pv,storageclasses,apiservices,deviceclasses,resourceslices -o wide --no-headers",
	"get prioritylevelconfigurations oracle -o wide --no-headers",
	"get hpa,resourceclaims,resourceclaimtemplates,endpoints,endpointslices -o wide -n oracle --no-headers",
	"get widgets -n oracle",
	"describe pods,deployments,daemonsets,jobs,services -n oracle",
	"describe quota,limits,pdb,ing,netpol,sa,role,rolebinding,statefulsets,cm -n oracle",
	"describe quota,limits,replicasets -n oracle-limited",
	"describe cronjobs,hpa,rc,resourceclaims,endpoints -n oracle",
	"describe pods,pvc,statefulsets -n oracle-volumes",
	"describe pv,storageclasses,apiservices,deviceclasses",
	"describe nodes",
	"explain pod.spec.containers", "explain deployment.spec.strategy --recursive", "explain widget.spec",
	"auth can-i --list --as system:serviceaccount:oracle:reader -n oracle",
	"rollout history deployment/web -n oracle",
	"rollout status deployment/web -n oracle --watch=false",
	"get --raw /version", "get --raw /apis", "get --raw /api/v1",
}

// look fills seen. A part that cannot be read yet is seen as its error.
func (s *side) look(ctx context.Context) error {
	lists, err := discovery.ServerPreferredResources(s.kube.Discovery())
	if err != nil && len(lists) == 0 {
		return err
	}
	var all []*unstructured.Unstructured
	resources := map[*unstructured.Unstructured]string{}
	for _, list := range lists {
		version, err := schema.ParseGroupVersion(list.GroupVersion)
		if err != nil {
			return err
		}
		for _, r := range list.APIResources {
			// Usage is asked of kubelets, and there are none.
			if !slices.Contains(r.Verbs, "list") || r.Name == "events" && version.Group != "" || version.Group == metrics.GroupName {
				continue
			}
			got, err := s.objects.Resource(version.WithResource(r.Name)).List(ctx, metav1.ListOptions{})
			if err != nil {
				return fmt.Errorf("list %s: %w", r.Name, err)
			}
			for i := range got.Items {
				all = append(all, &got.Items[i])
				resources[&got.Items[i]] = r.Name
			}
		}
	}
	n := newNormal(all)
	seen := maps.Clone(s.answers)
	for key, value := range seen {
		seen[key] = n.value(value)
	}
	var events []*unstructured.Unstructured
	for _, o := range all {
		if resources[o] == "events" {
			events = append(events, o)
			continue
		}
		seen[n.unique(resources[o], o)] = n.object(o)
	}
	for _, event := range withoutFolded(events) {
		seen[n.event(event)] = true
	}
	for _, command := range commands {
		seen["kubectl "+command] = n.text(s.kubectl(ctx, command))
	}
	s.seen = seen
	// What -keep is for.
	content, err := json.MarshalIndent(seen, "", " ")
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(s.dir, "seen.json"), content, 0o600)
}

// kubectl's output, errors with it.
func (s *side) kubectl(ctx context.Context, command string) string {
	c := exec.CommandContext(ctx, filepath.Join(s.bin, "tools", "kubectl"), strings.Fields(command)...)
	c.Env = []string{"KUBECONFIG=" + s.kubeconfig, "HOME=" + s.dir}
	var out bytes.Buffer
	c.Stdout, c.Stderr = &out, &out
	if err := c.Run(); err != nil {
		fmt.Fprintln(&out, err)
	}
	return out.String()
}

// withoutFolded keeps of a pod's FailedScheduling events the first. A further one is counted with
// the one before, whatever that says, unless the pod has changed in between, which is a matter of
// time; the pod's condition has the last message.
func withoutFolded(events []*unstructured.Unstructured) []*unstructured.Unstructured {
	at := func(o *unstructured.Unstructured) string {
		text, _, _ := unstructured.NestedString(o.Object, "eventTime")
		return text
	}
	slices.SortStableFunc(events, func(a, b *unstructured.Unstructured) int { return strings.Compare(at(a), at(b)) })
	tried := map[string]bool{}
	return slices.DeleteFunc(events, func(o *unstructured.Unstructured) bool {
		reason, _, _ := unstructured.NestedString(o.Object, "reason")
		pod, _, _ := unstructured.NestedString(o.Object, "involvedObject", "uid")
		if reason != "FailedScheduling" {
			return false
		}
		again := tried[pod]
		tried[pod] = true
		return again
	})
}

// event is what an event says, without how often and when.
func (n *normal) event(o *unstructured.Unstructured) string {
	get := func(fields ...string) string {
		text, _, _ := unstructured.NestedString(o.Object, fields...)
		return n.line(text)
	}
	component := get("reportingComponent")
	if component == "" {
		component = get("source", "component")
	}
	return fmt.Sprintf("event/%s/%s/%s: %s %s %s: %s", o.GetNamespace(), get("involvedObject", "kind"), get("involvedObject", "name"),
		component, get("type"), get("reason"), get("message"))
}

// toJSON is what value is as JSON, to be walked.
func toJSON(value any) any {
	var out any
	if content, err := json.Marshal(value); err == nil {
		_ = json.Unmarshal(content, &out)
	}
	return out
}
