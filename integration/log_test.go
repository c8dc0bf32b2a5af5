package integration

import (
	"os"
	"strings"
	"testing"

	"google.golang.org/grpc/status"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/coracle-project/coracle/internal/testkit"
)

// rotate does what the kubelet does: it renames the log and has a new one opened.
func rotate(t *testing.T, c *container) {
	t.Helper()
	if err := os.Rename(c.log, c.log+".1"); err != nil {
		t.Fatal(err)
	}
	if _, err := c.p.n.ReopenContainerLog(c.p.n.ctx(), &cri.ReopenContainerLogRequest{ContainerId: c.id}); err != nil {
		t.Fatal(err)
	}
}

// wantCode checks an error's gRPC code by name, and that it says something.
func wantCode(t testing.TB, what string, err error, code string) {
	t.Helper()
	s, _ := status.FromError(err)
	if s.Code().String() != code {
		t.Errorf("%s: code %s, want %s (%v)", what, s.Code(), code, err)
	}
	if err != nil && len(s.Message()) < 10 {
		t.Errorf("%s: the message %q does not say much", what, s.Message())
	}
}

// Long lines are cut into parts that fit the kubelet's reader, and nothing is lost.
func TestLongLines(t *testing.T) {
	n := newNode(t, testkit.Options{})
	n.pull("busybox")
	p := n.runPod(nil)
	const size = 100_000
	c := p.run(shell("main", "head -c 100000 /dev/zero | tr '\\0' x; echo; printf end"))
	c.wait()
	want := strings.Repeat("x", size) + "\nend"
	eventually(t, "the log is whole", func() bool { return strings.TrimSuffix(c.output("stdout"), "\n") == want })
	lines, err := testkit.ReadLog(c.log)
	if err != nil {
		t.Fatal(err)
	}
	for i, l := range lines {
		if len(l.Text) > 16<<10 {
			t.Errorf("line %d has %d bytes", i, len(l.Text))
		}
	}
	p.remove()
}
