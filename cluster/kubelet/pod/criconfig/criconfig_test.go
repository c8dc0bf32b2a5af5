package criconfig

import (
	"log/slog"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/utils/ptr"

	"github.com/coracle-project/coracle/cluster/kubelet/pod/internal/podtest"
)

// noCgroups are not made by the kubelet.
type noCgroups struct{}

func (noCgroups) Parent(*v1.Pod) string        { return "" }
func (noCgroups) Container() map[string]string { return nil }

func TestContainerResources(t *testing.T) {
	list := func(cpu, memory string) v1.ResourceList {
		l := v1.ResourceList{}
		if cpu != "" {
			l[v1.ResourceCPU] = resource.MustParse(cpu)
		}
		if memory != "" {
			l[v1.ResourceMemory] = resource.MustParse(memory)
		}
		return l
	}
	m := &Maker{MemoryCapacity: 8 << 30, Cgroups: noCgroups{}}
	for name, tc := range map[string]struct {
		requests, limits              v1.ResourceList
		shares, quota, memory, oomAdj int64
	}{
		"nothing asked for":       {list("", ""), list("", ""), 2, 0, 0, 1000},
		"requests only":           {list("250m", "1Gi"), list("", ""), 256, 0, 0, 875},
		"limits are requests":     {list("1", "1Gi"), list("1", "1Gi"), 1024, 100000, 1 << 30, -997},
		"a limit without request": {list("", ""), list("500m", ""), 512, 50000, 0, 999},
		"the least quota":         {list("1m", ""), list("1m", ""), 2, 1000, 0, 999},
	} {
		t.Run(name, func(t *testing.T) {
			p := podtest.Pod(v1.RestartPolicyAlways, "", "a")
			c := &p.Spec.Containers[0]
			c.Resources = v1.ResourceRequirements{Requests: tc.requests, Limits: tc.limits}
			got := m.ContainerResources(p, c)
			want := &runtimeapi.LinuxContainerResources{
				CpuShares: tc.shares, CpuQuota: tc.quota, CpuPeriod: 100000, MemoryLimitInBytes: tc.memory,
				OomScoreAdj: tc.oomAdj,
			}
			got.HugepageLimits = nil
			if got.String() != want.String() {
				t.Errorf("got  %v\nwant %v", got, want)
			}
		})
	}
}

func TestPageSize(t *testing.T) {
	for bytes, want := range map[int64]string{2 << 20: "2MB", 1 << 30: "1GB", 64 << 10: "64KB"} {
		if got := pageSize(bytes); got != want {
			t.Errorf("%d: %s, want %s", bytes, got, want)
		}
	}
}

func TestHostname(t *testing.T) {
	long := strings.Repeat("a", 62) + ".b"
	for name, tc := range map[string]struct {
		edit         func(*v1.Pod)
		host, domain string
		kernel, err  string
	}{
		"the pod's name":   {func(*v1.Pod) {}, "p", "", "p", ""},
		"its own":          {func(p *v1.Pod) { p.Spec.Hostname = "h" }, "h", "", "h", ""},
		"with a subdomain": {func(p *v1.Pod) { p.Spec.Hostname, p.Spec.Subdomain = "h", "s" }, "h", "s.ns.svc.cluster.local", "h", ""},
		"FQDN asked for": {
			func(p *v1.Pod) { p.Spec.Subdomain, p.Spec.SetHostnameAsFQDN = "s", ptr.To(true) }, "p", "s.ns.svc.cluster.local",
			"p.s.ns.svc.cluster.local", "",
		},
		"cut": {func(p *v1.Pod) { p.Name = long }, strings.Repeat("a", 62), "", strings.Repeat("a", 62), ""},
		"FQDN too long": {func(p *v1.Pod) {
			p.Spec.Hostname, p.Spec.Subdomain, p.Spec.SetHostnameAsFQDN = strings.Repeat("h", 50), "s", ptr.To(true)
		}, strings.Repeat("h", 50), "s.ns.svc.cluster.local", "", "is too long (64 characters is the max"},
		"overridden": {func(p *v1.Pod) { p.Spec.HostnameOverride = ptr.To("over.example") }, "over.example", "", "over.example", ""},
	} {
		t.Run(name, func(t *testing.T) {
			p := podtest.Pod(v1.RestartPolicyAlways, "", "a")
			tc.edit(p)
			host, domain, err := (&Maker{Log: slog.New(slog.DiscardHandler)}).hostname(p, "cluster.local")
			if err != nil {
				t.Fatal(err)
			}
			kernel, err := kernelHostname(p, host, domain)
			if host != tc.host || domain != tc.domain || kernel != tc.kernel {
				t.Errorf("%q %q %q", host, domain, kernel)
			}
			if (err != nil) != (tc.err != "") || err != nil && !strings.Contains(err.Error(), tc.err) {
				t.Errorf("error %v", err)
			}
		})
	}
}

