//go:build helm

package kube

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/coracle-project/coracle/internal/testkit"
)

// Helm 4 installs, upgrades, rolls back and removes a chart that has one of each kind that charts
// are made of. Its --wait returns when all is ready, and after the removal nothing is left: no
// object, no volume and no file of one.
func TestHelm(t *testing.T) {
	c := newCluster(t)
	t.Cleanup(func() { // the cluster's own end refuses while there are volumes
		if t.Failed() {
			c.showLogs(t)
			c.run(t, "down", "--purge", "--delete-volumes")
		}
	})
	const ns = "fleet"
	c.kube(t, "create", "namespace", ns)
	c.await(t, "wait", "serviceaccount/default", "configmap/kube-root-ca.crt", "-n", ns, "--for=create")
	volumes := filepath.Join(c.root, "kube", "local-path", "volumes")
	before := c.quietObjects(t, ns)
	image := registry.Addr + "/demo/web:1"
	helm := func(args ...string) (string, error) {
		t.Helper()
		home := filepath.Join(filepath.Dir(c.root), "helm")
		t.Cleanup(func() { _ = os.RemoveAll(home) }) // what it remembers
		cmd := exec.Command(testkit.Bin(t, "tools", "helm"), append(args, "--kubeconfig", c.kubeconfig(), "--namespace", ns)...)
		cmd.Env = append(os.Environ(), "HELM_CACHE_HOME="+home, "HELM_CONFIG_HOME="+home, "HELM_DATA_HOME="+home)
		out, err := cmd.CombinedOutput()
		return string(out), err
	}
	must := func(args ...string) string {
		t.Helper()
		out, err := helm(args...)
		if err != nil {
			t.Fatalf("helm %s: %v\n%s\n%s", strings.Join(args, " "), err, out, c.kube(t, "get", "all,pvc,events", "-n", ns))
		}
		return out
	}
	get := func(what, path string) string {
		t.Helper()
		return c.kube(t, "get", "-n", ns, what, "-o", "jsonpath={"+path+"}")
	}
	// is says what a release has to be when a command with --wait has returned: nothing is waited
	// for here.
	is := func(message string, replicas int) {
		t.Helper()
		n := fmt.Sprint(replicas)
		for _, part := range [][3]string{
			{"deployment/web", ".status.readyReplicas", n},
			{"deployment/web", ".status.updatedReplicas", n},
			{"deployment/web", ".spec.template.metadata.annotations.message", message},
			{"statefulset/store", ".status.readyReplicas", n},
			{"statefulset/store", ".status.updatedReplicas", n},
			{"statefulset/store", ".spec.template.spec.containers[0].env[0].value", message},
			{"configmap/boat", ".data.message", message},
			{"pvc/shared", ".status.phase", "Bound"},
			{"pvc/data-store-0", ".status.phase", "Bound"},
			{"hpa/scaled", ".spec.minReplicas", n},
		} {
			if got := get(part[0], part[1]); got != part[2] {
				t.Errorf("%s %s is %q, want %q", part[0], part[1], got, part[2])
			}
		}
		pod := c.kube(t, "get", "pods", "-n", ns, "-l", "app=web", "--field-selector=status.phase=Running",
			"-o", "go-template={{range .items}}{{if not .metadata.deletionTimestamp}}{{.metadata.name}} {{end}}{{end}}")
		pod, _, _ = strings.Cut(pod, " ")
		if got := c.kube(t, "exec", "-n", ns, pod, "--", "cat", "/settings/message"); got != message {
			t.Errorf("the pods' setting is %q, want %q", got, message)
		}
		// The scaler and the budget follow: Helm does not wait for what they do.
		c.await(t, "wait", "-n", ns, "deployment/scaled", "--for=jsonpath={.status.readyReplicas}="+n)
		c.await(t, "wait", "-n", ns, "hpa/scaled", "--for=condition=ScalingActive")
		c.await(t, "wait", "-n", ns, "pdb/web", "--for=jsonpath={.status.disruptionsAllowed}="+fmt.Sprint(replicas-1))
	}
	chart := filepath.Join("testdata", "chart")
	wait := []string{"--wait", "--timeout", patience.String()}
	set := func(message string, replicas int) []string {
		return []string{"--set", fmt.Sprintf("image=%s,message=%s,replicas=%d", image, message, replicas)}
	}

	must(slices.Concat([]string{"install", "boat", chart}, set("one", 2), wait)...)
	is("one", 2)
	if out := c.kube(t, "get", "events", "-n", ns, "--field-selector", "involvedObject.kind=Job,reason=Completed", "-o",
		"jsonpath={.items[*].involvedObject.name}"); !strings.Contains(out, "prepare") {
		t.Errorf("the hook before the installation did not run: %q", out)
	}
	must("test", "boat", "--timeout", patience.String())
	c.kube(t, "create", "job", "-n", ns, "now", "--from=cronjob/yearly")
	c.await(t, "wait", "-n", ns, "job/now", "--for=condition=Complete")
	c.kube(t, "exec", "-n", ns, "store-0", "--", "sh", "-c", "echo kept >/data/file")

	// Without --wait it returns before its pods are ready: what the checks above see is what --wait
	// has waited for. It cannot wait for these pods, which are not ready for an hour.
	must(slices.Concat([]string{"upgrade", "boat", chart}, set("two", 3), []string{"--set", "slow=3600"})...)
	if got := c.kube(t, "rollout", "status", "-n", ns, "deployment/web", "--watch=false"); strings.Contains(got, "successfully rolled out") {
		t.Errorf("an upgrade without --wait returns when all pods are ready: %s", got)
	}
	must(slices.Concat([]string{"upgrade", "boat", chart}, set("two", 3), wait)...)
	is("two", 3)
	if got := c.kube(t, "exec", "-n", ns, "store-0", "--", "cat", "/data/file"); got != "kept\n" {
		t.Errorf("after the upgrade the volume has %q", got)
	}
	// An upgrade that cannot be ready says so, and takes itself back. The time is also that of the
	// rollback and of its hook.
	out, err := helm(slices.Concat([]string{"upgrade", "boat", chart}, set("two", 3),
		[]string{"--set", "slow=3600", "--wait", "--rollback-on-failure", "--timeout", "90s"})...)
	if err == nil || !strings.Contains(out, "Deployment/fleet/web not ready") {
		t.Errorf("an upgrade to pods that do not get ready: %v\n%s", err, out)
	}
	is("two", 3)
	must(slices.Concat([]string{"rollback", "boat", "1"}, wait)...)
	is("one", 2)
	if history := must("history", "boat"); !strings.Contains(history, "Rollback to 1") {
		t.Errorf("the history is\n%s", history)
	}

	must(slices.Concat([]string{"uninstall", "boat"}, wait)...)
	// Helm knows its own objects only. What the garbage collector and the volumes' controllers have
	// to do follows.
	for end := time.Now().Add(patience); ; {
		left := without(c.objects(t, ns), before)
		if dirs, err := os.ReadDir(volumes); err != nil {
			t.Fatal(err)
		} else if len(left) == 0 && len(dirs) == 0 {
			break
		} else if time.Now().After(end) {
			t.Fatalf("after the removal these are left: %v, volumes %v", left, dirs)
		}
		time.Sleep(lookAgain)
	}
	if list := must("list"); strings.Contains(list, "boat") {
		t.Errorf("helm list:\n%s", list)
	}
}

