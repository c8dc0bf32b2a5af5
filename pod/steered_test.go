package pod

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"
)

// untrusted are labels and annotations that configure other runtimes. Any user who creates a pod or
// an image can set them.
var untrusted = map[string]string{
	"io.kubernetes.cri-o.Devices":                          "/dev/mem:/dev/mem:rwm",
	"io.kubernetes.cri-o.userns-mode":                      "auto",
	"io.kubernetes.cri-o.cgroup2-mount-hierarchy-rw":       "true",
	"io.kubernetes.cri-o.UnifiedCgroup.c":                  "memory.max=max",
	"io.kubernetes.cri-o.TrySkipVolumeSELinuxLabel":        "true",
	"io.kubernetes.cri-o.LinkLogs":                         "x",
	"io.kubernetes.cri-o.umask":                            "000",
	"io.kubernetes.cri-o.ShmSize":                          "1Gi",
	"io.kubernetes.cri.container-type":                     "sandbox",
	"io.kubernetes.cri.untrusted-workload":                 "true",
	"io.kubernetes.cri.rdt-class":                          "all",
	"io.kubernetes.cri.blockio-class":                      "all",
	"cpu-load-balancing.crio.io":                           "disable",
	"cpu-quota.crio.io":                                    "disable",
	"irq-load-balancing.crio.io":                           "disable",
	"seccomp-profile.kubernetes.cri-o.io":                  "unconfined",
	"seccomp-profile.kubernetes.cri-o.io/c":                "unconfined",
	"seccomp.security.alpha.kubernetes.io/pod":             "unconfined",
	"container.seccomp.security.alpha.kubernetes.io/c":     "unconfined",
	"container.apparmor.security.beta.kubernetes.io/c":     "unconfined",
	"cdi.k8s.io/x":                                         "vendor.example/class=all",
	"org.criu.config":                                      "/etc/shadow",
	"run.oci.hooks.stdout":                                 "/etc/cron.d/x",
	"run.oci.systemd.subgroup":                             "x",
	"run.oci.keep_original_groups":                         "1",
	"io.katacontainers.config.hypervisor.path":             "/bin/sh",
	"io.containerd.runc.v2.group":                          "x",
	"org.systemd.property.ExecStartPre":                    "['/bin/sh']",
	"bundle.annotations.example/rootfs":                    "/",
	"checkpoint.annotation.container.name":                 "x",
	"org.criu.checkpoint.container.name":                   "x",
	"io.kubernetes.cri-o.annotations.checkpoint.name":      "x",
	"sandbox-image":                                        "x",
	"io.podman.annotations.privileged":                     "TRUE",
	"io.kubernetes.container.terminationMessagePath":       "/x",
	"io.kubernetes.container.hash":                         "x",
	"io.github.seccomp-tools.oci-seccomp-bpf-hook.trace":   "of:/etc/x",
	"nri.containerd.io/disable":                            "true",
	"unified.cgroup.example":                               "x",
	"io.kubernetes.cri-o.seccompNotifierAction/all-labels": "stop",
}

// TestLabelsOfOthersSteerNothing: labels and annotations that other runtimes obey do not change how
// a container is made, whether its pod, the container or its image has them.
func TestLabelsOfOthersSteerNothing(t *testing.T) {
	made := func(set map[string]string) string {
		b := newBench(t)
		m, _ := b.manager()
		m.checkpoints.Restore = true
		img := b.images["busybox"]
		img.Config.Labels = set
		b.images["busybox"] = img
		pc := podConfig("p")
		pc.Labels, pc.Annotations = set, set
		podID := must[string](t)(m.Run(t.Context(), pc))
		c := containerConfig("run")
		c.Labels, c.Annotations = set, set
		id := must[string](t)(m.Create(t.Context(), podID, c))
		ok(t, m.StartContainer(t.Context(), id))
		spec := *b.bundle(id)
		p := *b.proc(id)
		ok(t, m.Remove(t.Context(), podID))
		idle(t, m)
		b.nothingLeft()
		text := string(must[[]byte](t)(json.Marshal(struct {
			Spec       specs.Spec
			Handler    string
			Checkpoint string
		}{spec, p.handler, p.checkpoint})))
		return strings.NewReplacer(podID, "POD", id, "CONTAINER", b.state, "STATE").Replace(text)
	}
	if plain, set := made(nil), made(untrusted); plain != set {
		t.Errorf("without:\n%s\nwith:\n%s", plain, set)
	}
}