func TestPodHosts(t *testing.T) {
	const want = "# Kubernetes-managed hosts file.\n127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost ip6-loopback\n" +
		"fe00::0\tip6-localnet\nfe00::0\tip6-mcastprefix\nfe00::1\tip6-allnodes\nfe00::2\tip6-allrouters\n" +
		"10.0.0.1\th.d\th\nfd00::1\th.d\th\n"
	if got := string(podHosts([]string{"10.0.0.1", "fd00::1"}, "h", "d")); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}

// Without a profile of its own a container has the runtime's, as with upstream's seccompDefault.
func TestSeccomp(t *testing.T) {
	profile := func(kind v1.SeccompProfileType) *v1.SeccompProfile { return &v1.SeccompProfile{Type: kind} }
	for name, tc := range map[string]struct {
		pod, container *v1.SeccompProfile
		off            bool // SeccompUnconfined
		want           runtimeapi.SecurityProfile_ProfileType
	}{
		"none":                  {want: runtimeapi.SecurityProfile_RuntimeDefault},
		"none, and none wanted": {off: true, want: runtimeapi.SecurityProfile_Unconfined},
		"unconfined pod":        {pod: profile(v1.SeccompProfileTypeUnconfined), want: runtimeapi.SecurityProfile_Unconfined},
		"unconfined container":  {container: profile(v1.SeccompProfileTypeUnconfined), want: runtimeapi.SecurityProfile_Unconfined},
		"the container's is first": {
			pod: profile(v1.SeccompProfileTypeUnconfined), container: profile(v1.SeccompProfileTypeRuntimeDefault),
			want: runtimeapi.SecurityProfile_RuntimeDefault,
		},
		"asked for, none wanted": {
			off: true, pod: profile(v1.SeccompProfileTypeRuntimeDefault),
			want: runtimeapi.SecurityProfile_RuntimeDefault,
		},
	} {
		p := podtest.Pod(v1.RestartPolicyAlways, "", "a")
		p.Spec.SecurityContext = &v1.PodSecurityContext{SeccompProfile: tc.pod}
		p.Spec.Containers[0].SecurityContext = &v1.SecurityContext{SeccompProfile: tc.container}
		m := &Maker{SeccompUnconfined: tc.off}
		got, err := m.seccomp(p, &p.Spec.Containers[0])
		if err != nil || got.GetProfileType() != tc.want {
			t.Errorf("%s: %v, %v, want %v", name, got, err, tc.want)
		}
	}
}

func TestVerifyNonRoot(t *testing.T) {
	for name, tc := range map[string]struct {
		sc   *v1.SecurityContext
		user imageUser
		want string
	}{
		"not asked for":      {&v1.SecurityContext{}, imageUser{uid: ptr.To(int64(0))}, ""},
		"a number":           {nonRoot(nil), imageUser{uid: ptr.To(int64(5))}, ""},
		"root's number":      {nonRoot(nil), imageUser{uid: ptr.To(int64(0))}, "image will run as root"},
		"a name":             {nonRoot(nil), imageUser{name: "www"}, "non-numeric user (www)"},
		"asked for as root":  {nonRoot(ptr.To(int64(0))), imageUser{}, "container's runAsUser breaks non-root policy"},
		"asked for as other": {nonRoot(ptr.To(int64(7))), imageUser{uid: ptr.To(int64(0))}, ""},
		"out of range":       {nonRoot(nil), imageUser{uid: ptr.To(int64(1) << 40)}, "invalid user id"},
	} {
		t.Run(name, func(t *testing.T) {
			p := podtest.Pod(v1.RestartPolicyAlways, "", "a")
			err := verifyNonRoot(p, &p.Spec.Containers[0], tc.sc, tc.user)
			if (err != nil) != (tc.want != "") || err != nil && !strings.Contains(err.Error(), tc.want) {
				t.Errorf("error %v", err)
			}
		})
	}
}

func nonRoot(uid *int64) *v1.SecurityContext {
	return &v1.SecurityContext{RunAsNonRoot: ptr.To(true), RunAsUser: uid}
}