// lookAgain is between two looks at all objects.
const lookAgain = 200 * time.Millisecond

// objects are all of a namespace and all that have none, but for events.
func (c *cluster) objects(t *testing.T, ns string) []string {
	t.Helper()
	return slices.Concat(c.list(t, "true", "-n", ns), c.list(t, "false"))
}

// quietObjects are the objects once the start of the cluster makes no more of them.
func (c *cluster) quietObjects(t *testing.T, ns string) []string {
	t.Helper()
	for end, all := time.Now().Add(patience), []string(nil); ; {
		last := all
		if all = c.objects(t, ns); slices.Equal(all, last) {
			return all
		}
		if time.Now().After(end) {
			t.Fatalf("the objects do not stay the same: %v, before %v", all, last)
		}
		time.Sleep(lookAgain)
	}
}

func (c *cluster) list(t *testing.T, namespaced string, args ...string) []string {
	t.Helper()
	kinds := slices.DeleteFunc(strings.Fields(c.kube(t, "api-resources", "--verbs=list,delete", "--namespaced="+namespaced, "-o", "name")),
		func(kind string) bool {
			return strings.HasPrefix(kind, "events")
		})
	return strings.Fields(c.kube(t, append([]string{"get", strings.Join(kinds, ","), "-o", "name", "--ignore-not-found"}, args...)...))
}

// without are those of all that were not there before.
func without(all, before []string) []string {
	return slices.DeleteFunc(slices.Clone(all), func(name string) bool { return slices.Contains(before, name) })
}
