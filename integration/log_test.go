package integration

import (
	"bufio"
	"cmp"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

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
	got := s.Code().String()
	// The kubelet knows these failures of a pull by their text, and sees that only with Unknown.
	if name, _, named := strings.Cut(s.Message(), ": "); got == "Unknown" && named {
		got = cmp.Or(map[string]string{"RegistryUnavailable": "Unavailable", "SignatureValidationFailed": "PermissionDenied"}[name], got)
	}
	if got != code {
		t.Errorf("%s: code %s, want %s (%v)", what, got, code, err)
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

// Followers of a log that its writer rotates see every line of a container: crictl, whose way of
// following is the kubelet's, and ours, which may even be held up.
func TestFollowersOfRotatedLog(t *testing.T) {
	n := newNode(t, testkit.Options{Config: "[runtime]\nlog_file_bytes = 262144\nlog_files = 100\n"})
	n.pull("busybox")
	p := n.runPod(nil)
	const rounds, each = 6, 3000 // of 170 kB
	c := p.run(
		shell("main",
			fmt.Sprintf(
				"i=0; r=0; while :; do while ! [ -e /go$r ]; do sleep 0.02; done; r=$((r+1)); n=0; while [ $n -lt %d ]; do n=$((n+1)); i=$((i+1)); "+
					"echo line $i; done; done", each,
			)),
	)
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	followers := map[string]*bufio.Scanner{}
	for name, cmd := range map[string]*exec.Cmd{
		"crictl":  exec.CommandContext(ctx, testkit.Bin(t, "tools", "crictl"), "-c", "/dev/null", "-r", "unix://"+n.Socket, "logs", "-f", c.id),
		"coracle": exec.CommandContext(ctx, testkit.Bin(t, "coracle"), "logs", "--address", n.Socket, "-f", c.id),
	} {
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		defer func() {
			_ = cmd.Process.Kill()
			_ = cmd.Wait()
		}()
		followers[name] = bufio.NewScanner(out)
	}
	for round := range rounds {
		if out, code := c.exec("sh", "-c", fmt.Sprintf("touch /go%d 2>&1", round)); code != 0 {
			t.Fatalf("exec ends with %d, %q", code, out)
		}
		for name, lines := range followers {
			for i := range each {
				if want := fmt.Sprint("line ", round*each+i+1); !lines.Scan() || lines.Text() != want {
					t.Fatalf("%s: %q (%v), want %q", name, lines.Text(), lines.Err(), want)
				}
			}
		}
	}
	aside, err := filepath.Glob(c.log + ".*")
	if err != nil || len(aside) < rounds/2 {
		t.Errorf("%d files set aside, %v", len(aside), err)
	}
	p.remove()
}
