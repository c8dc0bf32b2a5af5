package e2e

import (
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/kubernetes/pkg/security/apparmor"

	"github.com/coracle-project/coracle/cluster/kubelet"
	"github.com/coracle-project/coracle/cluster/kubelet/logrotate"
)

// A container that forks as often as it can leaves processes to others.
func TestProcessesOfAPodAreBounded(t *testing.T) {
	n := newNode(t, func(o *kubelet.Options) { o.PodPIDs = 64 })
	p := n.create(n.pod("forks", container("c", "sleep"), container("d", "sleep")))
	n.until(p, "ready", ready)
	forked := func() int {
		t.Helper()
		count, err := strconv.Atoi(strings.TrimSpace(n.exec(p, "c", "fork", "200")))
		if err != nil {
			t.Fatal(err)
		}
		return count
	}
	if count := forked(); count < 1 || count >= 64 {
		t.Errorf("%d children where a pod may have 64 processes", count)
	}
	// Without the limit there are as many as it wants.
	files, err := filepath.Glob("/sys/fs/cgroup" + n.opts.CgroupRoot + "/kubepods/besteffort/pod" + string(p.UID) + "/pids.max")
	if err == nil && len(files) == 0 {
		files, err = filepath.Glob("/sys/fs/cgroup/pids" + n.opts.CgroupRoot + "/kubepods/besteffort/pod" + string(p.UID) + "/pids.max")
	}
	if err != nil || len(files) != 1 {
		t.Fatalf("the pod's limit: %v, %v", files, err)
	}
	if err := os.WriteFile(files[0], []byte("max"), 0o644); err != nil {
		t.Fatal(err)
	}
	if count := forked(); count != 200 {
		t.Errorf("control: %d children without a limit", count)
	}
}

// A container that logs forever takes a bounded part of the disk.
func TestLogsOfAContainerAreBounded(t *testing.T) {
	policy := logrotate.Policy{MaxSize: 128 << 10, MaxFiles: 3, Every: 500 * time.Millisecond}
	n := newNode(t, func(o *kubelet.Options) { o.Logs = policy })
	p := n.create(n.pod("chatter", container("c", "chatter")))
	n.until(p, "ready", ready)
	dir := filepath.Join(n.opts.LogDir, "default_chatter_"+string(p.UID), "c")
	const lines = 600 // of 1 KiB, which is more than three files have at the rate at which they are written
	look := time.NewTicker(policy.Every / 10)
	defer look.Stop()
	deadline := time.After(patience)
	packed := false
	for number := 0; number < lines || !packed; {
		first, _, _ := strings.Cut(n.log(p, "c", 0), " ")
		number, _ = strconv.Atoi(first) // none while the file is new
		found, err := filepath.Glob(filepath.Join(dir, "*.gz"))
		if err != nil {
			t.Fatal(err)
		}
		packed = packed || len(found) > 0
		select {
		case <-look.C:
		case <-deadline:
			t.Fatalf("the log is not rotated: its first line is %q; packed: %v", first, packed)
		}
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	if len(entries) > policy.MaxFiles+1 { // one more, while it is packed
		t.Errorf("the log has %d files", len(entries))
	}
	for _, e := range entries {
		if e.Type() != fs.FileMode(0) {
			t.Errorf("%s is %v", e.Name(), e.Type())
		}
	}
}

// What is mounted from the kubelet's directory counts as the pod's storage (CVE-2020-8557).
func TestFilesOfTheKubeletAreThePodsStorage(t *testing.T) {
	n := newNode(t, func(o *kubelet.Options) { o.Eviction.LimitsEvery = 100 * time.Millisecond })
	for name, file := range map[string]string{"hosts": "/etc/hosts", "word": "/dev/termination-log"} {
		p := n.pod(name, container("c", "fill", file, "3", ",", "sleep"))
		p.Spec.Containers[0].Resources.Limits = v1.ResourceList{v1.ResourceEphemeralStorage: quantity("2Mi")}
		p = n.create(p)
		now := n.until(p, "evicted", phase(v1.PodFailed))
		if now.Status.Reason != "Evicted" ||
			!strings.Contains(now.Status.Message, "Pod ephemeral local storage usage exceeds the total limit of containers 2Mi") {
			t.Errorf("%s: %s", file, describe(now))
		}
	}
}

// What a pod asks for and the node does not allow or have, it is told; it does not run with less
// protection.
func TestPodsAreConfined(t *testing.T) {
	n := newNode(t, func(o *kubelet.Options) { o.AllowedUnsafeSysctls = []string{"net.core.*"} })
	sysctl := func(name string) *v1.Pod {
		p := n.pod(strings.NewReplacer(".", "-", "_", "-").Replace(name), container("c", "sleep"))
		p.Spec.SecurityContext.Sysctls = []v1.Sysctl{{Name: name, Value: "1024"}}
		return n.create(p)
	}
	refused := func(p *v1.Pod, reason, message string) {
		t.Helper()
		now := n.until(p, "refused", phase(v1.PodFailed))
		if now.Status.Reason != reason || !strings.Contains(now.Status.Message, message) {
			t.Errorf("%s: %s", p.Name, describe(now))
		}
	}
	refused(sysctl("kernel.msgmax"), "SysctlForbidden", `forbidden sysctl: "kernel.msgmax" not allowlisted`)
	n.until(sysctl("net.core.somaxconn"), "ready", ready)

	guarded := n.pod("guarded", container("c", "sleep"))
	guarded.Spec.SecurityContext.AppArmorProfile = &v1.AppArmorProfile{Type: v1.AppArmorProfileTypeRuntimeDefault}
	if guarded = n.create(guarded); apparmor.NewValidator().ValidateHost() != nil {
		refused(guarded, "AppArmor", "Cannot enforce AppArmor: AppArmor is not enabled on the host")
	} else {
		n.until(guarded, "ready", ready)
	}

	for kind, want := range map[v1.SeccompProfileType]string{"": "2", v1.SeccompProfileTypeUnconfined: "0"} {
		p := n.pod("filter"+strings.ToLower(string(kind)), container("c", "sleep"))
		if kind != "" {
			p.Spec.SecurityContext.SeccompProfile = &v1.SeccompProfile{Type: kind}
		}
		p = n.create(p)
		n.until(p, "ready", ready)
		if status := n.exec(p, "c", "cat", "/proc/1/status"); !strings.Contains(status, "Seccomp:\t"+want+"\n") {
			t.Errorf("seccomp profile %q: want mode %s in\n%s", kind, want, status)
		}
	}
}
