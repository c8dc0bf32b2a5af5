package workload

import (
	"slices"
	"strings"
	"testing"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// things is an inventory of pods "id namespace/name" and containers "id pod-id name attempt".
func things(pods, containers []string) inventory {
	var ps []*runtimeapi.PodSandbox
	for i, s := range pods {
		f := strings.Fields(s)
		ns, name, _ := strings.Cut(f[1], "/")
		ps = append(ps, &runtimeapi.PodSandbox{
			Id: f[0], CreatedAt: int64(i), Metadata: &runtimeapi.PodSandboxMetadata{Namespace: ns, Name: name},
		})
	}
	var cs []*runtimeapi.Container
	for i, s := range containers {
		f := strings.Fields(s)
		cs = append(cs, &runtimeapi.Container{
			Id: f[0], PodSandboxId: f[1], CreatedAt: int64(i),
			Metadata: &runtimeapi.ContainerMetadata{Name: f[2], Attempt: uint32(f[3][0] - '0')},
		})
	}
	return newInventory(ps, cs)
}

var someThings = things(
	[]string{"aa11 shop/web", "aa22 shop/db", "bb33 test/web", "cc44 shop/job", "cc55 shop/job"},
	[]string{
		"c100 aa11 nginx 0", "c101 aa11 nginx 1", "c102 aa11 sidecar 0",
		"c200 aa22 postgres 0",
		"d300 bb33 nginx 0", "d301 bb33 other 0",
		"e400 cc44 main 0", "e500 cc55 main 0",
	})

func TestNamingContainers(t *testing.T) {
	for _, tc := range []struct{ name, means, err string }{
		{name: "c200", means: "c200"},
		{name: "c2", means: "c200"},
		{name: "postgres", means: "c200"},
		{name: "db", means: "c200"},
		{name: "shop/db", means: "c200"},
		{name: "shop/web/nginx", means: "c101"},
		{name: "c100", means: "c100"},
		{name: "job", means: "e500"},
		{name: "sidecar", means: "c102"},
		{name: "nginx", err: `"nginx" could be each of shop/web/nginx (c101), test/web/nginx (d300); say more`},
		{name: "web/nginx", err: "could be each of"},
		{name: "shop/web", err: "shop/web/nginx (c101), shop/web/sidecar (c102)"},
		{name: "c1", err: "could be each of"},
		{name: "", err: `no container is called ""`},
		{name: "none", err: `no container is called "none"; 'coracle ps -a' lists them`},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c, err := someThings.container(tc.name)
			if tc.err != "" {
				if err == nil || !strings.Contains(err.Error(), tc.err) {
					t.Errorf("%v, %v; want %q", c, err, tc.err)
				}
			} else if err != nil || c.GetId() != tc.means {
				t.Errorf("%v, %v; want %s", c, err, tc.means)
			}
		})
	}
}

func TestNamingPods(t *testing.T) {
	for _, tc := range []struct{ name, means, err string }{
		{name: "aa2", means: "aa22"},
		{name: "db", means: "aa22"},
		{name: "test/web", means: "bb33"},
		{name: "job", means: "cc55"},
		{name: "cc44", means: "cc44"},
		{name: "web", err: "shop/web (aa11), test/web (bb33)"},
		{name: "aa", err: "could be each of"},
		{name: "none", err: `no pod is called "none"; 'coracle pods' lists them`},
	} {
		t.Run(tc.name, func(t *testing.T) {
			p, err := someThings.pod(tc.name)
			if tc.err != "" {
				if err == nil || !strings.Contains(err.Error(), tc.err) {
					t.Errorf("%v, %v; want %q", p, err, tc.err)
				}
			} else if err != nil || p.GetId() != tc.means {
				t.Errorf("%v, %v; want %s", p, err, tc.means)
			}
		})
	}
}

func TestPreviousAttempt(t *testing.T) {
	c, _ := someThings.container("shop/web/nginx")
	p, err := someThings.previous(c)
	if err != nil || p.GetId() != "c100" {
		t.Errorf("%v, %v", p, err)
	}
	if p, err = someThings.previous(p); err == nil || !strings.Contains(err.Error(), "no attempt before") {
		t.Errorf("%v, %v", p, err)
	}
}

func TestOffersMeanOneThing(t *testing.T) {
	pods := someThings.podNames()
	if want := []string{"db", "job", "shop/web", "test/web"}; !slices.Equal(pods, want) {
		t.Errorf("pods %q, want %q", pods, want)
	}
	for _, name := range pods {
		if _, err := someThings.pod(name); err != nil {
			t.Error(err)
		}
	}
	containers := someThings.containerNames(false)
	if want := []string{"db/postgres", "job/main", "shop/web/nginx", "web/sidecar", "test/web/nginx", "web/other"}; !slices.Equal(containers,
		want) {
		t.Errorf("containers %q, want %q", containers, want)
	}
	for _, name := range containers {
		if _, err := someThings.container(name); err != nil {
			t.Error(err)
		}
	}
}

// A container whose pod went between the two lists is still there to be named.
func TestContainerWithoutPod(t *testing.T) {
	v := things(nil, []string{"c1 gone main 0"})
	if c, err := v.container("main"); err != nil || c.GetId() != "c1" {
		t.Errorf("%v, %v", c, err)
	}
}
