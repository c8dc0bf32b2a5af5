package integration

import (
	"os/exec"
	"strings"
	"testing"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/coracle-project/coracle/internal/testkit"
)

// Sockets that no network namespace contains, asked for in both ways that x86 has. The filter
// cannot see which family a 32-bit call asks for. Where the kernel has no AF_ALG only the error
// tells that the filter was asked; hack/oci/vm/socketcall.sh tests where it has.
func TestAttackSocketFamilies(t *testing.T) {
	out, err := exec.Command(testkit.Bin(t, "test", "attack"), "socketcall").Output()
	for _, what := range []string{"socketcall-vsock ok", "socket-vsock ok"} {
		if !strings.Contains(string(out), what) {
			testkit.Untested(t, "sockets by i386's socketcall: this kernel has no AF_VSOCK, or runs no 32-bit programs (%v, %s)", err, out)
			return
		}
	}
	for name, handler := range map[string]string{"own": "", "runc": "oci:" + runc, "crun": "oci:" + testkit.Crun(t)} {
		t.Run(name, func(t *testing.T) {
			start := func() *node { return newNode(t, testkit.Options{}) }
			if handler != "" {
				start = func() *node { return newHandlerNode(t, testkit.Options{}, handler) }
			}
			n := start()
			n.pull("busybox")
			p := n.runPod(nil)
			defer p.remove()
			free := attacker(t, "free", "socketcall")
			free.Linux.SecurityContext.Seccomp = &cri.SecurityProfile{ProfileType: cri.SecurityProfile_Unconfined}
			open := p.attacks(free)
			for _, what := range []string{"socketcall-unix", "socketcall-inet", "socketcall-vsock", "socket-vsock"} {
				if open[what] != "ok" {
					t.Errorf("without a filter: %s: %s", what, open[what])
				}
			}
			kept := p.attacks(attacker(t, "kept", "socketcall"))
			for what, want := range map[string]string{
				"socketcall-alg": "ENOSYS", "socketcall-vsock": "ENOSYS", "socketcall-inet": "ENOSYS", "socketcall-unix": "ENOSYS",
				"socket-alg": "EPERM", "socket-vsock": "EPERM", "socket-inet": "ok", "socket-unix": "ok",
			} {
				if kept[what] != want {
					t.Errorf("default filter: %s: %s, want %s", what, kept[what], want)
				}
			}
		})
	}
}
